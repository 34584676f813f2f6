//! Workflow commands of GitHub Actions: an annotation for each finding, then all in a line.
//!
//! Escaping as GitHub's toolkit does it (`packages/core/src/command.ts` of `actions/toolkit`).

use std::fmt::Write as _;

use super::facts;
use super::text::summary;
use crate::report::Severity;
use crate::report::render::concise::place;
use crate::report::suite::{Case, NoticeKind, Status, Suite};
use crate::visible::Visible;

pub(super) fn render(suite: &Visible<Suite>) -> String {
    let mut text = String::new();
    for case in &suite.cases {
        match case.status {
            Status::Passed | Status::Skipped => {}
            _ => annotate(&mut text, case),
        }
    }
    let mut skipped: Vec<String> = Vec::new();
    for case in suite.cases.iter().filter(|case| case.status == Status::Skipped) {
        let reason = case.reason.as_deref().unwrap_or_default();
        let message = format!("probes of {} were skipped: {reason}", case.engine);
        if !skipped.contains(&message) {
            text += &command("notice", None, "zprobe check", &message);
            skipped.push(message);
        }
    }
    for notice in &suite.notices {
        let level = match notice.kind {
            NoticeKind::Expired => "error",
            NoticeKind::Unused => "warning",
        };
        let place = Some((notice.file.as_str(), notice.line));
        text += &command(level, place, &format!("{} baseline entry", notice.kind), &notice.message);
    }
    let _ = writeln!(text, "{}", summary(suite));
    text
}

fn annotate(text: &mut String, case: &Case) {
    let file = case.file.as_deref().map(|file| (file, 1));
    for it in &case.findings {
        let (finding, place) = (&it.finding, place(&it.finding));
        let level = match (&it.accepted, finding.severity) {
            (Some(_), _) => "notice",
            (None, Severity::Warning) => "warning",
            (None, Severity::Error) => "error",
        };
        let title = format!("{} {} in {}", finding.code, finding.name, case.id());
        let mut message = if place.is_empty() {
            finding.message.clone()
        } else {
            format!("{place}: {}", finding.message)
        };
        for evidence in facts(finding) {
            let _ = write!(message, "\n- {evidence}");
        }
        match &it.accepted {
            Some(accepted) => {
                let _ =
                    write!(message, "\naccepted until {}: {}", accepted.expires, accepted.reason);
            }
            None => {
                let _ = write!(message, "\nagain: {}", case.command);
            }
        }
        *text += &command(level, file, &title, &message);
    }
    // A finding says more than that it was not expected.
    if case.status.is_bad() && case.findings.iter().all(|it| it.accepted.is_some()) {
        let title = format!("{} {}", case.id(), case.status);
        let message = format!("{}\nagain: {}", case.complaint(), case.command);
        *text += &command("error", file, &title, &message);
    }
}

/// `::error file=probes/own.toml,line=1,title=ZP101 boundary-leak::what happened`
fn command(level: &str, place: Option<(&str, usize)>, title: &str, message: &str) -> String {
    let place = place
        .map_or_else(String::new, |(file, line)| format!("file={},line={line},", property(file)));
    format!("::{level} {place}title={}::{}\n", property(title), data(message))
}

/// What stands behind `::`.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// A value of a property, which a comma or a colon would end.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}
