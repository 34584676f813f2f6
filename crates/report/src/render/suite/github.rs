//! Renders a suite as workflow commands of GitHub Actions: an annotation for each finding, then a summary line.
//!
//! The escaping is that of GitHub's toolkit (`packages/core/src/command.ts` of `actions/toolkit`).

use std::fmt::Write as _;

use super::text::summary;
use crate::suite::{Case, Status, Suite};
use crate::words::amount;
use zprobe_model::visible::Visible;

pub fn render(suite: &Visible<Suite>) -> String {
    let mut text = String::new();
    if let Some(why) = &suite.unchecked {
        text += &command("error", None, "zprobe check", why);
    }
    for case in suite.cases.iter().filter(|case| case.status == Status::Accepted) {
        annotate(&mut text, case, &[]);
    }
    for cause in suite.causes() {
        // An annotation belongs to one file, so cases of different files get different annotations.
        let mut files: Vec<Vec<&Case>> = Vec::new();
        for case in cause.cases() {
            match files.iter_mut().find(|cases| cases[0].file == case.file) {
                Some(cases) => cases.push(case),
                None => files.push(vec![case]),
            }
        }
        for cases in files {
            annotate(&mut text, cases[0], &cases[1..]);
        }
    }
    for skipped in suite.skipped() {
        text += &command("notice", None, "zprobe check", &format!("skipped {skipped}"));
    }
    for notice in &suite.notices {
        let level = notice.kind.severity().name();
        let place = Some((notice.file.as_str(), notice.line));
        text += &command(level, place, &format!("{} baseline entry", notice.kind), &notice.message);
    }
    let _ = writeln!(text, "{}", summary(suite));
    text
}

/// Writes the annotations for the findings or the complaint of a case; `others` are cases with the same cause.
fn annotate(text: &mut String, case: &Case, others: &[&Case]) {
    let file = case.file.as_deref().map(|file| (file, 1));
    let mut place_of_all = case.id();
    let mut also = String::new();
    if !others.is_empty() {
        place_of_all = format!("{} and {}", case.id(), amount(others.len(), "other probe"));
        let ids: Vec<String> = others.iter().map(|case| case.id()).collect();
        also = format!("\nalso: {}", ids.join(", "));
    }
    for it in &case.findings {
        let finding = &it.finding;
        let level = if it.accepted.is_some() { "notice" } else { finding.severity.name() };
        let title = format!("{} in {place_of_all}", finding.title());
        let mut message = finding.statement();
        for fact in finding.lines() {
            let _ = write!(message, "\n- {fact}");
        }
        match &it.accepted {
            Some(accepted) => {
                let _ = write!(message, "\n{}", accepted.describe());
            }
            None => {
                let _ = write!(message, "{also}\nagain: {}", case.command);
            }
        }
        *text += &command(level, it.place(case), &title, &message);
    }
    // The complaint is annotated only if no finding is, because an annotated finding says more.
    if case.status.is_bad() && case.findings.iter().all(|it| it.accepted.is_some()) {
        let title = format!("{place_of_all} {}", case.status);
        let message = format!("{}{also}\nagain: {}", case.complaint(), case.command);
        *text += &command("error", file, &title, &message);
    }
}

/// A workflow command: `::error file=probes/own.toml,line=1,title=ZP101 boundary-leak::what
/// happened`
fn command(level: &str, place: Option<(&str, usize)>, title: &str, message: &str) -> String {
    let place = place
        .map_or_else(String::new, |(file, line)| format!("file={},line={line},", property(file)));
    format!("::{level} {place}title={}::{}\n", property(title), data(message))
}

/// Escapes the text after the second `::` of a command.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Escapes the value of a property, which would otherwise end at a comma or a colon.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}
