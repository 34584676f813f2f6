//! A line for the verdict and one for each finding.

use std::fmt::Write as _;

use super::Report;
use crate::report::Finding;
use crate::report::words::one_line;
use crate::visible::Visible;

pub(super) fn render(report: &Visible<Report>) -> String {
    let mut text = format!("{}: {}\n", report.verdict, one_line(&super::full::headline(report)));
    for finding in &report.findings {
        let place = place(finding);
        let separator = if place.is_empty() { "" } else { ": " };
        let line = format!(
            "{} {}: {place}{separator}{}{}",
            finding.code,
            finding.name,
            finding.message,
            known(finding),
        );
        text += &(one_line(&line) + "\n");
    }
    if let Some(minimised) = &report.minimised {
        let _ = writeln!(text, "smallest: {}", one_line(&minimised.command));
    }
    text
}

/// Known bugs in words, ` (known bug boundary-leak, fixed in 0.19.0)`; empty where there are none.
fn known(finding: &Finding) -> String {
    finding
        .known
        .iter()
        .map(|known| format!(" (known bug {}, {})", known.name, known.fix()))
        .collect()
}

/// Place of a finding as far as known: `step 0, microbatch 3, rank 1`.
pub(super) fn place(finding: &Finding) -> String {
    let parts =
        [("step", finding.step), ("microbatch", finding.microbatch), ("rank", finding.rank)];
    let mut known: Vec<String> =
        parts.iter().filter_map(|(what, n)| n.map(|n| format!("{what} {n}"))).collect();
    known.extend(finding.param.as_ref().map(|param| format!("parameter {param}")));
    known.extend(finding.bucket.map(|bucket| format!("flush {bucket}")));
    known.join(", ")
}
