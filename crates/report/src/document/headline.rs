//! The reason for the verdict of a run, in one line.

use std::collections::BTreeSet;

use crate::words::amount;
use crate::{Ending, Report, Verdict};
use zprobe_model::spec::Model;

/// The reason for the verdict of a run, in one line.
pub fn headline(report: &Report) -> String {
    let spec = &report.run.spec;
    match (report.verdict, &report.findings[..]) {
        (Verdict::Clean, _) => {
            let steps = steps_taken(report);
            let recorded = spec.recorded_steps().count();
            let of_all = if recorded < spec.steps {
                format!(" (recorded, out of {})", spec.steps)
            } else {
                String::new()
            };
            let skipped = match recorded - steps {
                0 => String::new(),
                others if has_longer_steps(report) => {
                    format!("; {} not read, or skipped", amount(others, "step"))
                }
                skipped => format!("; {} skipped, as it should be", amount(skipped, "step")),
            };
            let repeats = report.repeats.as_ref().map_or(String::new(), |repeats| {
                format!(", the same to the last bit in {} repeats", repeats.verdicts.len())
            });
            format!(
                "all {} of {}{of_all} reached the optimizer exactly once{repeats}{skipped}",
                amount(gradients_due(report), "gradient"),
                amount(steps, "step"),
            )
        }
        (Verdict::Inconclusive, _) => match report.run.ending {
            Ending::Interrupted => "interrupted before the ranks had finished".to_owned(),
            Ending::CutOff => "the trace ends before the run does".to_owned(),
            Ending::Complete => reason(report),
        },
        (_, []) => "not every rank finished".to_owned(),
        (_, [finding]) => format!("{} {}", finding.code, finding.name),
        (_, findings) => {
            let codes: Vec<&str> = findings.iter().map(|f| f.code.as_str()).collect();
            format!("{} findings: {}", findings.len(), codes.join(", "))
        }
    }
}

/// True if some steps of an observed script have more microbatches than its first step, so that their weights were not
/// read.
fn has_longer_steps(report: &Report) -> bool {
    let is_it = |part: &String| part.starts_with("microbatches after the first");
    report.run.spec.model == Model::Mlp && report.not_exercised.iter().any(is_it)
}

/// The reason why a complete run is inconclusive.
fn reason(report: &Report) -> String {
    let failed = report.run.not_observed.iter().find(|it| it.why.starts_with("zprobe failed"));
    let not_exercised = |what| report.not_exercised.iter().find_map(|it| it.strip_prefix(what));
    if let Some(failed) = failed {
        format!("{} was not observed: {}", failed.what, failed.why)
    } else if let Some(refused) = not_exercised("weights of ") {
        format!("weights were not read: {refused}")
    } else if let Some(why) = not_exercised("GPUs: ") {
        format!("no GPU was checked: {why}")
    } else {
        "too little of the run could be read; see the end of this report".to_owned()
    }
}

/// The number of gradients that were expected in the steps in which weights were read: one for each rank and microbatch
/// that uses some parameter.
fn gradients_due(report: &Report) -> usize {
    let last_word = report.run.spec.last_word();
    let mut due = BTreeSet::new();
    for entry in report.contributions.iter().filter(|entry| entry.point == last_word) {
        for (rank, row) in entry.expected.iter().enumerate() {
            let expected = row.iter().enumerate().filter(|(_, weight)| **weight != 0.0);
            due.extend(expected.map(|(microbatch, _)| (entry.step, rank, microbatch)));
        }
    }
    due.len()
}

/// The number of steps in which weights were read; the other recorded steps were skipped.
pub(super) fn steps_taken(report: &Report) -> usize {
    let spec = &report.run.spec;
    let last_word = spec.last_word();
    let was_read = |step: &usize| {
        report.contributions.iter().any(|entry| (entry.point, entry.step) == (last_word, *step))
    };
    spec.recorded_steps().filter(was_read).count()
}
