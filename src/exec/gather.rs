//! From the notes of all ranks to a trace.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::path::Path;

use anyhow::Result;

use super::notes::{Agreed, Backward, Joined, Line, Note, Notes};
use super::processes::{Process, Processes};
use super::{Order, standing};
use crate::launch::{now_ns, record_all};
use crate::spec::{Backend, Device, Dtype, Found, RunSpec, ScriptOptions};
use crate::trace::{Event, Outcome};

/// Reason why a script that has run left no trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// No process called a backward under the watch.
    NobodyJoined {
        /// Outcome of the command; none if it was killed.
        outcome: Option<Outcome>,
        /// True if the user ended it.
        interrupted: bool,
        /// True if it was silent for too long.
        timed_out: bool,
        /// Accounts that ranks gave of a failure, each with the rank.
        failures: Vec<String>,
    },
    /// The watch failed before an optimizer had stepped.
    GaveUp {
        /// Outcome of the command; none if it was ended.
        outcome: Option<Outcome>,
        /// Reason for it.
        why: String,
    },
    /// The ranks ended before an optimizer had stepped.
    NoStep {
        /// Outcome of the command; none if it was ended.
        outcome: Option<Outcome>,
    },
}

impl Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NobodyJoined { interrupted: true, .. } => {
                "interrupted before any process had called backward"
            }
            Self::NobodyJoined { timed_out: true, .. } => {
                "no process called backward in time; raise --timeout if the script takes longer to load"
            }
            Self::NobodyJoined { outcome: Some(Outcome::Code(code)), failures, .. } if *code != 0 => {
                write!(f, "the command failed with exit code {code} before any process had called backward")?;
                return failures.iter().try_for_each(|failure| write!(f, "; {failure}"));
            }
            Self::NobodyJoined { .. } => {
                "no process of the command called backward while zprobe watched: it ended before \
                 its first backward, its gradients come from torch.autograd.grad or from elsewhere, or its \
                 launcher keeps PYTHONPATH from its ranks (python -I or -E, mpirun without -x PYTHONPATH)"
            }
            Self::GaveUp { why, .. } => return f.write_str(why),
            Self::NoStep { .. } => {
                "no optimizer stepped in the script: zprobe sees the steps of torch.optim.Optimizer, and \
                 needs three of them"
            }
        })
    }
}

impl NoAnswer {
    /// Outcome of the command, if it ended by itself.
    pub fn outcome(&self) -> Option<Outcome> {
        match self {
            Self::NobodyJoined { interrupted: true, .. }
            | Self::NobodyJoined { timed_out: true, .. } => None,
            Self::NobodyJoined { outcome, .. }
            | Self::GaveUp { outcome, .. }
            | Self::NoStep { outcome } => *outcome,
        }
    }
}

/// End of a script's command.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// Outcome of the command; none if it was killed, or goes on.
    pub outcome: Option<Outcome>,
    /// True if the user ended it.
    pub interrupted: bool,
    /// True if it was ended because it was silent for too long.
    pub timed_out: bool,
}

impl End {
    /// True if the command failed by itself.
    fn failed(self) -> bool {
        !matches!(self.outcome, None | Some(Outcome::Code(0)))
    }
}

/// Writes the trace of a script whose ranks have noted down all that they will.
///
/// # Errors
/// When the trace cannot be written.
pub fn gather(
    order: &Order,
    run_id: &str,
    run_dir: &Path,
    notes: &Notes,
    processes: &Processes,
    end: End,
) -> Result<Result<(), NoAnswer>> {
    let End { outcome, interrupted, timed_out } = end;
    let of_ranks = processes.of_ranks(&notes.joined());
    let world_size = notes.world_size().or_else(|| {
        let last = of_ranks.keys().max().filter(|_| timed_out)?;
        Some(processes.world_size().unwrap_or(0).max(last + 1))
    });
    let Some(world_size) = world_size else {
        let failures = failures(&of_ranks);
        return Ok(Err(NoAnswer::NobodyJoined { outcome, interrupted, timed_out, failures }));
    };
    let broke = !interrupted && (timed_out || end.failed() || !failures(&of_ranks).is_empty());
    let mut unbegun = unbegun(notes, broke);
    // A backward that raises an exception is noted like one that came to its end.
    let in_backward = |rank: &usize| of_ranks.get(rank).is_some_and(|it| it.failed_in_backward());
    unbegun.retain(|rank, _| !in_backward(rank));
    // A rank that waits for one that hangs gives up at last.
    let gave_up_first = !timed_out && steps(notes) == 0 && gave_up(notes).is_some();
    let told = broke && !gave_up_first;
    let Some(spec) = spec(order, notes, world_size, told.then_some(&unbegun)) else {
        let by_itself = !interrupted && !timed_out;
        let outcome = outcome.filter(|_| by_itself);
        return Ok(Err(match gave_up(notes) {
            Some(why) => NoAnswer::GaveUp { outcome, why },
            None => NoAnswer::NoStep { outcome },
        }));
    };
    let names = names(notes);
    let mut events: Vec<(Option<usize>, u64, Event)> = Vec::new();
    let (mut unfinished, mut end) = ((0..world_size).collect::<Vec<_>>(), 0);
    for (&rank, lines) in notes.ranks.range(..world_size) {
        for (index, line) in lines.iter().enumerate() {
            end = end.max(line.t_ns);
            let at = line.t_ns;
            let mut add = |event| events.push((Some(rank), at, event));
            match &line.note {
                Note::Joined(Joined { pid, versions, device, .. }) => {
                    add(Event::RankReady { versions: versions.clone(), device: device.clone() });
                    events.push((None, at, Event::RankSpawned { rank, pid: *pid }));
                }
                Note::Backward(backward) => backward_events(backward, &names).for_each(add),
                Note::Agreed(_) | Note::Stepped { .. } => {}
                Note::GivenUp { step, event } => {
                    events.retain(|(sender, _, told)| {
                        let is_of_it = *sender == Some(rank) && told.moment().0 == Some(*step);
                        !is_of_it || matches!(told, Event::WindowGivenUp { .. })
                    });
                    events.push((Some(rank), at, (**event).clone()));
                }
                Note::Event(event) => {
                    if **event == Event::Finished {
                        unfinished.retain(|it| *it != rank);
                    }
                    // The process tells of an exception what the script hides behind an exit code.
                    if !matches!(**event, Event::Failed { .. }) || !of_ranks.contains_key(&rank) {
                        add((**event).clone());
                    }
                }
            }
            if let Some((_, event)) = unbegun.get(&rank).filter(|(last, _)| *last == index) {
                events.push((Some(rank), at, event.clone()));
            }
        }
    }
    let over = now_ns().max(end);
    for (&rank, process) in
        of_ranks.range(..world_size).filter(|(rank, _)| unfinished.contains(rank))
    {
        let failed = |message: &str| Event::Failed { message: message.to_owned() };
        let noted = notes.ranks.get(&rank).and_then(|lines| failure(lines));
        events.extend(process.failure().or(noted).map(|it| (Some(rank), over, failed(it))));
        if notes.ranks.get(&rank).is_none_or(Vec::is_empty) {
            events.push((None, over, Event::RankSpawned { rank, pid: process.pid() }));
        }
        events.extend(process.stacks_taken(rank).into_iter().map(|event| (None, over, event)));
    }
    // Of a step that did not come to its end nothing is told.
    events.retain(|(_, _, event)| {
        let (step, microbatch) = event.moment();
        step.is_none_or(|step| step < spec.steps)
            && microbatch.is_none_or(|it| it < spec.gradient_accumulation_steps)
    });
    // The processes write side by side; a rank exists before it says anything.
    events.sort_by_key(|(sender, at, _)| (*at, sender.is_some()));
    if interrupted {
        events.push((None, over, Event::Interrupted));
    }
    let outcome = |rank: usize| of_ranks.get(&rank).and_then(|process| processes.outcome(process));
    if timed_out {
        let silent = unfinished.iter().copied().filter(|rank| outcome(*rank).is_none()).collect();
        let waiting = Vec::new();
        events.push((None, over, Event::TimedOut { silent, timeout_s: order.timeout_s, waiting }));
    }
    let ended = |rank| {
        let outcome = if !unfinished.contains(&rank) {
            Outcome::Code(0)
        } else if let Some(outcome) = outcome(rank) {
            outcome
        } else if timed_out || interrupted {
            Outcome::Reaped
        } else {
            Outcome::Unseen
        };
        (None, over, Event::RankExited { rank, outcome })
    };
    events.extend((0..world_size).map(ended));
    record_all(run_dir, run_id, &spec, events)?;
    Ok(Ok(()))
}

/// Accounts that ranks gave of a failure, each with the rank.
fn failures(of_ranks: &BTreeMap<usize, &Process>) -> Vec<String> {
    let account =
        |(rank, process): (&usize, &&Process)| Some(format!("rank {rank}: {}", process.account()?));
    of_ranks.iter().filter_map(account).collect()
}

/// The failure that a rank has noted down.
fn failure(lines: &[Line]) -> Option<&str> {
    lines.iter().find_map(|line| match &line.note {
        Note::Event(event) => match &**event {
            Event::Failed { message } => Some(message.as_str()),
            _ => None,
        },
        _ => None,
    })
}

/// The beginning of the microbatch that each rank came to and whose backward it never began, by rank,
/// with the index of the note after which it came; none unless the script broke.
fn unbegun(notes: &Notes, broke: bool) -> BTreeMap<usize, (usize, Event)> {
    let microbatches = agreed(notes).map(|agreed| agreed.microbatches).max();
    let ranks = notes.ranks.iter().filter(|(_, lines)| broke && !has_finished(lines));
    ranks
        .filter_map(|(rank, lines)| Some((*rank, standing::unbegun(lines, microbatches)?)))
        .collect()
}

fn has_finished(lines: &[Line]) -> bool {
    lines
        .last()
        .is_some_and(|line| matches!(&line.note, Note::Event(event) if **event == Event::Finished))
}

/// Agreements of the ranks on the numbers of their microbatches.
fn agreed(notes: &Notes) -> impl Iterator<Item = &Agreed> {
    let all = notes.ranks.values().flatten();
    all.filter_map(|line| if let Note::Agreed(agreed) = &line.note { Some(agreed) } else { None })
}

/// Reason why a rank stopped watching, if one did.
fn gave_up(notes: &Notes) -> Option<String> {
    notes.ranks.values().flatten().find_map(|line| match &line.note {
        Note::Event(event) => match &**event {
            Event::NotObserved { why, .. } => Some(why.clone()),
            _ => None,
        },
        _ => None,
    })
}

/// Number of steps that every rank took.
fn steps(notes: &Notes) -> usize {
    notes.ranks.values().map(|lines| steps_of(lines)).min().unwrap_or(0)
}

/// Number of steps that all those ranks took which took any. A rank that never steps may be ended before it can say so.
fn steps_of_those_that_step(notes: &Notes) -> usize {
    let steps = notes.ranks.values().map(|lines| steps_of(lines));
    steps.filter(|count| *count > 0).min().unwrap_or(0)
}

/// Number of steps that a rank took.
fn steps_of(lines: &[Line]) -> usize {
    let is_end = |line: &&Line| matches!(&line.note, Note::Event(event) if matches!(**event, Event::StepEnded { .. }));
    lines.iter().filter(is_end).count()
}

/// The specification that the script turned out to have; none if no step came to its end, unless the
/// script broke before: `unbegun` has the microbatches that were never begun then.
fn spec(
    order: &Order,
    notes: &Notes,
    world_size: usize,
    unbegun: Option<&BTreeMap<usize, (usize, Event)>>,
) -> Option<RunSpec> {
    let all = || notes.ranks.values().flatten().map(|line| &line.note);
    let joined =
        all().find_map(|note| if let Note::Joined(joined) = note { Some(joined) } else { None });
    let dtype = agreed(notes)
        .map(|agreed| agreed.dtype)
        .max_by(|a: &Dtype, b| a.unit_roundoff().total_cmp(&b.unit_roundoff()));
    let steps = if unbegun.is_none() { steps_of_those_that_step(notes) } else { steps(notes) };
    if unbegun.is_none() && (steps == 0 || dtype.is_none()) {
        return None;
    }
    let of_backwards = all().filter_map(|note| match note {
        Note::Backward(backward) => Some((backward.step, backward.microbatch)),
        Note::Event(event) => match event.moment() {
            (Some(step), Some(microbatch)) => Some((step, microbatch)),
            _ => None,
        },
        _ => None,
    });
    let never_begun = unbegun.into_iter().flatten();
    let never_begun = never_begun.filter_map(|(_, (_, event))| match event.moment() {
        (Some(step), Some(microbatch)) => Some((step, microbatch)),
        _ => None,
    });
    let moments: Vec<(usize, usize)> = of_backwards.chain(never_begun).collect();
    let begun = moments.iter().map(|(step, _)| step + 1).max().unwrap_or(0);
    let of_a_step = agreed(notes).map(|agreed| agreed.microbatches).max();
    let microbatches = of_a_step
        .or_else(|| moments.iter().map(|(_, microbatch)| microbatch + 1).max())
        .unwrap_or(1);
    let found = Found {
        world_size,
        // A step that a script leaves unfinished at its end is none.
        begun: if steps == 1 && unbegun.is_none() { 1 } else { begun },
        steps,
        microbatches,
        reserved: agreed(notes).map(|agreed| agreed.reserved).max().unwrap_or(microbatches),
        dtype: dtype.unwrap_or(Dtype::Fp32),
        device: joined.map_or(Device::Cpu, |joined| joined.kind),
        backend: joined.map_or(Backend::Gloo, |joined| joined.backend),
        seed: order.seed,
        timeout_s: order.timeout_s,
    };
    let words = order.command.iter().map(|word| word.to_string_lossy().into_owned());
    Some(RunSpec::of_script(
        ScriptOptions {
            command: words.collect(),
            dry: order.dry,
            observe: order.observe,
            weighting: order.weighting,
            scale: order.scale,
            reserved: None,
        },
        &found,
    ))
}

/// Indices of the parameters in the model's order, by name.
fn names(notes: &Notes) -> BTreeMap<String, usize> {
    let model = notes.ranks.values().flatten().find_map(|line| match &line.note {
        Note::Event(event) => match &**event {
            Event::Model { params } => Some(params),
            _ => None,
        },
        _ => None,
    });
    let names = model.into_iter().flatten().map(|param| param.name.clone());
    names.enumerate().map(|(index, name)| (name, index)).collect()
}

/// The events of a backward.
fn backward_events(
    backward: &Backward,
    names: &BTreeMap<String, usize>,
) -> impl Iterator<Item = Event> {
    let Backward { step, microbatch, nodes, reached, fired } = backward;
    let mut params: Vec<usize> =
        reached.iter().filter_map(|name| names.get(name).copied()).collect();
    params.sort_unstable();
    let mut counts = vec![0; names.len()];
    for (name, count) in fired {
        if let Some(&index) = names.get(name) {
            counts[index] = *count;
        }
    }
    [
        Event::GraphWalked {
            step: *step,
            microbatch: *microbatch,
            accumulate_grad_nodes: *nodes,
            params,
        },
        Event::HooksFired { step: *step, microbatch: *microbatch, fired: counts, arrived: None },
    ]
    .into_iter()
}
