//! From the notes of all ranks to a trace.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::path::Path;

use anyhow::Result;

use super::Order;
use super::notes::{Backward, Joined, Line, Note, Notes};
use crate::launch::{now_ns, record_all};
use crate::spec::{Dtype, Found, RunSpec, ScriptOptions};
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
            Self::NobodyJoined { outcome: Some(Outcome::Code(code)), .. } if *code != 0 => {
                return write!(f, "the command failed with exit code {code} before any process had called backward");
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

/// Writes the trace of a script whose ranks have noted down all that they will.
///
/// # Errors
/// When the trace cannot be written.
pub fn gather(
    order: &Order,
    run_id: &str,
    run_dir: &Path,
    notes: &Notes,
    End { outcome, interrupted, timed_out }: End,
) -> Result<Result<(), NoAnswer>> {
    let Some(world_size) = notes.world_size() else {
        return Ok(Err(NoAnswer::NobodyJoined { outcome, interrupted, timed_out }));
    };
    let Some(spec) = spec(order, notes, world_size) else {
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
        for line in lines {
            end = end.max(line.t_ns);
            let at = line.t_ns;
            let mut add = |event| events.push((Some(rank), at, event));
            match &line.note {
                Note::Joined(Joined { pid, versions, device, .. }) => {
                    add(Event::RankReady { versions: versions.clone(), device: device.clone() });
                    events.push((None, at, Event::RankSpawned { rank, pid: *pid }));
                }
                Note::Backward(backward) => backward_events(backward, &names).for_each(add),
                Note::Agreed(_) => {}
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
                    add((**event).clone());
                }
            }
        }
    }
    // Of a step that did not come to its end nothing is told.
    events.retain(|(_, _, event)| {
        let (step, microbatch) = event.moment();
        step.is_none_or(|step| step < spec.steps)
            && microbatch.is_none_or(|it| it < spec.gradient_accumulation_steps)
    });
    // The processes write side by side; a rank exists before it says anything.
    events.sort_by_key(|(sender, at, _)| (*at, sender.is_some()));
    let over = now_ns().max(end);
    if interrupted {
        events.push((None, over, Event::Interrupted));
    }
    if timed_out {
        let silent = unfinished.clone();
        let waiting = Vec::new();
        events.push((None, over, Event::TimedOut { silent, timeout_s: order.timeout_s, waiting }));
    }
    let ended = |rank| {
        let outcome = if !unfinished.contains(&rank) {
            Outcome::Code(0)
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

/// The specification that the script turned out to have; none if no step came to its end.
fn spec(order: &Order, notes: &Notes, world_size: usize) -> Option<RunSpec> {
    let all = || notes.ranks.values().flatten().map(|line| &line.note);
    let agreed: Vec<_> = all()
        .filter_map(|note| if let Note::Agreed(agreed) = note { Some(agreed) } else { None })
        .collect();
    let joined =
        all().find_map(|note| if let Note::Joined(joined) = note { Some(joined) } else { None })?;
    let dtype = agreed
        .iter()
        .map(|agreed| agreed.dtype)
        .max_by(|a: &Dtype, b| a.unit_roundoff().total_cmp(&b.unit_roundoff()))?;
    let steps_of = |lines: &Vec<Line>| {
        let is_end = |note: &Note| matches!(note, Note::Event(event) if matches!(**event, Event::StepEnded { .. }));
        lines.iter().filter(|line| is_end(&line.note)).count()
    };
    let begun = all().filter_map(|note| match note {
        Note::Backward(backward) => Some(backward.step + 1),
        _ => None,
    });
    let found = Found {
        world_size,
        begun: begun.max().unwrap_or(0),
        steps: notes.ranks.values().map(steps_of).min().filter(|steps| *steps > 0)?,
        microbatches: agreed.iter().map(|agreed| agreed.microbatches).max()?,
        reserved: agreed.iter().map(|agreed| agreed.reserved).max()?,
        dtype,
        device: joined.kind,
        backend: joined.backend,
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
