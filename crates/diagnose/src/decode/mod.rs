//! Contribution weights: which gradients a buffer holds, and how many times it holds each of them.
//!
//! For a buffer `b`, decoding finds `w` with `b = 1/(W·GA)·Σ w[r,m]·g[r,m]`: exactly for coded data (`coded`), and by
//! least squares otherwise (`dense`).

mod coded;
mod cut;
mod dense;
mod entries;
mod first_step;
mod fitted;
mod groups;
mod hypotheses;
mod precision;
mod scale;
mod short;
mod sums;
mod together;
mod weights;
mod windows;

use std::collections::BTreeMap;
use std::rc::Rc;

use zprobe_model::spec::{Model, Plan, RunSpec, Usage};
use zprobe_model::trace::Point;
use zprobe_report::words::{amount, counted};
use zprobe_report::{Contribution, Elements, Possible, Precision};

use crate::missing::UnseenElements;
use crate::norm::{Clipping, PlannedNorms};
use crate::observed::{Buffer, Observed};
use crate::placement::ModelPlacement;
use hypotheses::WeightSlip;
use weights::ColumnWeights;

/// The factor by which a user's script multiplied all gradients of a buffer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factor {
    /// The value of the factor; 1/W for an average over W ranks.
    pub value: f64,
    /// The bound on the relative error of `value`.
    pub slack: f64,
    /// True if the factor could not be read, because the weights are too wrong to show it, so that an average is
    /// assumed.
    pub is_assumed: bool,
}

impl Factor {
    /// Creates a factor that was read from weights without rounding.
    fn exact(value: f64) -> Self {
        Self { value, slack: 0.0, is_assumed: false }
    }

    /// Creates the factor that gives a rank's own gradients their planned weight before a reduction.
    fn own(spec: &RunSpec) -> Self {
        Self::exact(1.0 / spec.world_size as f64)
    }

    /// Creates the factor that is assumed if the weights do not show it: that of an average over `replicas` ranks.
    fn assumed(replicas: usize) -> Self {
        Self { is_assumed: true, ..Self::exact(1.0 / replicas as f64) }
    }
}

/// The contribution weights of all buffers, and how exactly and how completely they could be read.
pub struct Decoded {
    /// The contributions: one entry per buffer, or several entries if different parts of a buffer have different
    /// weights.
    pub contributions: Vec<Contribution>,
    /// The smallest change of a weight at the optimizer's input that would have been detected; `None` if no weights
    /// could be read there.
    pub smallest_weight_deviation: Option<f64>,
    /// The largest condition number of the linear systems that were solved for the weights; 1 for coded gradients,
    /// `None` if no system was solved.
    pub condition: Option<f64>,
    /// The smallest change of one element that would have been detected, in units of one contribution; `None` for
    /// dense gradients.
    pub smallest_element_deviation: Option<f64>,
    /// The precision with which gradients were added up, by point; empty for coded gradients, whose sums are exact.
    pub precision: Vec<Precision>,
    /// The factors by which a user's script multiplied all gradients, by (step, rank), as far as they were read.
    pub factors: BTreeMap<(usize, usize), Factor>,
    /// The reasons why weights could not be read, one sentence each.
    pub refusals: Vec<String>,
    /// True if everything that the optimizers should consume was read.
    complete: bool,
    /// The number of elements that were read at the last point that shows the weights
    /// ([`zprobe_model::spec::RunSpec::last_word`]), by (step, rank).
    read: BTreeMap<(usize, usize), usize>,
}

impl Decoded {
    /// Creates the result of a run in which nothing has been decoded yet.
    fn empty() -> Self {
        Self {
            contributions: Vec::new(),
            smallest_weight_deviation: None,
            condition: None,
            smallest_element_deviation: None,
            precision: Vec::new(),
            factors: BTreeMap::new(),
            refusals: Vec::new(),
            complete: true,
            read: BTreeMap::new(),
        }
    }

    /// Withdraws all conclusions about the weights, for the given reason.
    pub fn refuse(&mut self, why: String) {
        self.complete = false;
        self.refusals.push(why);
    }

    /// Iterates over the contributions at a point in a step.
    pub fn at(&self, point: Point, step: usize) -> impl Iterator<Item = &Contribution> {
        self.contributions.iter().filter(move |it| it.point == point && it.step == step)
    }

    /// Iterates over the contributions at a point that are not as planned.
    pub fn departed(&self, point: Point) -> impl Iterator<Item = &Contribution> {
        self.contributions.iter().filter(move |it| it.point == point && !it.as_planned)
    }

    /// True if everything that the optimizers should consume was read, well enough for a conclusion.
    pub fn complete(&self) -> bool {
        self.complete && self.smallest_weight_deviation.is_some()
    }
}

/// Removes the deviations of a script's first recorded step, if a later step still holds gradients of its previous
/// step. Then the first recorded step may also hold gradients of the step before it, whose codes have another length
/// and can look like any weights, unless the rank recognised them and took them out.
fn without_older_codes(observed: &Observed<'_>, contributions: &mut Vec<Contribution>) {
    let spec = observed.spec;
    let Some(first) = spec.recorded_steps().next() else { return };
    let is_late = |it: &Contribution| {
        let left = it.leftover.iter().flatten().any(|weight| weight.abs() > it.tolerance);
        it.step > first && it.residual <= it.tolerance && left
    };
    if spec.script().is_some() && contributions.iter().any(is_late) {
        let is_known = |it: &Contribution| observed.updates.left.contains_key(&(it.step, it.rank));
        contributions.retain(|it| it.step != first || it.as_planned || is_known(it));
    }
}

/// The facts about a run that decoding needs.
pub struct Scene<'a> {
    /// The events of the trace, sorted by topic.
    pub observed: &'a Observed<'a>,
    /// The plan of where every gradient should have gone.
    pub plan: &'a Plan,
    /// The placement of the parameters on the ranks.
    pub placement: &'a ModelPlacement,
    /// The elements that were not seen in any rank's optimizer.
    pub missing: &'a UnseenElements,
    /// The norms that the gradients must have.
    pub norms: &'a PlannedNorms,
}

impl Scene<'_> {
    /// Returns the clipping that was applied to a buffer.
    fn clip(&self, buffer: &Buffer<'_>) -> Clipping {
        match (buffer.point, buffer.step) {
            (Point::OptimizerInput | Point::MasterWeights | Point::Parameters, Some(step)) => {
                Clipping::of(self.observed, self.norms, step, buffer.rank)
            }
            _ => Clipping::No,
        }
    }
}

/// Reads the weights in all buffers.
pub fn decode(scene: &Scene<'_>) -> Decoded {
    let spec = scene.observed.spec;
    let mut decoded = match spec.model {
        Model::Coded => coded::decode(scene),
        Model::Mlp if spec.script().is_some() => fitted::decode(scene),
        Model::Mlp => dense::decode(scene),
    };
    if spec.model == Model::Coded {
        without_older_codes(scene.observed, &mut decoded.contributions);
    }
    decoded.check_completeness(scene);
    decoded.refusals.sort();
    decoded.refusals.dedup();
    decoded
}

impl Decoded {
    /// Checks that the buffers were read in full, and lists the parts that were not. A clean verdict needs every
    /// trainable element that had to be recorded, on every rank that holds it, in every step that the engine did not
    /// skip.
    fn check_completeness(&mut self, scene: &Scene<'_>) {
        let spec = scene.observed.spec;
        if scene.observed.gives_up_as_a_habit() {
            self.complete = false;
            let refusal = "microbatches whose gradients were cleared repeatedly before an optimizer stepped: the \
                           script may do so on purpose, or the first step has fewer microbatches than later steps";
            self.refusals.push(refusal.to_owned());
        }
        for (rank, records) in &scene.observed.script.lacking {
            let records = amount(usize::try_from(*records).unwrap_or(usize::MAX), "record");
            self.refuse(format!("{records} of rank {rank}: the trace does not contain them"));
        }
        self.complete &= !scene.missing.is_much(spec);
        let outcome = spec.last_word() == Point::Parameters;
        if !outcome && !scene.placement.is_complete() {
            self.complete = false;
            self.refusals.push("the partition of a rank: its layout was not recorded".to_owned());
        }
        // Codes tell the weights of the first microbatches of a long step; samples tell nothing about it.
        let is_readable = |step: &usize| {
            spec.model == Model::Coded || !scene.observed.has_unrecorded_microbatches(*step)
        };
        for step in spec.recorded_steps().filter(is_readable) {
            let partial: Vec<usize> = (0..spec.world_size)
                .filter(|&rank| !scene.observed.updates.skipped(step, rank))
                .filter(|&rank| {
                    let wanted = if outcome {
                        scene.placement.wanted_of_model(rank, scene.plan)
                    } else {
                        scene.placement.wanted(rank)
                    };
                    let read = self.read.get(&(step, rank)).copied().unwrap_or(0);
                    let ga = spec.gradient_accumulation_steps;
                    // An optimizer without any due gradient may get no input.
                    let idle = read == 0
                        && !outcome
                        && !scene.placement.is_due(scene.plan, step, rank, ga);
                    !idle && wanted.is_none_or(|wanted| read < wanted)
                })
                .collect();
            if !partial.is_empty() {
                self.refusals.push(format!(
                    "the {} of step {step} on {}: it was not read in full",
                    spec.last_word().describe(),
                    counted("rank", &partial)
                ));
            }
            self.complete &= partial.is_empty();
        }
    }
}

/// The weights that were read from one piece of a buffer.
#[derive(Clone)]
struct Reading {
    /// The weights by column of the run (see [`zprobe_model::spec::RunSpec::column`]).
    weights: Rc<ColumnWeights>,
    /// All candidate weights, if the piece has too few elements to decide between them; empty if the weights are
    /// certain.
    possible: Vec<Rc<ColumnWeights>>,
    /// The known mistake that leads from the planned weights to these; `None` if no mistake was assumed.
    slip: Option<WeightSlip>,
    /// True if the weights are the planned ones and cover all parameters of ordinary usage.
    is_plain: bool,
    /// The largest part of an element that no gradient explains, in units of one contribution.
    residual: f64,
    /// The bound on the error of a weight.
    tolerance: f64,
    /// The fraction of the elements whose weights were decoded without help from other pieces.
    covered: f64,
    /// The microbatches that use the parameters.
    usage: Usage,
    /// The names of the parameters in the piece; `None` for all parameters that no other reading of the buffer names.
    params: Option<Vec<String>>,
    /// The runs of elements that were read; empty if the reading is about whole parameters.
    elements: Vec<Elements>,
}

/// Returns the weights that the plan expects in this buffer after `step`, in parameters with this `usage`.
fn expected(scene: &Scene<'_>, buffer: &Buffer<'_>, step: usize, usage: Usage) -> Vec<f64> {
    let spec = scene.observed.spec;
    let is_update = matches!(buffer.point, Point::MasterWeights | Point::Parameters);
    if is_update && scene.observed.updates.skipped(step, buffer.rank) {
        return vec![0.0; spec.contributions()];
    }
    let microbatch = buffer.microbatch.unwrap_or(spec.gradient_accumulation_steps - 1);
    scene.plan.expected(usage, buffer.point, step, microbatch, buffer.rank)
}

/// Compares a reading with the plan, and turns it into an entry of the report.
fn contribution(scene: &Scene<'_>, buffer: &Buffer<'_>, reading: Reading) -> Contribution {
    let spec = scene.observed.spec;
    let step = buffer.step.unwrap_or(0);
    let ga = spec.gradient_accumulation_steps;
    let mut expected = expected(scene, buffer, step, reading.usage);
    let weights = &reading.weights.columns;
    let nothing = weights.iter().all(|weight| *weight == 0.0);
    if nothing && scene.clip(buffer) == Clipping::Unbounded {
        expected.fill(0.0);
    }
    let as_planned = reading.residual <= reading.tolerance
        && weights
            .iter()
            .zip(&expected)
            .all(|(weight, expected)| (weight - expected).abs() <= reading.tolerance);
    let of_step = |weights: &[f64], step: usize, rank: usize| {
        weights[spec.column(step, rank, 0)..][..ga].to_vec()
    };
    let ranks = 0..spec.world_size;
    let of_ranks = |columns: &[f64]| -> Vec<Vec<f64>> {
        ranks.clone().map(|rank| of_step(columns, step, rank)).collect()
    };
    // A step shares its codes with an older step. If gradients of the steps in between are left over, the excess over
    // the plan is attributed to the older step. A script's first step has its own codes.
    let is_shared = step >= spec.code_steps() + usize::from(spec.script().is_some());
    let tables = |weights: &[f64]| {
        let earlier = |rank| {
            let steps = spec.steps_seen(step).filter(|earlier| *earlier < step);
            steps.flat_map(|step| of_step(weights, step, rank)).collect()
        };
        let leftover: Vec<Vec<f64>> = ranks.clone().map(earlier).collect();
        let is_left = leftover.iter().flatten().any(|weight| weight.abs() > reading.tolerance);
        let own = if is_left && is_shared { &expected[..] } else { weights };
        Possible { weights: of_ranks(own), leftover }
    };
    let possible = reading.possible.iter().map(|weights| tables(&weights.columns)).collect();
    let Possible { weights, leftover } = tables(weights);
    Contribution {
        point: buffer.point,
        step,
        microbatch: buffer.microbatch,
        rank: buffer.rank,
        weights,
        expected: of_ranks(&expected),
        leftover,
        params: reading.params,
        elements: reading.elements,
        possible,
        residual: reading.residual,
        tolerance: reading.tolerance,
        covered: reading.covered,
        as_planned,
        also: Vec::new(),
    }
}

/// Returns the largest value; infinity if one of the values is NaN.
pub(super) fn largest(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(
        0.0,
        |largest: f64, value| {
            if value.is_nan() { f64::INFINITY } else { largest.max(value) }
        },
    )
}

/// Rounds a weight to the nearest integer, if that is within `tolerance`.
fn snap(weight: f64, tolerance: f64) -> f64 {
    let integer = weight.round();
    // Adding zero turns -0 into 0.
    if (weight - integer).abs() <= tolerance { integer + 0.0 } else { weight }
}

/// True if the weights of this buffer can be read. Weights in master weights and parameters show only in a coded run,
/// with an optimizer whose update is a multiple of the gradient, and in a step that was taken.
fn is_readable(observed: &Observed<'_>, buffer: &Buffer<'_>) -> bool {
    match buffer.point {
        Point::LocalGradient => false,
        Point::Accumulator | Point::Reduced | Point::BeforeStep | Point::OptimizerInput => true,
        Point::MasterWeights | Point::Parameters => {
            // A step that failed did not reach its update.
            let taken = buffer.step.is_some_and(|step| !observed.failed_in(step, buffer.rank));
            let spec = observed.spec;
            spec.model == Model::Coded && spec.optimizer.readable_lr().is_some() && taken
        }
    }
}
