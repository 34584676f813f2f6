//! The events of a trace, sorted by topic.

mod behind;
mod parts;
mod script;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use zprobe_model::spec::plan::{Param, Segment};
use zprobe_model::spec::{Engine, Plan, RunSpec};
use zprobe_model::trace::{
    AgentLoss, Aside, Differing, Event, LayoutName, Meetings, Outcome, ParamInfo, Phase, Point,
    Remarks, Trace, Transform, UNSET_MEMORY, Waiting, combined_digest,
};
use zprobe_report::Ending;

pub use self::behind::SYMPTOMS;
pub use self::parts::{
    Backward, BackwardAt, Broken, BucketFlush, Buffer, Collective, Gathered, Norm, Process, Scaled,
    TimedOut,
};
pub use self::script::Script;

/// The events of a trace, sorted by topic, for one run.
pub struct Observed<'a> {
    /// The specification of the run.
    pub spec: &'a RunSpec,
    /// The version of zprobe that recorded the run.
    pub zprobe: &'a str,
    /// The processes, indexed by rank.
    pub processes: Vec<Process<'a>>,
    /// All buffers: moment by moment in recording order, and by rank within a moment.
    pub buffers: Vec<Buffer<'a>>,
    /// Indices into `buffers`, by (point, step); `of_rank` has them by (point, step, rank).
    at: HashMap<(Point, usize), Vec<usize>>,
    of_rank: HashMap<(Point, usize, usize), Vec<usize>>,
    /// All backwards of all ranks.
    pub backwards: BTreeMap<BackwardAt, Backward<'a>>,
    /// The facts about a user's script.
    pub script: Script<'a>,
    /// The number of records that the trace lacks of a script's ranks, by rank. Records of engines are selected
    /// during recording, so that they are not counted.
    pub lacking: BTreeMap<usize, u64>,
    /// The microbatches whose gradients a script cleared on purpose, by (step, rank, microbatch).
    pub set_aside: BTreeMap<(usize, usize, usize), Aside>,
    /// The number of microbatches that a script gave up before a step, by (step, rank).
    pub given_up: BTreeMap<(usize, usize), usize>,
    /// The microbatches after whose backward an engine transformed gradients, by (step, rank).
    pub transformed: BTreeMap<(usize, usize), BTreeMap<usize, Transform>>,
    /// All bucket flushes.
    pub flushes: Vec<BucketFlush<'a>>,
    /// The model's parameters, in flat order; empty if no rank described the model.
    pub params: &'a [ParamInfo],
    /// The layouts of buffers, by (rank, name).
    pub layouts: BTreeMap<(usize, LayoutName), &'a [Segment]>,
    /// The sampled segments of buffers that were not recorded in full, by (rank, name).
    pub samples: BTreeMap<(usize, LayoutName), &'a [Segment]>,
    /// The class names of the optimizer and of the inner optimizer.
    pub optimizer: Option<(&'a str, &'a str)>,
    /// The engine that was recognised in a user's script.
    recognised: Option<Engine>,
    /// The facts that each rank's engine states about itself, by rank.
    pub facts: BTreeMap<usize, &'a BTreeMap<String, String>>,
    /// The remarks on a user's script, by rank.
    pub remarks: BTreeMap<usize, &'a Remarks>,
    /// Pairs of a fact that was not observed and the reason.
    pub not_observed: BTreeSet<(&'a str, &'a str)>,
    /// The loss scales, by (step, rank).
    pub scaled: BTreeMap<(usize, usize), Scaled>,
    /// The microbatches after which the engine called an optimizer, by (step, rank).
    pub called: BTreeMap<(usize, usize), &'a [usize]>,
    /// The parameters whose value in forward differed from their value after the previous step, by (step, microbatch,
    /// rank).
    pub forward: BTreeMap<(usize, usize, usize), &'a [Differing]>,
    /// The global norms of the gradient that the engine computed, by (step, rank).
    pub norms: BTreeMap<(usize, usize), Norm>,
    /// The digests that ranks gathered in band, over the process group.
    pub gathered: Vec<Gathered<'a>>,
    /// The combined digests out of band, over the event channel, by (rank, step in which they were gathered).
    pub digests: BTreeMap<(usize, usize), String>,
    /// The announcements of all ranks before a collective on which they disagreed, by sequence number.
    pub mismatches: BTreeMap<u64, &'a [String]>,
    /// The protocol violations.
    pub broken: Vec<Broken>,
    /// The silence that ended the run; `None` if the watchdog did not end the run.
    pub timed_out: Option<TimedOut>,
    /// The agent that was lost last, as (machine name, reason). The exits of its ranks are recorded after this event.
    agent_lost: Option<(&'a str, AgentLoss)>,
    /// True if the user interrupted the run.
    pub interrupted: bool,
    /// The end of the rank host's standard error.
    pub host_stderr: Option<&'a str>,
}

impl<'a> Observed<'a> {
    /// Sorts the events of a trace.
    pub fn new(trace: &'a Trace) -> Self {
        let mut observed = Self {
            agent_lost: None,
            spec: &trace.spec,
            zprobe: "",
            processes: vec![Process::default(); trace.spec.world_size],
            buffers: Vec::new(),
            at: HashMap::new(),
            of_rank: HashMap::new(),
            backwards: BTreeMap::new(),
            script: Script::default(),
            lacking: BTreeMap::new(),
            set_aside: BTreeMap::new(),
            given_up: BTreeMap::new(),
            transformed: BTreeMap::new(),
            flushes: Vec::new(),
            params: &[],
            layouts: BTreeMap::new(),
            samples: BTreeMap::new(),
            optimizer: None,
            recognised: None,
            facts: BTreeMap::new(),
            remarks: BTreeMap::new(),
            not_observed: BTreeSet::new(),
            scaled: BTreeMap::new(),
            called: BTreeMap::new(),
            forward: BTreeMap::new(),
            norms: BTreeMap::new(),
            gathered: Vec::new(),
            digests: BTreeMap::new(),
            mismatches: BTreeMap::new(),
            broken: Vec::new(),
            timed_out: None,
            interrupted: false,
            host_stderr: None,
        };
        let mut pending = vec![Vec::new(); trace.spec.world_size];
        let mut meetings = Meetings::new(trace.spec.world_size);
        for (sender, event) in trace.events() {
            match sender {
                None => observed.launcher_event(event, &mut meetings),
                Some(rank) if rank < trace.spec.world_size => {
                    meetings.see(rank, event);
                    if *event == Event::Finished {
                        meetings.leave(rank);
                    }
                    observed.rank_event(rank, event, &mut pending[rank]);
                }
                Some(_) => {}
            }
        }
        if trace.spec.script().is_some() {
            let lacking = (0..trace.spec.world_size).map(|rank| (rank, trace.missing_of(rank)));
            observed.lacking = lacking.filter(|(_, records)| *records > 0).collect();
        }
        // The interleaving of the ranks' channels is chance, and the report must not depend on it.
        observed.buffers.sort_by_key(|buffer| (buffer.ordinal, buffer.rank));
        for (place, buffer) in observed.buffers.iter().enumerate() {
            if let Some(step) = buffer.step {
                let of_rank = (buffer.point, step, buffer.rank);
                observed.at.entry((buffer.point, step)).or_default().push(place);
                observed.of_rank.entry(of_rank).or_default().push(place);
            }
        }
        observed.flushes.sort_by_key(|f| (f.step, f.microbatch, f.flush, f.rank));
        observed.gathered.sort_by_key(|gathered| (gathered.step, gathered.rank));
        observed.broken.sort_by_key(|broken| broken.rank);
        observed
    }

    /// True if every rank finished all of its work.
    pub fn all_finished(&self) -> bool {
        self.processes.iter().all(|process| process.finished)
    }

    /// True if some rank crashed or hung for a reason of its own, and not because the others had finished without it.
    pub fn some_broke(&self) -> bool {
        let left_alone = self.left_alone();
        let mut all = self.processes.iter().enumerate();
        all.any(|(rank, process)| !process.finished && !left_alone.contains(&rank))
    }

    /// Returns the ending of the recording. The launcher records an end for every rank, so that a rank without one
    /// means that the trace stops early.
    pub fn ending(&self) -> Ending {
        if self.interrupted {
            Ending::Interrupted
        } else if self.processes.iter().any(|process| process.outcome.is_none()) {
            Ending::CutOff
        } else {
            Ending::Complete
        }
    }

    /// True if a rank's engine reported an overflow in a step and skipped the step.
    pub fn skipped(&self, step: usize, rank: usize) -> bool {
        self.scaled.get(&(step, rank)).is_some_and(|scaled| scaled.overflow)
    }

    /// True if memory held NaN until it was written: the user requested it, and the ranks supported it.
    pub fn is_poisoned(&self) -> bool {
        self.spec.poison_memory && !self.not_observed.iter().any(|(what, _)| *what == UNSET_MEMORY)
    }

    /// Returns the engine that was recognised in a user's script, or else the engine of the specification.
    pub fn engine(&self) -> Engine {
        self.recognised.unwrap_or(self.spec.engine())
    }

    /// True if a rank failed in this step before its optimizer was done.
    pub fn failed_in(&self, step: usize, rank: usize) -> bool {
        let process = &self.processes[rank];
        let last = process.last_phase;
        process.failure.is_some()
            && matches!(last, Some(Event::PhaseEntered { step: at, phase, .. })
                if *at == step && !matches!(phase, Phase::AllGather | Phase::Digests))
    }

    /// Iterates over the backwards of one microbatch on one rank, in order.
    pub fn backwards_of(
        &self,
        step: usize,
        microbatch: usize,
        rank: usize,
    ) -> impl Iterator<Item = (&BackwardAt, &Backward<'a>)> {
        let at = move |part| BackwardAt { step, microbatch, part, rank };
        (0..).map_while(move |part| self.backwards.get_key_value(&at(part)))
    }

    /// Iterates over the buffers of a point and step, by rank.
    pub fn at(&self, point: Point, step: usize) -> impl Iterator<Item = &Buffer<'a>> {
        self.at.get(&(point, step)).into_iter().flatten().map(|&place| &self.buffers[place])
    }

    /// Iterates over the buffers of a point and step that one rank recorded.
    pub fn of_rank(
        &self,
        rank: usize,
        point: Point,
        step: usize,
    ) -> impl Iterator<Item = &Buffer<'a>> {
        let places = self.of_rank.get(&(point, step, rank));
        places.into_iter().flatten().map(|&place| &self.buffers[place])
    }

    /// Returns the segments that a rank recorded of its buffers with a layout; `None` if the rank never described
    /// them.
    pub fn recorded(&self, rank: usize, layout: LayoutName) -> Option<&'a [Segment]> {
        let place = (rank, layout);
        self.samples.get(&place).or_else(|| self.layouts.get(&place)).copied()
    }

    /// Creates the plan for the model that the ranks reported.
    pub fn plan(&self) -> Plan {
        if self.params.is_empty() {
            return Plan::new(self.spec);
        }
        let params = self.params.iter().map(|param| Param {
            trainable: param.trainable,
            ranks: param.ranks.clone(),
            ..Param::new(param.name.clone(), param.shape.clone())
        });
        let plan = Plan::with_params(self.spec, params.collect());
        if self.spec.script().is_some() { self.as_used(plan) } else { plan }
    }

    /// Creates the plan for a script, whose backwards show which parameters each microbatch uses. A microbatch that
    /// was set aside is due no gradient.
    fn as_used(&self, plan: Plan) -> Plan {
        let recorded: BTreeSet<usize> = self.spec.recorded_steps().collect();
        let mut all = BTreeSet::new();
        let mut used = vec![BTreeSet::new(); self.params.len()];
        for (at, backward) in self.backwards.iter().filter(|(at, _)| recorded.contains(&at.step)) {
            let microbatch = (at.step, at.rank, at.microbatch);
            all.insert(microbatch);
            let is_due = !self.set_aside.contains_key(&microbatch);
            for param in backward.delivered().filter(|_| is_due) {
                used[param].insert(microbatch);
            }
        }
        plan.of_microbatches(used, &all)
    }

    /// The number of microbatches of each rank in a recorded step of a script.
    pub fn microbatches(&self, step: usize) -> Vec<usize> {
        let of_rank = |rank: usize| {
            let of_it = self.backwards.keys().filter(|at| at.step == step && at.rank == rank);
            of_it.map(|at| at.microbatch + 1).max().unwrap_or(0)
        };
        (0..self.spec.world_size).map(of_rank).collect()
    }

    /// True if a script gave up microbatches before every step, or those of several steps in a row, which may be a
    /// mistake. Before the first step, which is not recorded, giving up is a search for a loss scale.
    pub fn gives_up_as_a_habit(&self) -> bool {
        let a_step = self.spec.gradient_accumulation_steps;
        let mut later = self.given_up.iter().filter(|((step, _), _)| self.spec.records_step(*step));
        let before = |step| self.given_up.keys().any(|(given_up, _)| *given_up == step);
        let always = !self.given_up.is_empty() && self.spec.recorded_steps().all(before);
        always || later.any(|(_, microbatches)| *microbatches > a_step)
    }

    /// True if zprobe itself failed to observe a part of a script.
    pub fn has_failed_to_see(&self) -> bool {
        self.not_observed.iter().any(|(_, why)| why.starts_with("zprobe failed"))
    }

    /// True if an optimizer of an observed script holds elements that were not recognised.
    pub fn holds_unknown(&self) -> bool {
        let is_observed = self.spec.script().is_some_and(|script| script.observe.is_some());
        let partitions =
            self.layouts.iter().filter(|((_, name), _)| *name == LayoutName::Partition);
        let mut segments = partitions.flat_map(|(_, segments)| segments.iter());
        is_observed && segments.any(|segment| segment.param.is_none())
    }

    /// True if an optimizer's input for this parameter is no sum of gradients, because the engine orthogonalises the
    /// gradients of matrices. It is unknown which matrices the engine leaves out.
    pub fn is_transformed(&self, param: usize) -> bool {
        let is_matrix = |it: &ParamInfo| it.trainable && it.shape.len() > 1;
        !self.transformed.is_empty() && self.params.get(param).is_some_and(is_matrix)
    }

    /// True if a rank has a parameter.
    pub fn has(&self, rank: usize, param: usize) -> bool {
        self.params.get(param).is_none_or(|it| it.ranks.is_empty() || it.ranks.contains(&rank))
    }

    /// Returns the first rank that has the same parameters as this rank; `None` if all ranks have the same
    /// parameters.
    pub fn first_with_same_params(&self, rank: usize) -> Option<usize> {
        let own = self.params.iter().find(|param| param.ranks.contains(&rank))?;
        own.ranks.first().copied()
    }

    /// The number of ranks over which a parameter's gradients are averaged: the world size, unless tensor parallelism
    /// gives each rank parameters of its own.
    pub fn replicas(&self) -> usize {
        let count = |param: &ParamInfo| match param.ranks.len() {
            0 => self.spec.world_size,
            count => count,
        };
        let trainable = self.params.iter().filter(|param| param.trainable);
        trainable.map(count).max().unwrap_or(self.spec.world_size)
    }

    /// Returns the index of a parameter in the flat order, by its name.
    pub fn param_number(&self, name: &str) -> Option<usize> {
        self.params.iter().position(|param| param.name == name)
    }

    /// Returns the name of a parameter, by its index in the flat order.
    pub fn param_name(&self, index: usize) -> String {
        self.params
            .get(index)
            .map_or_else(|| format!("parameter {index}"), |param| param.name.clone())
    }

    fn launcher_event(&mut self, event: &'a Event, meetings: &mut Meetings) {
        match event {
            Event::RunStarted { zprobe, .. } => self.zprobe = zprobe,
            Event::RankSpawned { rank, pid, .. } => {
                if let Some(process) = self.processes.get_mut(*rank) {
                    process.pid = Some(*pid);
                    // Removes the imports that the host recorded before it forked this rank.
                    process.last.take_if(|last| matches!(last, Event::Importing { .. }));
                }
            }
            Event::Importing { .. } => {
                let silent = self.processes.iter_mut().filter(|process| process.pid.is_none());
                silent.for_each(|process| process.last = Some(event));
            }
            Event::AgentLost { machine, why, .. } => self.agent_lost = Some((machine, *why)),
            Event::RankExited { rank, outcome } => {
                let lost = self.agent_lost.filter(|_| *outcome == Outcome::Lost);
                if let Some(process) = self.processes.get_mut(*rank) {
                    process.outcome = Some(*outcome);
                    process.lost = lost;
                    meetings.leave(*rank);
                }
            }
            Event::ProtocolViolated { rank, violation, .. } => {
                self.broken.push(Broken { rank: *rank, violation: *violation });
            }
            Event::TimedOut { silent, timeout_s, waiting } => {
                let ranks = self.processes.len();
                let known = silent.iter().copied().filter(|rank| *rank < ranks);
                let by_all = meetings.reached_by_all();
                // Older traces do not record which ranks waited, and name the waiting ranks as silent too.
                let waits = |rank: usize| {
                    meetings.waits(rank, &by_all).map(|meeting| Waiting { rank, meeting })
                };
                let waiting = match &waiting[..] {
                    [] => known.clone().filter_map(waits).collect(),
                    told => told.iter().copied().filter(|it| it.rank < ranks).collect(),
                };
                self.timed_out = Some(TimedOut {
                    named: known.map(|rank| (rank, meetings.at(rank))).collect(),
                    waiting,
                    timeout_s: *timeout_s,
                });
            }
            Event::RankStopped { rank } => {
                if let Some(process) = self.processes.get_mut(*rank) {
                    process.is_stopped = true;
                }
            }
            Event::Interrupted => self.interrupted = true,
            Event::StackTaken { rank, thread, frames } => {
                if let Some(process) = self.processes.get_mut(*rank) {
                    process.stacks.insert(*thread, frames);
                }
            }
            Event::Stderr { rank: None, tail } => self.host_stderr = Some(tail),
            Event::Stderr { rank: Some(rank), tail } => {
                if let Some(process) = self.processes.get_mut(*rank) {
                    process.stderr = Some(tail);
                }
            }
            _ => {}
        }
    }

    fn rank_event(&mut self, rank: usize, event: &'a Event, pending: &mut Vec<&'a str>) {
        let process = &mut self.processes[rank];
        process.last = Some(event);
        process.finished = matches!(event, Event::Finished);
        match event {
            Event::RankReady { versions, .. } => process.versions = Some(versions),
            Event::Model { params } => self.params = params,
            Event::Layout { layout, segments, sampled } => {
                let layouts = if *sampled { &mut self.samples } else { &mut self.layouts };
                layouts.insert((rank, *layout), segments);
            }
            Event::OptimizerChosen { class, inner } => self.optimizer = Some((class, inner)),
            Event::PhaseEntered { .. } => process.last_phase = Some(event),
            Event::GraphWalked { step, microbatch, accumulate_grad_nodes, params } => {
                let backward = Backward {
                    accumulate_grad_nodes: *accumulate_grad_nodes,
                    reached: params,
                    fired: None,
                    arrived: None,
                };
                let part = self.backwards_of(*step, *microbatch, rank).count();
                let at = BackwardAt { step: *step, microbatch: *microbatch, part, rank };
                self.backwards.insert(at, backward);
            }
            Event::MicrobatchSetAside { step, microbatch, why } => {
                self.set_aside.insert((*step, rank, *microbatch), *why);
            }
            Event::WindowGivenUp { step, microbatches } => {
                *self.given_up.entry((*step, rank)).or_default() += microbatches;
            }
            Event::GradientsTransformed { step, microbatch, how } => {
                let of_step = self.transformed.entry((*step, rank)).or_default();
                of_step.insert(*microbatch, *how);
            }
            Event::ScriptRemarked(remarks) => {
                self.remarks.insert(rank, remarks);
            }
            Event::HooksFired { step, microbatch, fired, arrived } => {
                let last = self.backwards_of(*step, *microbatch, rank).map(|(at, _)| *at).last();
                if let Some(backward) = last.and_then(|at| self.backwards.get_mut(&at)) {
                    backward.fired = Some(fired);
                    backward.arrived = arrived.as_deref();
                }
            }
            Event::BucketFlushed {
                step,
                microbatch,
                flush,
                reason,
                elements,
                capacity,
                params,
            } => {
                self.flushes.push(BucketFlush {
                    rank,
                    step: *step,
                    microbatch: *microbatch,
                    flush: *flush,
                    reason: *reason,
                    elements: *elements,
                    capacity: *capacity,
                    params,
                });
            }
            Event::CollectiveEntered { sequence, op, dtype, numel } => {
                let (sequence, op, numel) = (*sequence, *op, *numel);
                process.collectives.push(Collective { sequence, op, dtype, numel });
            }
            Event::EngineDescribed { engine, facts } => {
                self.facts.insert(rank, facts);
                self.recognised = self.recognised.or(*engine);
            }
            Event::NotObserved { what, why } => {
                self.not_observed.insert((what, why));
            }
            Event::LossScaled { step, scale, overflow } => {
                let scaled = Scaled { scale: *scale, overflow: *overflow };
                self.scaled.insert((*step, rank), scaled);
            }
            Event::OptimizerCalled { step, microbatches } => {
                self.called.insert((*step, rank), microbatches);
            }
            Event::ForwardUsed { step, microbatch, differing } => {
                // A microbatch may go forward in several parts.
                let known = self.forward.entry((*step, *microbatch, rank)).or_insert(differing);
                if known.is_empty() {
                    *known = differing;
                }
            }
            Event::GradientNorm { step, norm, limit } => {
                self.norms.insert((*step, rank), Norm { norm: *norm, limit: *limit });
            }
            Event::CollectiveMismatch { sequence, announced } => {
                self.mismatches.insert(*sequence, announced);
            }
            Event::Buffer { step, microbatch, point, layout, payload } => {
                pending.push(&payload.digest);
                let ordinal = process.buffers;
                process.buffers += 1;
                self.buffers.push(Buffer {
                    rank,
                    step: *step,
                    microbatch: *microbatch,
                    point: *point,
                    layout: *layout,
                    payload,
                    ordinal,
                });
            }
            Event::DigestsGathered { step, digests } => {
                self.digests.insert((rank, *step), combined_digest(std::mem::take(pending)));
                self.gathered.push(Gathered { rank, step: *step, in_band: digests });
            }
            Event::Failed { message } => process.failure = Some(message),
            other => self.script.see(rank, other),
        }
    }
}
