//! Renders a report in a few lines: one line for each machine of the run, then the verdict and the findings.

use std::collections::BTreeSet;

use super::concise;
use crate::words::{abridged, counted, one_line};
use crate::{Rank, Report, Verdict};
use zprobe_model::trace::{Event, Trace};
use zprobe_model::visible::Visible;

/// Renders one line for each machine of a run, and the verdict with its findings.
///
/// # Errors
/// If a number in the report is not finite, which never happens in a report that the crate `zprobe-diagnose` builds.
pub fn machines(report: &Report, trace: &Trace) -> anyhow::Result<String> {
    let machines = Machine::all(report, trace);
    let machines = Visible::of(&machines)?;
    let (report, device) = (Visible::of(report)?, report.run.spec.device);
    let departed = departed(&report);
    let lines = machines.iter().map(|Machine { name, ranks }| {
        let what = what_happened(&report, ranks, &departed);
        one_line(&format!("{name}: {} on {device}: {what}", counted("rank", ranks))) + "\n"
    });
    Ok(lines.chain([concise::render(&report)]).collect())
}

/// A machine with its ranks of the run, in ascending order.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
pub(super) struct Machine {
    pub name: String,
    pub ranks: Vec<usize>,
}

impl Machine {
    /// The machines in the order of their first ranks. The trace of a run on one machine does not name the machine.
    pub fn all(report: &Report, trace: &Trace) -> Vec<Self> {
        let mut machines: Vec<Self> = Vec::new();
        for record in &trace.records {
            let Event::AgentJoined { machine, first_rank, ranks, .. } = &record.event else {
                continue;
            };
            let held = *first_rank..first_rank + ranks;
            match machines.iter_mut().find(|known| known.name == *machine) {
                Some(known) => known.ranks.extend(held),
                None => machines.push(Self { name: machine.clone(), ranks: held.collect() }),
            }
        }
        if machines.is_empty() {
            let ranks = (0..report.run.spec.world_size).collect();
            machines.push(Self { name: "this machine".to_owned(), ranks });
        }
        machines
    }
}

/// The ranks of the first departure from the plan, and the ranks that are at fault.
fn departed(report: &Report) -> BTreeSet<usize> {
    let first = report.first_divergence.iter().flat_map(|it| &it.ranks).copied();
    let at_fault = report.findings.iter().filter_map(|finding| finding.rank);
    first.chain(at_fault).collect()
}

/// The outcome of the ranks of one machine, in words.
fn what_happened(report: &Report, ranks: &[usize], departed: &BTreeSet<usize>) -> String {
    let of_machine = report.ranks.iter().filter(|rank| ranks.contains(&rank.rank));
    let ended: Vec<String> = of_machine.filter(|rank| !rank.finished).map(ending).collect();
    if !ended.is_empty() {
        return abridged(&ended);
    }
    let departed: Vec<usize> = ranks.iter().copied().filter(|it| departed.contains(it)).collect();
    match (report.verdict, &departed[..]) {
        (Verdict::Clean, _) => "as planned".to_owned(),
        (_, []) => "finished".to_owned(),
        (_, departed) => format!("not as planned on {}", counted("rank", departed)),
    }
}

fn ending(rank: &Rank) -> String {
    format!("rank {}: {}, {}", rank.rank, rank.ending(), rank.last)
}
