//! Settles the trace of a user's script: completes its specification, which is known only late, and converts its
//! records into the form of other traces.
//!
//! While a script runs, the numbers of its ranks, steps and microbatches are unknown; the ranks report them one after
//! the other. [`settle`] reads the numbers from the records of the ranks ([`told`]).

mod no_answer;
#[cfg(test)]
mod tests;
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::{Event, Outcome, Record};
use crate::spec::RunSpec;
pub use no_answer::NoAnswer;
use told::{Told, Unbegun};

/// Converts the records of a script into the form of other traces, and replaces the specification from the start of
/// the script by the complete specification.
///
/// # Errors
/// Fails if the script ended too early for a specification.
pub(super) fn settle(records: &mut Vec<Record>) -> Result<(), NoAnswer> {
    let Some(Record { event: Event::RunStarted { spec, .. }, .. }) = records.first() else {
        return Ok(());
    };
    let told = Told::of(records);
    let world_size = told.world_size()?;
    let unbegun = told.unbegun();
    let settled = told.spec(spec, world_size, &unbegun)?;
    let let_go: Vec<usize> = told.finished().filter(|rank| !told.ended.contains(rank)).collect();
    let agents = told.agents.clone();
    let failures: BTreeMap<usize, usize> =
        told.failures.iter().map(|(rank, (index, _))| (*rank, *index)).collect();
    let mut kept: Vec<Record> = Vec::with_capacity(records.len());
    for (index, record) in std::mem::take(records).into_iter().enumerate() {
        let (sender, t_ns) = (record.rank, record.t_ns);
        if sender.is_some_and(|rank| rank >= world_size) {
            continue;
        }
        if let Event::WindowGivenUp { step, .. } = record.event {
            forget(&mut kept, sender, step);
        }
        // The failure message that the process itself has left comes last, and replaces the message of the script.
        let is_replaced = matches!(record.event, Event::Failed { .. })
            && sender.is_some_and(|rank| failures.get(&rank) != Some(&index));
        if let Event::AgentJoined { agent, .. } = record.event {
            kept.extend(blocks(record, agents.get(&agent)));
        } else if !is_of_joining(&record.event) && is_in(&settled, &record.event) && !is_replaced {
            kept.push(record);
        }
        let begun = unbegun.values().find(|it| it.behind == index).map(Unbegun::event);
        for event in begun.into_iter().filter(|event| is_in(&settled, event)) {
            kept.push(record_of(&kept, sender, t_ns, event));
        }
    }
    // The run does not wait for the process of a rank that has finished, so its end may be missing.
    let last = kept.last().map_or(0, |record| record.t_ns);
    for rank in let_go {
        let event = Event::RankExited { rank, outcome: Outcome::Code(0) };
        kept.push(record_of(&kept, None, last, event));
    }
    count_anew(&mut kept);
    if let Some(Record { event: Event::RunStarted { spec, .. }, .. }) = kept.first_mut() {
        **spec = settled;
    }
    *records = kept;
    Ok(())
}

/// Returns the record of an agent once for each block of successive ranks whose processes the agent's command has
/// started.
fn blocks(joined: Record, ranks: Option<&BTreeSet<usize>>) -> Vec<Record> {
    let mut blocks: Vec<Range<usize>> = Vec::new();
    for &rank in ranks.into_iter().flatten() {
        match blocks.last_mut() {
            Some(block) if block.end == rank => block.end += 1,
            _ => blocks.push(rank..rank + 1),
        }
    }
    let of_block = |block: Range<usize>| {
        let mut record = joined.clone();
        if let Event::AgentJoined { first_rank, ranks, .. } = &mut record.event {
            (*first_rank, *ranks) = (block.start, block.len());
        }
        record
    };
    blocks.into_iter().map(of_block).collect()
}

/// Returns a record with this event, and with the version and run id of the first record.
fn record_of(kept: &[Record], rank: Option<usize>, t_ns: u64, event: Event) -> Record {
    let Record { v, run, .. } = &kept[0];
    Record { v: *v, run: run.clone(), rank, seq: 0, t_ns, event }
}

/// Removes the events of a rank about a step whose microbatches the rank has given up.
fn forget(kept: &mut Vec<Record>, sender: Option<usize>, step: usize) {
    kept.retain(|Record { rank, event, .. }| {
        let is_of_it = *rank == sender && event.moment().0 == Some(step);
        !is_of_it || matches!(event, Event::WindowGivenUp { .. })
    });
}

/// True for an event that only describes the progress of a script. The specification and the starts of phases contain
/// the same facts.
fn is_of_joining(event: &Event) -> bool {
    matches!(
        event,
        Event::RankJoined { .. }
            | Event::RanksAgreed { .. }
            | Event::CollectivesIssued { .. }
            | Event::CommandEnded { .. }
    )
}

/// True unless the event is about a step or microbatch that the settled specification does not have.
fn is_in(spec: &RunSpec, event: &Event) -> bool {
    let (step, microbatch) = event.moment();
    step.is_none_or(|step| step < spec.steps)
        && microbatch.is_none_or(|it| it < spec.gradient_accumulation_steps)
}

/// Renumbers the records of each rank and of the launcher.
fn count_anew(records: &mut [Record]) {
    let mut next: BTreeMap<Option<usize>, u64> = BTreeMap::new();
    for record in records {
        let next = next.entry(record.rank).or_default();
        record.seq = *next;
        *next += 1;
    }
}
