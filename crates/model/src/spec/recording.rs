//! The parts of a run that its trace records: everything of a small run, and a selection of a run whose trace would
//! exceed its budget.
//!
//! The size of a trace grows with ranks × steps × microbatches × elements, and the elements that a code needs grow
//! with the first three. [`Recording::plan`] estimates the size. Until the estimate fits, it leaves out elements of
//! large buffers (samples are kept), then steps, then microbatches of each step, and last some ranks' sums of their
//! own gradients. The input of the optimizers is never left out of a recorded step, so the verdict about that step
//! stays as sharp as in a full trace.

use bytesize::ByteSize;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Invalid, Model, Plan, Point, RunSpec};

/// The default budget of a trace, in bytes.
pub const DEFAULT_BUDGET: u64 = 50_000_000;

/// The budget for each rank in a run of many ranks, in bytes: the size of two steps of a few microbatches.
const BUDGET_OF_A_RANK: u64 = 64_000;

/// The number of steps whose gradients have codes of their own; later steps reuse the codes. A leftover gradient is
/// recognised as such for one step less than this number.
pub const CODE_STEPS: usize = 4;

/// The maximum number of elements of a buffer that is recorded whole, whatever the budget: copying more elements
/// would take longer than the step.
pub const LARGEST_WHOLE: usize = 1 << 20;

/// The number of steps, of microbatches in a step, and of ranks with recorded own sums to which each kind is
/// reduced before any kind is reduced further.
const FEW: usize = 8;

/// The minimum number of recorded steps, microbatches or ranks: with two steps leftovers are visible, and two ranks
/// can differ.
const FEWEST: usize = 2;

/// The maximum number of recorded steps, whatever the budget, because a report says something about each step.
pub const MOST_STEPS: usize = 64;

/// The number of steps at the end of a long run that are recorded in addition to the first steps.
const LAST_STEPS: usize = 3;

/// The default budget of a trace, in bytes: a fixed number, or a number per rank in a run of many ranks.
pub fn default_budget(world_size: usize) -> u64 {
    DEFAULT_BUDGET.max((world_size as u64).saturating_mul(BUDGET_OF_A_RANK))
}

/// The size of an event as JSON without the content of a buffer, in bytes. Measured: 140 to 260.
const EVENT: u64 = 240;

/// The number of events on one rank per microbatch, and per step in addition to its microbatches. Measured on the
/// native engine and on DeepSpeed 0.19.8: at most 9 and 26.
const EVENTS: [u64; 2] = [9, 26];

/// The number of windows, each one code long, that are recorded from a piece of a sampled buffer.
const WINDOWS: usize = 16;

/// The parts of a run that its trace records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    /// The maximum size of the trace, in bytes.
    pub budget: u64,
    /// The recorded steps, ascending; `None` for all.
    pub steps: Option<Vec<usize>>,
    /// The recorded microbatches of a step, ascending and including the last; `None` for all.
    pub microbatches: Option<Vec<usize>>,
    /// The ranks whose sums of their own gradients are recorded, ascending; `None` for all.
    pub ranks: Option<Vec<usize>>,
    /// True if samples of buffers are recorded instead of whole buffers.
    pub sampled: bool,
}

impl Default for Recording {
    /// Records everything, within the default budget.
    fn default() -> Self {
        Self::within(DEFAULT_BUDGET)
    }
}

impl Recording {
    /// Records everything, within a budget of `budget` bytes.
    pub fn within(budget: u64) -> Self {
        Self { budget, steps: None, microbatches: None, ranks: None, sampled: false }
    }

    /// The number of bytes for content that may be left out: four fifths of the budget. The rest is for ranks whose
    /// content differs where it should be equal, and for content that is always written.
    pub fn room(&self) -> u64 {
        self.budget / 5 * 4
    }

    /// Chooses the parts of the run `spec` that fit into the budget of its trace.
    ///
    /// # Errors
    /// Fails if even the least that leads to a verdict does not fit.
    pub(super) fn plan(spec: &RunSpec) -> Result<Self, Invalid> {
        let plan = Plan::new(spec);
        let mut recording =
            Self { sampled: plan.numel() > LARGEST_WHOLE, ..Self::within(spec.recording.budget) };
        if spec.steps > MOST_STEPS {
            recording.steps = Some(steps_of(spec.steps, MOST_STEPS));
        }
        let room = recording.room();
        let fits = |recording: &Self| Size::new(spec, &plan, recording).bytes() <= room;
        if fits(&recording) {
            return Ok(recording);
        }
        if sampled_elements(spec, &plan) < plan.numel() {
            recording.sampled = true;
        }
        // Least squares needs the gradient of every microbatch of every rank.
        let all = spec.model == Model::Mlp;
        for fewest in [FEW, FEWEST] {
            if !fits(&recording) {
                recording.steps = largest_part(spec.steps, fewest, steps_of, |steps| {
                    fits(&Self { steps, ..recording.clone() })
                });
            }
            if !all && !fits(&recording) {
                let most = spec.gradient_accumulation_steps;
                recording.microbatches = largest_part(most, fewest, spread, |microbatches| {
                    fits(&Self { microbatches, ..recording.clone() })
                });
            }
            if !all && !fits(&recording) {
                recording.ranks = largest_part(spec.world_size, fewest, spread, |ranks| {
                    fits(&Self { ranks, ..recording.clone() })
                });
            }
            if fits(&recording) {
                return Ok(recording);
            }
        }
        let needed = rounded_up(Size::new(spec, &plan, &recording).bytes() / 4 * 5);
        Err(Invalid::TraceBudget { budget: ByteSize(recording.budget), needed: ByteSize(needed) })
    }

    /// True if a model of `elements` elements can be recorded whole: the input of the optimizers in a few steps,
    /// and some of the buffers that lead to this input. The answer does not depend on what else was left out.
    pub(super) fn has_room_for(&self, spec: &RunSpec, elements: usize) -> bool {
        let first = |count: usize| Some((0..count.min(FEW)).collect());
        let few = Self {
            steps: first(spec.steps),
            microbatches: Some(spread(spec.gradient_accumulation_steps, FEWEST)),
            ranks: Some(spread(spec.world_size, FEWEST)),
            ..Self::within(self.budget)
        };
        elements <= LARGEST_WHOLE && Size::of_elements(spec, elements, &few).bytes() <= few.room()
    }
}

impl RunSpec {
    /// True if anything of a step is recorded.
    pub fn records_step(&self, step: usize) -> bool {
        step < self.steps && contains(&self.recording.steps, step)
    }

    /// True if a buffer at `point` is recorded in `step`. Weights are also recorded in the step before a recorded
    /// step, because their change is the update of the recorded step.
    pub fn records_point(&self, point: Point, step: usize, microbatch: Option<usize>) -> bool {
        let is_weights = matches!(point, Point::MasterWeights | Point::Parameters);
        self.records_step(step) && microbatch.is_none_or(|it| self.records_microbatch(it))
            || is_weights && self.records_step(step + 1)
    }

    /// True if anything of a microbatch is recorded in the recorded steps.
    pub fn records_microbatch(&self, microbatch: usize) -> bool {
        contains(&self.recording.microbatches, microbatch)
    }

    /// True if the content of a rank's buffers at `point` is recorded, and not only its digest and norm.
    pub fn records_content(&self, point: Point, rank: usize) -> bool {
        !matches!(point, Point::Accumulator | Point::LocalGradient)
            || contains(&self.recording.ranks, rank)
    }

    /// The recorded steps, in order.
    pub fn recorded_steps(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.steps).filter(|step| self.records_step(*step))
    }
}

/// True if `list` contains `number`; `None` stands for all numbers.
fn contains(list: &Option<Vec<usize>>, number: usize) -> bool {
    list.as_ref().is_none_or(|list| list.binary_search(&number).is_ok())
}

/// The largest selection of `most` things that fits, with at least `fewest` of them; `None` for all.
fn largest_part(
    most: usize,
    fewest: usize,
    choose: fn(usize, usize) -> Vec<usize>,
    fits: impl Fn(Option<Vec<usize>>) -> bool,
) -> Option<Vec<usize>> {
    let fewest = fewest.min(most);
    if fits(None) || fewest == most {
        return None;
    }
    let (mut fit, mut too_many) = (fewest, most);
    while too_many - fit > 1 {
        let middle = fit.midpoint(too_many);
        if fits(Some(choose(most, middle))) { fit = middle } else { too_many = middle }
    }
    Some(choose(most, fit))
}

/// Selects `count` of `most` steps: the first steps and, unless `count` is too small, the last few.
fn steps_of(most: usize, count: usize) -> Vec<usize> {
    let last = if count >= FEW { LAST_STEPS } else { 0 };
    (0..count - last).chain(most - last..most).collect()
}

/// Selects `count` of `most` things at equal distances, including the first and the last; a single one is the last.
fn spread(most: usize, count: usize) -> Vec<usize> {
    match count {
        0 | 1 => vec![most - 1],
        count if count >= most => (0..most).collect(),
        _ => (0..count).map(|place| place * (most - 1) / (count - 1)).collect(),
    }
}

/// `bytes` rounded up to two significant digits, so that the number is displayed exactly.
fn rounded_up(bytes: u64) -> u64 {
    let unit = 10u64.pow(bytes.max(10).ilog10() - 1);
    bytes.div_ceil(unit).saturating_mul(unit)
}

/// The numbers from which the size of a trace is computed.
struct Size {
    steps: u64,
    microbatches: u64,
    world_size: u64,
    /// The number of ranks whose own sums are recorded.
    ranks: u64,
    /// The number of elements of the whole model that are recorded.
    elements: u64,
    /// The number of bytes per element of a rank's own sums.
    own: u64,
    /// The number of bytes per element of all points after the reduction: per microbatch, and per step in addition
    /// to its microbatches.
    shared: [u64; 2],
}

impl Size {
    fn new(spec: &RunSpec, plan: &Plan, recording: &Recording) -> Self {
        let elements = if recording.sampled { sampled_elements(spec, plan) } else { plan.numel() };
        Self::of_elements(spec, elements, recording)
    }

    fn of_elements(spec: &RunSpec, elements: usize, recording: &Recording) -> Self {
        let count =
            |list: &Option<Vec<usize>>, all: usize| list.as_ref().map_or(all, Vec::len) as u64;
        let local = if spec.model == Model::Mlp { 4 } else { 0 };
        let has_accumulator = spec.engine().traits().has_accumulator;
        let accumulator = if has_accumulator { spec.grad_accum_dtype.size() } else { 0 };
        // Per microbatch: the reduced gradient. Per step: the gradient before the step, the optimizer's input, the
        // master weights and the parameters.
        let step = 3 * 4 + spec.dtype.size();
        Self {
            steps: count(&recording.steps, spec.steps),
            microbatches: count(&recording.microbatches, spec.gradient_accumulation_steps),
            world_size: spec.world_size as u64,
            ranks: count(&recording.ranks, spec.world_size),
            elements: elements as u64,
            own: (accumulator + local) as u64,
            shared: [4, step as u64],
        }
    }

    /// The size of the trace in bytes, if ranks that should hold the same content do so; such content is stored once.
    fn bytes(&self) -> u64 {
        let base64 = |bytes: u64| bytes.saturating_mul(4) / 3;
        let of_step = |per_microbatch: u64, per_step: u64| {
            self.microbatches.saturating_mul(per_microbatch).saturating_add(per_step)
        };
        let events = of_step(EVENTS[0], EVENTS[1]) * EVENT;
        let own = of_step(self.own, 0).saturating_mul(self.elements).saturating_mul(self.ranks);
        let shared = of_step(self.shared[0], self.shared[1]).saturating_mul(self.elements);
        let step = events
            .saturating_mul(self.world_size)
            .saturating_add(base64(own))
            .saturating_add(base64(shared));
        step.saturating_mul(self.steps)
    }
}

/// The maximum number of elements that are recorded of a sampled buffer.
fn sampled_elements(spec: &RunSpec, plan: &Plan) -> usize {
    let most = WINDOWS * Plan::code(spec).length();
    let of_params: usize = plan.params().iter().map(|param| param.numel().min(most)).sum();
    // A parameter is cut where a partition boundary crosses it, and each piece has its own sample.
    (of_params + spec.world_size * most).min(plan.numel())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::SpecRequest;

    fn resolve(world_size: usize, ga: usize, steps: usize) -> RunSpec {
        let request = SpecRequest {
            world_size: Some(world_size),
            gradient_accumulation_steps: Some(ga),
            steps: Some(steps),
            ..SpecRequest::default()
        };
        request.resolve().expect("a valid request")
    }

    fn estimate(spec: &RunSpec) -> u64 {
        Size::new(spec, &Plan::new(spec), &spec.recording).bytes()
    }

    #[test]
    fn a_small_run_is_recorded_whole() {
        assert_eq!(resolve(2, 4, 2).recording, Recording::default());
        assert_eq!(resolve(8, 4, 2).recording, Recording::default());
    }

    #[test]
    fn every_run_of_a_few_hundred_ranks_fits_the_budget_and_keeps_its_ends() {
        for (world_size, ga, steps) in
            [(4, 4, 400), (4, 4, 2000), (2, 4096, 2), (64, 4, 2), (128, 4, 2), (512, 1, 100)]
        {
            let spec = resolve(world_size, ga, steps);
            assert!(estimate(&spec) <= DEFAULT_BUDGET, "{world_size} {ga} {steps}");
            let boundary = ga - 1;
            assert!(spec.records_step(0) && spec.records_step(1));
            assert!(spec.records_microbatch(boundary), "{:?}", spec.recording);
        }
        let long = resolve(4, 4, 2000);
        assert!(long.records_step(1999) && !long.records_step(1900));
    }

    #[test]
    fn a_budget_that_is_too_small_for_a_verdict_is_refused_with_what_it_takes() {
        let request = SpecRequest {
            trace_budget: Some(ByteSize(20_000)),
            steps: Some(100),
            ..SpecRequest::default()
        };
        let refusal = request.resolve().expect_err("it has no room");
        let [Invalid::TraceBudget { needed, .. }] = refusal.problems() else { panic!("{refusal}") };
        let said = needed.display().si().to_string().parse();
        let request =
            SpecRequest { trace_budget: said.ok(), steps: Some(100), ..SpecRequest::default() };
        assert!(request.resolve().is_ok(), "what the message says is enough: {needed}");
    }

    #[test]
    fn parts_are_chosen_at_equal_distances_with_both_ends() {
        assert_eq!(spread(10, 2), [0, 9]);
        assert_eq!(spread(10, 4), [0, 3, 6, 9]);
        assert_eq!(spread(10, 1), [9]);
        assert_eq!(steps_of(100, 10), [0, 1, 2, 3, 4, 5, 6, 97, 98, 99]);
        assert_eq!(steps_of(100, 2), [0, 1]);
    }
}
