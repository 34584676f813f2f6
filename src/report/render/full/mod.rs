//! The terminal report: verdict first, then the reasons, then the facts.

mod tables;
mod text;
mod weights;

use std::fmt::Write as _;

use self::text::{BOLD, DIM, paragraph, section, verdict_style};
use super::{Report, concise};
use crate::report::words::amount;
use crate::report::{Ending, Finding, Rank, Severity, Verdict};
use crate::spec::Dtype;
use crate::trace::{Outcome, Point};

pub(super) fn render(report: &Report) -> String {
    let mut text = String::new();
    let style = verdict_style(report.verdict);
    let verdict = report.verdict.name().to_uppercase();
    let _ = writeln!(text, "{style}{verdict}{style:#}  {}", headline(report));
    for line in setting(report) {
        let _ = writeln!(text, "{DIM}{line}{DIM:#}");
    }
    for finding in &report.findings {
        finding_text(&mut text, finding);
    }
    if report.ranks.iter().any(|rank| !rank.finished) {
        section(&mut text, "What every rank did last");
        ranks(&mut text, &report.ranks);
    }
    if !report.norms.is_empty() {
        section(&mut text, "Norm of the gradient, per rank (difference to rank 0)");
        text.push_str(&tables::norm_table(report));
    }
    if report.contributions.iter().any(|entry| entry.point == Point::OptimizerInput) {
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
    section(&mut text, "What this run could have seen");
    paragraph(&mut text, "smallest deviation: ", &report.power.statement);
    for missing in &report.not_exercised {
        paragraph(&mut text, "not exercised: ", missing);
    }
    text
}

/// The verdict's reason in one line.
pub(super) fn headline(report: &Report) -> String {
    let spec = &report.run.spec;
    let per_step = spec.contributions_per_step();
    match (report.verdict, &report.findings[..]) {
        (Verdict::Clean, _) => format!(
            "all {} of {} reached the optimizer exactly once",
            amount(per_step * spec.steps, "gradient"),
            amount(spec.steps, "step"),
        ),
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

/// What was run, a line each for the step, the dtypes, the software and the fault.
fn setting(report: &Report) -> Vec<String> {
    let spec = &report.run.spec;
    let mut lines = vec![
        format!(
            "{} engine, ZeRO stage {}, {}, ga {}, {}, model {}",
            spec.engine,
            spec.stage,
            amount(spec.world_size, "rank"),
            spec.gradient_accumulation_steps,
            amount(spec.steps, "step"),
            spec.model,
        ),
        format!(
            "{}, accumulated in {}, communicated in {}",
            spec.dtype,
            spec.grad_accum_dtype,
            spec.comm_dtype.map_or("the engine's choice", Dtype::name),
        ),
    ];
    if let (Some(class), Some(inner)) = (&report.run.optimizer_class, &report.run.inner_optimizer) {
        let torch = report.run.versions.get("torch").map_or("unknown", String::as_str);
        lines.push(format!("{class} over {inner}, torch {torch}"));
    }
    lines.extend(spec.inject.map(|fault| format!("injected fault: {fault}")));
    lines
}

fn finding_text(text: &mut String, finding: &Finding) {
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
    let _ = writeln!(text, "  {DIM}more: zprobe explain {}{DIM:#}", finding.code);
}

fn ranks(text: &mut String, ranks: &[Rank]) {
    for rank in ranks {
        let outcome = match rank.outcome {
            Some(Outcome::Code(code)) => format!("exit code {code}"),
            Some(Outcome::Signal(signal)) => format!("signal {signal}"),
            Some(Outcome::Reaped) => "ended by zprobe".to_owned(),
            None => "no known end".to_owned(),
        };
        paragraph(text, &format!("rank {} ({outcome}): ", rank.rank), &rank.last);
        for line in rank.stderr.iter().flat_map(|tail| tail.lines()) {
            let _ = writeln!(text, "    {DIM}| {line}{DIM:#}");
        }
    }
}
