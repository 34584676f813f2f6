//! The terminal report: verdict first, then the reasons, then the facts.

mod journey;
pub(super) mod setting;
mod tables;
mod text;
pub(super) mod weights;

use std::fmt::Write as _;

use anstyle::Style;

pub(super) use self::setting::setting;
pub(super) use self::text::Page;
use self::text::{BOLD, DIM, verdict_style};
use super::{Report, concise};
use crate::report::words::{amount, by_rank, one_line};
use crate::report::{Ending, Finding, KnownBug, Minimised, Rank, Severity, Verdict};
use crate::visible::Visible;

pub(super) fn render(report: &Visible<Report>, width: usize) -> String {
    let mut page = Page::new(width);
    write(&mut page, report);
    page.into_text()
}

fn write(page: &mut Page, report: &Report) {
    let style = verdict_style(report.verdict);
    let verdict = report.verdict.name().to_uppercase();
    page.wrapped(&format!("{style}{verdict}{style:#}  "), "  ", &headline(report), Style::new());
    for line in setting(report) {
        page.wrapped("", "  ", &line, DIM);
    }
    for finding in &report.findings {
        finding_text(page, finding);
    }
    if let Some(minimised) = &report.minimised {
        page.section(&format!("Smallest configuration that shows {}", minimised.code));
        smallest(page, minimised);
    }
    if let Some(divergence) = &report.first_divergence {
        page.section("The journey of the gradient, to where it departs from the plan");
        journey::journey(page, report, divergence);
    }
    if report.ranks.iter().any(|rank| !rank.finished) {
        page.section("What every rank did last");
        ranks(page, &report.ranks);
    }
    if !report.norms.is_empty() {
        page.section("Norm of the gradient, per rank (difference to rank 0)");
        tables::norm_table(page, report);
    }
    if steps_taken(report) > 0 {
        page.section("Contribution weights (1 is right)");
        weights::weights(page, report);
    }
    if !report.hooks.counts.is_empty() {
        page.section("Gradient hooks");
        tables::hooks(page, report);
    }
    if !report.buckets.is_empty() {
        page.section("Bucket flushes");
        tables::bucket_table(page, &report.buckets, report.ranks.len());
    }
    if !report.run.engine_facts.is_empty() {
        page.section("What the engine says about itself");
        facts(page, report);
    }
    page.section("What this run could have seen");
    page.paragraph("smallest deviation: ", &report.power.statement);
    for precision in &report.precision {
        page.paragraph("sums: ", &precision.describe());
    }
    for missing in &report.not_exercised {
        page.paragraph("not exercised: ", missing);
    }
}

/// Most ranks that are listed one by one, with their standard error; more are told together,
/// without it.
const LISTED_RANKS: usize = 16;

/// Reason for the verdict, in one line.
pub(super) fn headline(report: &Report) -> String {
    let spec = &report.run.spec;
    let per_step = spec.contributions_per_step();
    match (report.verdict, &report.findings[..]) {
        (Verdict::Clean, _) => {
            let steps = steps_taken(report);
            let recorded = spec.recorded_steps().count();
            let of_all = if recorded < spec.steps {
                format!(" (recorded of {})", spec.steps)
            } else {
                String::new()
            };
            let skipped = match recorded - steps {
                0 => String::new(),
                skipped => format!("; {} skipped, as it should be", amount(skipped, "step")),
            };
            let repeats = report.repeats.as_ref().map_or(String::new(), |repeats| {
                format!(", the same to the last bit in {} repeats", repeats.verdicts.len())
            });
            format!(
                "all {} of {}{of_all} reached the optimizer exactly once{repeats}{skipped}",
                amount(per_step * steps, "gradient"),
                amount(steps, "step"),
            )
        }
        (Verdict::Inconclusive, _) => match report.run.ending {
            Ending::Interrupted => "interrupted before the ranks had finished".to_owned(),
            Ending::CutOff => "the trace ends before the run does".to_owned(),
            Ending::Complete => "too little could be read; see the end of this report".to_owned(),
        },
        (_, []) => "not every rank finished".to_owned(),
        (_, [finding]) => format!("{} {}", finding.code, finding.name),
        (_, findings) => {
            let codes: Vec<&str> = findings.iter().map(|f| f.code.as_str()).collect();
            format!("{} findings: {}", findings.len(), codes.join(", "))
        }
    }
}

/// Writes the first few facts about the engine; report.json has them all.
fn facts(page: &mut Page, report: &Report) {
    const SHOWN: usize = 8;
    let facts = &report.run.engine_facts;
    for (name, value) in facts.iter().take(SHOWN) {
        page.paragraph(&format!("{name}: "), value);
    }
    if facts.len() > SHOWN {
        page.paragraph("", &format!("and {} more in report.json", facts.len() - SHOWN));
    }
}

/// Number of steps in which weights were read: the others were skipped.
fn steps_taken(report: &Report) -> usize {
    let spec = &report.run.spec;
    let last_word = spec.last_word();
    let was_read = |step: &usize| {
        report.contributions.iter().any(|entry| (entry.point, entry.step) == (last_word, *step))
    };
    spec.recorded_steps().filter(was_read).count()
}

pub(super) fn finding_text(page: &mut Page, finding: &Finding) {
    let style = match finding.severity {
        Severity::Error => verdict_style(Verdict::Findings),
        Severity::Warning => verdict_style(Verdict::Inconclusive),
    };
    let place = concise::place(finding);
    let space = if place.is_empty() { "" } else { "  " };
    let (code, name) = (&finding.code, &finding.name);
    let title = format!("{style}{code}{style:#} {BOLD}{name}{BOLD:#}{space}");
    let _ = writeln!(page);
    page.wrapped(&title, "    ", &place, Style::new());
    page.paragraph("", &finding.message);
    for evidence in &finding.evidence {
        page.paragraph("- ", evidence);
    }
    for consequence in &finding.consequences {
        page.paragraph(&format!("= {}: ", consequence.code), &consequence.message);
    }
    for known in &finding.known {
        known_bug(page, known);
    }
    let _ = writeln!(page, "  {DIM}more: zprobe explain {}{DIM:#}", finding.code);
}

/// Writes a known bug, and what to do about it.
fn known_bug(page: &mut Page, known: &KnownBug) {
    page.paragraph(&format!("known bug {}: ", known.name), &known.description());
    for link in &known.links {
        page.paragraph("see: ", link);
    }
    page.paragraph("cause: ", &known.cause);
    page.paragraph("what to do: ", &known.workaround);
}

/// Writes the smallest command, and the trials that led there. The command is not wrapped: it is
/// there to be copied.
fn smallest(page: &mut Page, minimised: &Minimised) {
    let _ = writeln!(page, "  {BOLD}{}{BOLD:#}", one_line(&minimised.command));
    for trial in &minimised.trials {
        let label = if trial.kept { "still: " } else { "gone: " };
        page.paragraph(label, &format!("{}: {}", trial.change, trial.said));
    }
    let runs = amount(minimised.trials.len(), "run");
    let end = if minimised.complete {
        format!("{runs}; nothing else can be taken from it alone")
    } else {
        format!("{runs}, which was the limit; --minimise-runs allows more")
    };
    page.paragraph("", &end);
}

fn ranks(page: &mut Page, ranks: &[Rank]) {
    if ranks.len() > LISTED_RANKS {
        let ended = |rank: &Rank| (rank.rank, format!("{}, {}", rank.ending(), rank.last));
        for line in by_rank(ranks.iter().map(ended)) {
            page.paragraph("", &line);
        }
    } else {
        for rank in ranks {
            page.paragraph(&format!("rank {} ({}): ", rank.rank, rank.ending()), &rank.last);
            if let Some(tail) = &rank.stderr {
                page.quotation(tail);
            }
        }
    }
}
