//! The terminal report: verdict first, then the reasons, then the facts.

mod journey;
pub(super) mod setting;
mod tables;
mod text;
pub(super) mod weights;

use std::fmt::Write as _;

pub(super) use self::setting::setting;
pub(super) use self::text::paragraph;
use self::text::{BOLD, DIM, section, verdict_style};
use super::{Report, concise};
use crate::report::words::{amount, by_rank};
use crate::report::{Ending, Finding, KnownBug, Minimised, Rank, Severity, Verdict};
use crate::spec::Observation;
use crate::trace::{Outcome, Point};

pub(super) fn render(report: &Report) -> String {
    let mut text = String::new();
    let style = verdict_style(report.verdict);
    let verdict = report.verdict.name().to_uppercase();
    let _ = writeln!(text, "{style}{verdict}{style:#}  {}", headline(report));
    for line in setting(report) {
        for line in text::wrapped(&line) {
            let _ = writeln!(text, "{DIM}{line}{DIM:#}");
        }
    }
    for finding in &report.findings {
        finding_text(&mut text, finding);
    }
    if let Some(minimised) = &report.minimised {
        section(&mut text, &format!("Smallest configuration that shows {}", minimised.code));
        smallest(&mut text, minimised);
    }
    if let Some(divergence) = &report.first_divergence {
        section(&mut text, "The journey of the gradient, to where it departs from the plan");
        journey::journey(&mut text, report, divergence);
    }
    if report.ranks.iter().any(|rank| !rank.finished) {
        section(&mut text, "What every rank did last");
        ranks(&mut text, &report.ranks);
    }
    if !report.norms.is_empty() {
        section(&mut text, "Norm of the gradient, per rank (difference to rank 0)");
        text.push_str(&tables::norm_table(report));
    }
    if steps_taken(report) > 0 {
        section(&mut text, "Contribution weights (1 is right)");
        weights::weights(&mut text, report);
    }
    if !report.hooks.counts.is_empty() {
        section(&mut text, "Gradient hooks");
        tables::hooks(&mut text, report);
    }
    if !report.buckets.is_empty() {
        section(&mut text, "Bucket flushes");
        text.push_str(&tables::bucket_table(&report.buckets, report.ranks.len()));
    }
    if !report.run.engine_facts.is_empty() {
        section(&mut text, "What the engine says about itself");
        facts(&mut text, report);
    }
    section(&mut text, "What this run could have seen");
    paragraph(&mut text, "smallest deviation: ", &report.power.statement);
    for precision in &report.precision {
        paragraph(&mut text, "sums: ", &precision.describe());
    }
    for missing in &report.not_exercised {
        paragraph(&mut text, "not exercised: ", missing);
    }
    text
}

/// More ranks than this are told together, without their standard error.
const LISTED_RANKS: usize = 16;

/// The verdict's reason in one line.
pub(super) fn headline(report: &Report) -> String {
    let spec = &report.run.spec;
    let per_step = spec.contributions_per_step();
    match (report.verdict, &report.findings[..]) {
        (Verdict::Clean, _) => {
            let steps = steps_taken(report);
            let skipped = match spec.steps - steps {
                0 => String::new(),
                skipped => format!("; {} skipped, as it should be", amount(skipped, "step")),
            };
            let repeats = report.repeats.as_ref().map_or(String::new(), |repeats| {
                format!(", the same to the last bit in {} repeats", repeats.verdicts.len())
            });
            format!(
                "all {} of {} reached the optimizer exactly once{repeats}{skipped}",
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

/// The first few facts; the report has them all.
fn facts(text: &mut String, report: &Report) {
    const SHOWN: usize = 8;
    let facts = &report.run.engine_facts;
    for (name, value) in facts.iter().take(SHOWN) {
        paragraph(text, &format!("{name}: "), value);
    }
    if facts.len() > SHOWN {
        paragraph(text, "", &format!("and {} more in report.json", facts.len() - SHOWN));
    }
}

/// Steps in which weights were read: the others were skipped.
fn steps_taken(report: &Report) -> usize {
    let spec = &report.run.spec;
    let last_word = match spec.observe {
        Observation::Full => Point::OptimizerInput,
        Observation::Outcome => Point::Parameters,
    };
    let was_read = |step: &usize| {
        report.contributions.iter().any(|entry| (entry.point, entry.step) == (last_word, *step))
    };
    (0..spec.steps).filter(was_read).count()
}

pub(super) fn finding_text(text: &mut String, finding: &Finding) {
    let style = match finding.severity {
        Severity::Error => verdict_style(Verdict::Findings),
        Severity::Warning => verdict_style(Verdict::Inconclusive),
    };
    let place = concise::place(finding);
    let _ = writeln!(
        text,
        "\n{style}{}{style:#} {BOLD}{}{BOLD:#}{}{place}",
        finding.code,
        finding.name,
        if place.is_empty() { "" } else { "  " },
    );
    paragraph(text, "", &finding.message);
    for evidence in &finding.evidence {
        paragraph(text, "- ", evidence);
    }
    for consequence in &finding.consequences {
        paragraph(text, &format!("= {}: ", consequence.code), &consequence.message);
    }
    for known in &finding.known {
        known_bug(text, known);
    }
    let _ = writeln!(text, "  {DIM}more: zprobe explain {}{DIM:#}", finding.code);
}

/// A bug that is known, and what to do about it.
fn known_bug(text: &mut String, known: &KnownBug) {
    let fixed = match &known.fixed {
        Some(release) => format!("fixed in {release}"),
        None => "not fixed in any release that was tried".to_owned(),
    };
    paragraph(
        text,
        &format!("known bug {}: ", known.name),
        &format!("{} ({}; {fixed})", known.title, known.affected),
    );
    for link in &known.links {
        paragraph(text, "see: ", link);
    }
    paragraph(text, "cause: ", &known.cause);
    paragraph(text, "what to do: ", &known.workaround);
}

/// What to type, and what led there. The command is not wrapped: it is there to be copied.
fn smallest(text: &mut String, minimised: &Minimised) {
    let _ = writeln!(text, "  {BOLD}{}{BOLD:#}", minimised.command);
    for trial in &minimised.trials {
        let label = if trial.kept { "still: " } else { "gone: " };
        paragraph(text, label, &format!("{}: {}", trial.change, trial.said));
    }
    let runs = amount(minimised.trials.len(), "run");
    let end = if minimised.complete {
        format!("{runs}; nothing else can be taken from it alone")
    } else {
        format!("{runs}, which was the limit; --minimise-runs allows more")
    };
    paragraph(text, "", &end);
}

fn ranks(text: &mut String, ranks: &[Rank]) {
    let outcome = |rank: &Rank| match rank.outcome {
        Some(Outcome::Code(code)) => format!("exit code {code}"),
        Some(Outcome::Signal(signal)) => format!("signal {signal}"),
        Some(Outcome::Reaped) => "ended by zprobe".to_owned(),
        None => "no known end".to_owned(),
    };
    if ranks.len() > LISTED_RANKS {
        let ended = |rank: &Rank| (rank.rank, format!("{}, {}", outcome(rank), rank.last));
        for line in by_rank(ranks.iter().map(ended)) {
            paragraph(text, "", &line);
        }
    } else {
        for rank in ranks {
            paragraph(text, &format!("rank {} ({}): ", rank.rank, outcome(rank)), &rank.last);
            for line in rank.stderr.iter().flat_map(|tail| tail.lines()) {
                let _ = writeln!(text, "    {DIM}| {line}{DIM:#}");
            }
        }
    }
}
