//! The events of a trace, sorted by topic. Each topic has a module, which reads its own events.

mod behind;
mod buffers;
mod exchanges;
mod hooks;
mod model;
mod processes;
mod script;
mod software;
mod updates;

use std::collections::BTreeSet;

use zprobe_model::spec::plan::Param;
use zprobe_model::spec::{Engine, Optimizer, Plan, RunSpec};
use zprobe_model::trace::{Event, LayoutName, ParamInfo, Phase, Trace, UNSET_MEMORY};

pub use self::buffers::{Buffer, Buffers};
pub use self::exchanges::{EnteredCollective, Exchanges, Gathered};
pub use self::hooks::{Backward, BackwardAt, BucketFlush, GradientHooks};
pub use self::model::ModelLayout;
pub use self::processes::{Broken, RankProcess, RankProcesses, SYMPTOMS, TimedOut};
pub use self::script::ObservedScript;
pub use self::software::Software;
pub use self::updates::{Digests, ReportedNorm, Scaled, Updates};

/// The events of a trace, sorted by topic, for one run.
pub struct Observed<'a> {
    /// The specification of the run.
    pub spec: &'a RunSpec,
    /// The parameters of the model and the layouts of the ranks' buffers.
    pub model: ModelLayout<'a>,
    /// The engine, the optimizer and zprobe itself, and the facts that they state about the run.
    pub software: Software<'a>,
    /// The backwards and bucket flushes of all ranks.
    pub hooks: GradientHooks<'a>,
    /// The recorded buffers of all ranks.
    pub buffers: Buffers<'a>,
    /// The collectives and gathered digests of all ranks.
    pub exchanges: Exchanges<'a>,
    /// The facts about the optimizer steps of all ranks.
    pub updates: Updates<'a>,
    /// The facts about a user's script.
    pub script: ObservedScript<'a>,
    /// The processes of all ranks, and the reasons why the run ended.
    pub processes: RankProcesses<'a>,
}

impl<'a> Observed<'a> {
    /// Sorts the events of a trace.
    pub fn new(trace: &'a Trace) -> Self {
        let ranks = trace.spec.world_size;
        let mut observed = Self {
            spec: &trace.spec,
            model: ModelLayout::default(),
            software: Software::default(),
            hooks: GradientHooks::default(),
            buffers: Buffers::new(ranks),
            exchanges: Exchanges::new(ranks),
            updates: Updates::default(),
            script: ObservedScript::new(trace),
            processes: RankProcesses::new(ranks),
        };
        for (sender, event) in trace.events() {
            match sender {
                None => observed.see_launcher(event),
                Some(rank) if rank < ranks => observed.see(rank, event),
                Some(_) => {}
            }
        }
        observed.hooks.sort();
        observed.buffers.sort();
        observed.exchanges.sort();
        observed.processes.sort();
        observed
    }

    fn see_launcher(&mut self, event: &'a Event) {
        self.software.see_launcher(event);
        self.processes.see_launcher(event);
    }

    fn see(&mut self, rank: usize, event: &'a Event) {
        self.model.see(rank, event);
        self.software.see(rank, event);
        self.hooks.see(rank, event);
        self.buffers.see(rank, event);
        self.exchanges.see(rank, event);
        self.updates.see(rank, event);
        self.script.see(rank, event);
        self.processes.see(rank, event);
    }

    /// True if some rank crashed or hung for a reason of its own, and not because the others had finished without it.
    pub fn some_broke(&self) -> bool {
        let left_alone = self.left_alone();
        let mut all = self.processes.ranks.iter().enumerate();
        all.any(|(rank, process)| !process.finished && !left_alone.contains(&rank))
    }

    /// True if memory held NaN until it was written: the user requested it, and the ranks supported it.
    pub fn is_poisoned(&self) -> bool {
        self.spec.poison_memory
            && !self.software.not_observed.iter().any(|(what, _)| *what == UNSET_MEMORY)
    }

    /// Returns the engine that was recognised in a user's script, or else the engine of the specification.
    pub fn engine(&self) -> Engine {
        self.software.recognised.unwrap_or(self.spec.engine())
    }

    /// True if a rank failed in this step before its optimizer was done.
    pub fn failed_in(&self, step: usize, rank: usize) -> bool {
        let process = &self.processes.ranks[rank];
        let last = process.last_phase;
        process.failure.is_some()
            && matches!(last, Some(Event::PhaseEntered { step: at, phase, .. })
                if *at == step && !matches!(phase, Phase::AllGather | Phase::Digests))
    }

    /// Creates the plan for the model that the ranks reported.
    pub fn plan(&self) -> Plan {
        if self.model.params.is_empty() {
            return Plan::new(self.spec);
        }
        let params = self.model.params.iter().map(|param| Param {
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
        let mut used = vec![BTreeSet::new(); self.model.params.len()];
        for (at, backward) in
            self.hooks.backwards.iter().filter(|(at, _)| recorded.contains(&at.step))
        {
            let microbatch = (at.step, at.rank, at.microbatch);
            all.insert(microbatch);
            let is_due = !self.script.set_aside.contains_key(&microbatch);
            let all_params = 0..if backward.is_known() { 0 } else { used.len() };
            for param in backward.delivered().chain(all_params).filter(|_| is_due) {
                used[param].insert(microbatch);
            }
        }
        plan.of_microbatches(used, &all)
    }

    /// True if a step of a script has more microbatches than the first step, on some rank: the additional microbatches
    /// are not recorded.
    pub fn has_unrecorded_microbatches(&self, step: usize) -> bool {
        let a_step = self.spec.gradient_accumulation_steps;
        let mut ended = self.script.ended.iter();
        ended.any(|((at, _), count)| *at == step && *count > a_step)
    }

    /// The number of microbatches of each rank in a recorded step of a script.
    pub fn microbatches(&self, step: usize) -> Vec<usize> {
        let of_rank = |rank: usize| {
            let of_it = self.hooks.backwards.keys().filter(|at| at.step == step && at.rank == rank);
            of_it.map(|at| at.microbatch + 1).max().unwrap_or(0)
        };
        (0..self.spec.world_size).map(of_rank).collect()
    }

    /// True if a script gave up microbatches before every step, or those of several steps in a row. That may be a
    /// mistake. Before the first step, which is not recorded, giving up is a search for a loss scale.
    pub fn gives_up_as_a_habit(&self) -> bool {
        let a_step = self.spec.gradient_accumulation_steps;
        let mut later =
            self.script.given_up.iter().filter(|((step, _), _)| self.spec.records_step(*step));
        let before = |step| self.script.given_up.keys().any(|(given_up, _)| *given_up == step);
        let always = !self.script.given_up.is_empty() && self.spec.recorded_steps().all(before);
        always || later.any(|(_, microbatches)| *microbatches > a_step)
    }

    /// True if an optimizer of an observed script holds elements that were not recognised.
    pub fn holds_unknown(&self) -> bool {
        let is_observed = self.spec.script().is_some_and(|script| script.observe.is_some());
        let partitions =
            self.model.layouts.iter().filter(|((_, name), _)| *name == LayoutName::Partition);
        let mut segments = partitions.flat_map(|(_, segments)| segments.iter());
        is_observed && segments.any(|segment| segment.param.is_none())
    }

    /// True if an optimizer's input for this parameter is no sum of gradients, because the engine orthogonalises the
    /// gradients of matrices. The result may be true for a matrix that the engine leaves out.
    pub fn is_transformed(&self, param: usize) -> bool {
        let is_matrix = |it: &ParamInfo| it.trainable && it.shape.len() > 1;
        self.transforms() && self.model.params.get(param).is_some_and(is_matrix)
    }

    /// True if the engine transforms gradients. In zprobe's own runs of Muon, the identity stands in for the
    /// transformation.
    pub fn transforms(&self) -> bool {
        !self.script.transformed.is_empty() && self.spec.optimizer != Optimizer::Muon
    }

    /// The number of ranks over which a parameter's gradients are averaged: the world size, unless tensor parallelism
    /// gives each rank parameters of its own.
    pub fn replicas(&self) -> usize {
        let count = |param: &ParamInfo| match param.ranks.len() {
            0 => self.spec.world_size,
            count => count,
        };
        let trainable = self.model.params.iter().filter(|param| param.trainable);
        trainable.map(count).max().unwrap_or(self.spec.world_size)
    }
}
