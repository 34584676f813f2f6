//! Facts about the ranks, the steps and the end of a script, read from its records.

use std::collections::{BTreeMap, BTreeSet};

use super::NoAnswer;
use crate::spec::{Backend, Device, Dtype, Found, RunSpec};
use crate::trace::{Event, Frame, Outcome, Phase, REST_OF_SCRIPT, Record};

/// The torch function that calls the autograd engine.
const BACKWARD: &str = "_engine_run_backward";

/// The start of a microbatch that a rank reached without beginning the microbatch's backward.
pub(super) struct Unbegun {
    /// The index of the record after which the rank reached the microbatch.
    pub(super) behind: usize,
    step: usize,
    microbatch: usize,
}

impl Unbegun {
    /// Returns the start of the microbatch as an event.
    pub(super) fn event(&self) -> Event {
        let Self { step, microbatch, .. } = *self;
        Event::PhaseEntered { step, microbatch, phase: Phase::Forward }
    }
}

/// The records of a script, grouped by the facts that they contain.
pub(super) struct Told<'a> {
    records: &'a [Record],
    /// The indices of the records of each rank.
    ranks: BTreeMap<usize, Vec<usize>>,
    /// The ranks that each agent's command has started, if the run has several agents.
    pub(super) agents: BTreeMap<usize, BTreeSet<usize>>,
    /// The host names of the machines whose agents were lost.
    lost: Vec<&'a str>,
    /// The outcome of the command; `None` while the command runs, and `Some(None)` if zprobe had to kill the command.
    over: Option<Option<Outcome>>,
    interrupted: bool,
    timed_out: bool,
    /// The ranks that have ended.
    pub(super) ended: Vec<usize>,
    /// The ranks that a signal ended, each with a description of its end.
    deaths: BTreeMap<usize, String>,
    /// The last failure message of each rank that failed, with the index of the message's record.
    pub(super) failures: BTreeMap<usize, (usize, &'a str)>,
}

impl<'a> Told<'a> {
    pub(super) fn of(records: &'a [Record]) -> Self {
        let mut told = Self {
            records,
            ranks: BTreeMap::new(),
            agents: BTreeMap::new(),
            lost: Vec::new(),
            over: None,
            interrupted: false,
            timed_out: false,
            ended: Vec::new(),
            deaths: BTreeMap::new(),
            failures: BTreeMap::new(),
        };
        for (index, Record { rank, event, .. }) in records.iter().enumerate() {
            if let Some(rank) = rank {
                told.ranks.entry(*rank).or_default().push(index);
            }
            match event {
                Event::CommandEnded { outcome } => {
                    told.over = Some(Outcome::of_commands(told.over, *outcome));
                }
                Event::RankSpawned { rank, agent: Some(agent), .. } => {
                    told.agents.entry(*agent).or_default().insert(*rank);
                }
                Event::AgentLost { machine, .. } => told.lost.push(machine),
                Event::Interrupted => told.interrupted = true,
                Event::TimedOut { .. } => told.timed_out = true,
                Event::RankExited { rank, outcome } => {
                    told.ended.push(*rank);
                    told.deaths.extend(outcome.death().map(|death| (*rank, death)));
                }
                Event::Failed { message } => {
                    told.failures.extend(rank.map(|rank| (rank, (index, message.as_str()))));
                }
                _ => {}
            }
        }
        told
    }

    /// Returns the events of all ranks.
    fn events(&self) -> impl Iterator<Item = &'a Event> {
        self.records.iter().filter(|record| record.rank.is_some()).map(|record| &record.event)
    }

    fn of_rank(&self, rank: usize) -> impl DoubleEndedIterator<Item = (usize, &'a Event)> {
        let indices = self.ranks.get(&rank).into_iter().flatten();
        indices.map(|&index| (index, &self.records[index].event))
    }

    fn has_finished(&self, rank: usize) -> bool {
        self.of_rank(rank).next_back().is_some_and(|(_, event)| *event == Event::Finished)
    }

    pub(super) fn finished(&self) -> impl Iterator<Item = usize> {
        self.ranks.keys().copied().filter(|rank| self.has_finished(*rank))
    }

    /// True if every rank that has joined has finished.
    fn is_complete(&self) -> bool {
        self.finished().count() == self.ranks.len()
    }

    /// Returns the outcome of the command, if the command ended by itself.
    fn outcome(&self) -> Option<Outcome> {
        self.over.flatten()
    }

    /// True if the script failed, or if it hung.
    fn broke(&self) -> bool {
        let failed = !matches!(self.outcome(), None | Some(Outcome::Code(0)));
        let broke = self.timed_out || failed || !self.failures.is_empty();
        !self.lost.is_empty() || !self.interrupted && broke
    }

    pub(super) fn world_size(&self) -> Result<usize, NoAnswer> {
        let joined = self.events().find_map(|event| match event {
            Event::RankJoined { world_size, .. } => Some(*world_size),
            _ => None,
        });
        let ended = || self.ended.iter().max().filter(|_| self.timed_out).map(|last| last + 1);
        joined.or_else(ended).ok_or_else(|| match self.over {
            None if !self.interrupted && !self.timed_out && self.lost.is_empty() => {
                NoAnswer::CutOff
            }
            _ => NoAnswer::NobodyJoined {
                outcome: self.outcome(),
                interrupted: self.interrupted,
                timed_out: self.timed_out,
                lost: self.lost.first().map(|machine| (*machine).to_owned()),
                failures: self.accounts(),
            },
        })
    }

    /// Returns descriptions of the ranks that failed or that a signal ended.
    fn accounts(&self) -> Vec<String> {
        let ranks: BTreeSet<usize> =
            self.failures.keys().chain(self.deaths.keys()).copied().collect();
        ranks.into_iter().map(|rank| self.account(rank)).collect()
    }

    /// Describes the failure of a rank, or the signal that ended it, with the place in the user's own code.
    fn account(&self, rank: usize) -> String {
        let own = self.main_stack(rank).find(|frame| frame.is_own);
        let place = own.map(|frame| format!(", at {}", frame.place())).unwrap_or_default();
        let death = self.deaths.get(&rank).map_or("", String::as_str);
        let message = self.failures.get(&rank).map_or(death, |(_, message)| message);
        format!("rank {rank}: {message}{place}")
    }

    /// Returns the frames of a rank's main thread, or of the exception that ended the rank, the innermost frame
    /// first.
    fn main_stack(&self, of: usize) -> impl Iterator<Item = &'a Frame> {
        let stacks = self.records.iter().filter_map(move |record| match &record.event {
            Event::StackTaken { rank, thread: 0, frames } if *rank == of => Some(frames),
            _ => None,
        });
        stacks.flatten()
    }

    fn microbatches(&self) -> Option<usize> {
        self.agreed().map(|(microbatches, ..)| microbatches).max()
    }

    /// Returns the numbers of microbatches and reserved codes and the dtype on which the ranks have agreed.
    fn agreed(&self) -> impl Iterator<Item = (usize, usize, Dtype)> {
        self.events().filter_map(|event| match event {
            Event::RanksAgreed { microbatches, reserved, dtype } => {
                Some((*microbatches, *reserved, *dtype))
            }
            _ => None,
        })
    }

    /// Returns, for each rank, the microbatch that the rank reached without beginning its backward. Empty unless the
    /// script failed or hung.
    pub(super) fn unbegun(&self) -> BTreeMap<usize, Unbegun> {
        let in_backward = |rank: usize| {
            // A backward that raises an exception is reported like a backward that ended normally.
            let mut frames = self.main_stack(rank);
            self.failures.contains_key(&rank) && frames.any(|frame| frame.function == BACKWARD)
        };
        let ranks = self.ranks.keys().copied().filter(|_| self.broke());
        ranks
            .filter(|rank| !self.has_finished(*rank) && !in_backward(*rank))
            .filter_map(|rank| Some((rank, unbegun(self.of_rank(rank), self.microbatches())?)))
            .collect()
    }

    /// Returns the reason why a rank stopped watching, if a rank did.
    fn gave_up(&self) -> Option<&'a str> {
        self.events().find_map(|event| match event {
            Event::NotObserved { what, why } if what == REST_OF_SCRIPT => Some(why.as_str()),
            _ => None,
        })
    }

    /// Returns the number of steps that each rank took.
    fn steps(&self) -> impl Iterator<Item = usize> {
        let is_end = |(_, event): &(usize, &Event)| matches!(event, Event::StepEnded { .. });
        self.ranks.keys().map(move |rank| self.of_rank(*rank).filter(is_end).count())
    }

    /// Returns the complete specification of the script, as its records show.
    pub(super) fn spec(
        &self,
        known: &RunSpec,
        world_size: usize,
        unbegun: &BTreeMap<usize, Unbegun>,
    ) -> Result<RunSpec, NoAnswer> {
        let of_all = self.steps().min().unwrap_or(0);
        // A rank that waits for a hung rank stops watching at last.
        let gave_up_first = !self.timed_out && of_all == 0 && self.gave_up().is_some();
        let broke = self.broke() && !gave_up_first;
        let dtype = self.agreed().map(|(.., dtype)| dtype);
        let dtype = dtype.max_by(|a, b| a.unit_roundoff().total_cmp(&b.unit_roundoff()));
        // A rank that never steps may be ended before it can report this.
        let of_those_that_step = self.steps().filter(|count| *count > 0).min().unwrap_or(0);
        let steps = if broke { of_all } else { of_those_that_step };
        if !broke && (steps == 0 || dtype.is_none()) {
            let outcome = self.outcome().filter(|_| !self.timed_out);
            return Err(match (self.gave_up(), self.over) {
                _ if self.interrupted => NoAnswer::Interrupted,
                (Some(why), _) => NoAnswer::GaveUp { outcome, why: why.to_owned() },
                (None, None) if !self.is_complete() => NoAnswer::CutOff,
                (None, _) => NoAnswer::NoStep { outcome },
            });
        }
        let never_begun = unbegun.values().map(|it| (it.step, it.microbatch));
        let begun = self.events().filter_map(|event| match event.moment() {
            (Some(step), Some(microbatch)) => Some((step, microbatch)),
            _ => None,
        });
        let moments: Vec<(usize, usize)> = begun.chain(never_begun).collect();
        let begun = moments.iter().map(|(step, _)| step + 1).max().unwrap_or(0);
        let microbatches = self
            .microbatches()
            .or_else(|| moments.iter().map(|(_, microbatch)| microbatch + 1).max())
            .unwrap_or(1);
        let (device, backend) = self
            .events()
            .find_map(|event| match event {
                Event::RankJoined { kind, backend, .. } => Some((*kind, *backend)),
                _ => None,
            })
            .unwrap_or((Device::Cpu, Backend::Gloo));
        let Some(script) = known.script() else { return Ok(known.clone()) };
        Ok(RunSpec::of_script(
            script.clone(),
            &Found {
                world_size,
                // A last step that a script leaves unfinished does not count.
                begun: if steps == 1 && !broke { 1 } else { begun },
                steps,
                microbatches,
                reserved: self
                    .agreed()
                    .map(|(_, reserved, _)| reserved)
                    .max()
                    .unwrap_or(microbatches),
                dtype: dtype.unwrap_or(Dtype::Fp32),
                device,
                backend,
                seed: known.seed,
                timeout_s: known.timeout_s,
            },
        ))
    }
}

/// Returns the microbatch that a rank reached without beginning its backward. `None` if the rank was in a backward or
/// a step, or had completed the last of `microbatches`, which is `None` if the number is unknown.
pub(super) fn unbegun<'a>(
    events: impl Iterator<Item = (usize, &'a Event)>,
    microbatches: Option<usize>,
) -> Option<Unbegun> {
    let mut last = None;
    for (behind, event) in events {
        match *event {
            Event::BackwardEnded { step, microbatch } => {
                last = Some(Unbegun { behind, step, microbatch: microbatch + 1 });
            }
            Event::StepTaken { step, is_last: true } => {
                last = Some(Unbegun { behind, step: step + 1, microbatch: 0 });
            }
            Event::WindowGivenUp { step, .. } => {
                last = Some(Unbegun { behind, step, microbatch: 0 });
            }
            Event::PhaseEntered { .. } => last = None,
            _ => {}
        }
    }
    last.filter(|it| microbatches.is_none_or(|microbatches| it.microbatch < microbatches))
}
