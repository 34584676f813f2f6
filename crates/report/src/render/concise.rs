//! Renders a report as one line for the verdict and one for each finding.

use super::Report;
use crate::document::headline;
use crate::words::one_line;
use crate::{Finding, KnownBug};
use zprobe_model::visible::Visible;

pub(super) fn render(report: &Visible<Report>) -> String {
    let mut lines = vec![format!("{}: {}", report.verdict, headline(report))];
    lines.extend(
        report.findings.iter().map(|finding| {
            format!("{}: {}{}", finding.title(), finding.statement(), known(finding))
        }),
    );
    let again = report.run.command.iter().filter(|_| !report.findings.is_empty());
    lines.extend(again.map(|command| format!("again: {command}")));
    lines.extend(report.minimised.iter().map(|it| format!("smallest: {}", it.command)));
    lines.iter().map(|line| one_line(line) + "\n").collect()
}

/// The known bugs of a finding in words, ` (known bug boundary-leak, fixed in 0.19.0; fix: pip install …)`; empty if
/// there are none.
fn known(finding: &Finding) -> String {
    let known = finding.known.iter();
    let upgrade = |known: &KnownBug| known.upgrade.as_ref().map(|it| format!("; fix: {it}"));
    known
        .map(|it| {
            format!(" (known bug {}, {}{})", it.name, it.fix(), upgrade(it).unwrap_or_default())
        })
        .collect()
}
