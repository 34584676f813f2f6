//! Renders a suite for a terminal: the result of each case, then the cases that need attention, then a summary.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};

use super::{first_line, in_short};
use crate::Finding;
use crate::render::full::TerminalPage;
use crate::suite::{Case, Cause, Status, Suite};
use crate::words::{amount, of_all, one_line};
use zprobe_model::visible::Visible;

/// Renders a line for each case, and the evidence for each case that needs attention.
pub fn full(suite: &Visible<Suite>, columns: usize) -> String {
    let mut page = TerminalPage::new(columns);
    if let Some(why) = &suite.unchecked {
        let loud = style(Status::Failed);
        page.wrapped(&format!("{loud}NOT CHECKED{loud:#}  "), "  ", why, Style::new());
        let _ = writeln!(page);
    }
    let width = suite.cases.iter().map(|case| case.id().len()).max().unwrap_or(0);
    for case in suite.cases.iter().filter(|case| case.status != Status::Skipped) {
        let style = style(case.status);
        let status = label(case.status);
        let (id, got, seconds) = (one_line(&case.id()), in_short(case), case.seconds);
        let lead = format!("{style}{status:12}{style:#}  {seconds:6.2} s  {id:width$}  ");
        page.wrapped(&lead, "    ", &got, Style::new());
    }
    for cause in suite.causes() {
        failure(&mut page, &cause);
    }
    for case in suite.cases.iter().filter(|case| case.status == Status::Accepted) {
        accepted(&mut page, case);
    }
    let _ = writeln!(page);
    for line in ending(suite).lines() {
        page.wrapped("", "  ", line, Style::new());
    }
    if let Some(dir) = suite.cases.iter().find_map(Case::report_dir) {
        let _ = writeln!(page, "next: zprobe show {}", one_line(&dir.to_string_lossy()));
    }
    page.into_text()
}

/// Renders a line for each case that needs attention, and a summary line.
pub fn concise(suite: &Visible<Suite>) -> String {
    let mut text = String::new();
    if let Some(why) = &suite.unchecked {
        let _ = writeln!(text, "NOT CHECKED: {why}");
    }
    for case in &suite.cases {
        if case.status.is_bad() {
            let found = case.findings.iter().flat_map(|it| &it.finding.known);
            let fixes = found.filter_map(|bug| Some(format!("; fix: {}", bug.upgrade.as_ref()?)));
            let fixes = fixes.collect::<String>();
            let (status, id, line) = (label(case.status), case.id(), first_line(case));
            let line = format!("{status}: {id}: {line}{fixes}; again: {}", case.command);
            text += &(one_line(&line) + "\n");
        }
    }
    text + &ending(suite)
}

/// The lines about skipped cases and about entries of the baseline that need attention, and the summary.
fn ending(suite: &Suite) -> String {
    let mut text = String::new();
    for skipped in suite.skipped() {
        text += &format!("skipped {}\n", one_line(&skipped));
    }
    for notice in &suite.notices {
        let place = format!("{}:{}", notice.file, notice.line);
        let line = format!("{} baseline entry: {place}: {}", notice.kind, notice.message);
        text += &(one_line(&line) + "\n");
    }
    text + &summary(suite) + "\n"
}

/// The summary of the suite: `31 of 32 probes passed, 1 failed, 10 skipped, in 3.1 s`.
pub(in crate::render) fn summary(suite: &Suite) -> String {
    let skipped = suite.count(Status::Skipped);
    let passed = suite.count(Status::Passed);
    let mut text = of_all(passed, suite.cases.len() - skipped, "probe") + " passed";
    for status in Status::ALL.iter().filter(|status| **status != Status::Passed) {
        let count = suite.count(*status);
        if count > 0 {
            let _ = write!(text, ", {count} {}", words(*status));
        }
    }
    let _ = write!(text, ", in {:.1} s", suite.seconds);
    text
}

/// Writes a cause with all details of its first case; the other cases are only named.
fn failure(page: &mut TerminalPage, cause: &Cause<'_>) {
    let case = cause.first;
    let style = style(case.status);
    let _ = writeln!(page, "\n{style}{}{style:#}  {}", label(case.status), one_line(&case.id()));
    page.paragraph("", &case.description);
    if !cause.others.is_empty() {
        let others: Vec<String> = cause.others.iter().map(|case| case.id()).collect();
        let count = amount(others.len(), "other probe");
        page.paragraph("", &format!("and {count} with the same cause: {}", others.join(", ")));
    }
    match &case.reason {
        Some(reason) => page.paragraph("", reason),
        None => page.paragraph("", &format!("expected {}, got {}", case.expected, in_short(case))),
    }
    for it in &case.findings {
        match &it.accepted {
            None if it.finding.limit.is_some() => limit(page, &it.finding),
            None => page.finding(&it.finding),
            Some(_) => {
                let _ = writeln!(page, "\n{} (accepted)", it.finding.title());
            }
        }
    }
    again(page, case);
}

fn accepted(page: &mut TerminalPage, case: &Case) {
    let style = style(case.status);
    let _ = writeln!(page, "\n{style}{}{style:#}  {}", label(case.status), one_line(&case.id()));
    for it in &case.findings {
        page.paragraph("", &format!("{}: {}", it.finding.title(), it.finding.message));
        if let Some(accepted) = &it.accepted {
            page.paragraph("", &accepted.describe());
        }
    }
}

/// Writes one line about the limit of this machine that ended a run with findings.
fn limit(page: &mut TerminalPage, finding: &Finding) {
    let why = finding.limit.as_deref().unwrap_or_default();
    let _ = writeln!(page, "\n{}", finding.title());
    page.paragraph("", &format!("the run ended early, because it cannot run here: {why}"));
}

/// Writes the command that runs only this case, and the directory in which the case is recorded.
fn again(page: &mut TerminalPage, case: &Case) {
    let _ = writeln!(page, "  again: {}", one_line(&case.command));
    if let Some(dir) = &case.run_dir {
        let _ = writeln!(page, "  recorded in {}", one_line(&dir.to_string_lossy()));
    }
}

fn words(status: Status) -> &'static str {
    match status {
        Status::NotRun => "could not be run",
        status => status.name(),
    }
}

/// The word for a status, in capitals if the case needs attention.
fn label(status: Status) -> String {
    let words = words(status);
    match status {
        Status::NotRun => "NOT RUN".to_owned(),
        status if status.is_bad() => words.to_uppercase(),
        _ => words.to_owned(),
    }
}

fn style(status: Status) -> Style {
    let color = match status {
        Status::Passed => AnsiColor::Green,
        Status::Accepted | Status::Inconclusive | Status::Skipped => AnsiColor::Yellow,
        Status::Failed | Status::Crashed | Status::NotRun => AnsiColor::Red,
    };
    Style::new().bold().fg_color(Some(color.into()))
}
