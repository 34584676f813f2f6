//! The plan of a run: where every gradient should go.
//!
//! The diagnosis compares the observed buffers with the plan. Gradients, master weights and parameters share one
//! flat order, in which the parameters follow one another. The plan does not say how an engine cuts this order into
//! partitions and buckets.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Point, RunSpec, Usage, code::Code, models};

/// A parameter of the synthetic model and its place in the flat order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Param {
    /// The dotted name, as `named_parameters()` returns it.
    pub name: String,
    /// The dimensions of the parameter, as torch prints them.
    pub shape: Vec<usize>,
    /// The index of the parameter's first element in the flat order.
    pub offset: usize,
    /// True if the parameter requires a gradient.
    pub trainable: bool,
    /// The ranks that hold the parameter, if model parallelism gives each rank only some parameters; empty for all
    /// ranks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<usize>,
}

impl Param {
    /// A trainable parameter without a position in the flat order.
    pub fn new(name: impl Into<String>, shape: Vec<usize>) -> Self {
        Self { name: name.into(), shape, offset: 0, trainable: true, ranks: Vec::new() }
    }

    /// The parameter's name in a model that is not split into stages or parts.
    pub fn base_name(&self) -> &str {
        base_name(&self.name)
    }

    /// True if a rank holds the parameter.
    pub fn is_on(&self, rank: usize) -> bool {
        self.ranks.is_empty() || self.ranks.contains(&rank)
    }

    /// The number of elements of the parameter.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// The elements of the flat order that belong to this parameter.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.numel()
    }
}

/// The name of a parameter without its pipeline stage and without its part for tensor parallelism: `head.bias` for
/// `stages.2.head.bias` and for `head.bias[tp=1]`.
pub fn base_name(name: &str) -> &str {
    let of_stage = name.strip_prefix(STAGES).and_then(|name| name.split_once('.'));
    let name = of_stage.map_or(name, |(_, name)| name);
    name.split_once('[').map_or(name, |(base, _)| base)
}

/// The prefix of the names of parameters that belong to a pipeline stage; the number of the stage follows.
pub(super) const STAGES: &str = "stages.";

/// A run of consecutive elements of one parameter, or of padding, in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Segment {
    /// The index of the parameter; `None` for padding.
    pub param: Option<usize>,
    /// The index of the segment's first element within the parameter.
    pub offset: usize,
    /// The number of elements of the segment.
    pub len: usize,
    /// True if the elements may belong to a parameter, but were not recognised.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unread: bool,
}

impl Segment {
    /// A segment of a parameter, or of padding.
    pub fn new(param: Option<usize>, offset: usize, len: usize) -> Self {
        Self { param, offset, len, unread: false }
    }
}

/// The microbatches of a run, as (step, rank, microbatch).
pub type Microbatches = BTreeSet<(usize, usize, usize)>;

/// The plan of one run: the parameters in flat order, and the microbatches that use them.
#[derive(Clone, Debug)]
pub struct Plan {
    params: Vec<Param>,
    usages: Vec<Usage>,
    /// The usage of the parameters that no shape is about; for a script, the most common usage.
    ordinary: Usage,
    /// The sets of microbatches that use a parameter; [`Usage::seen`] is an index into this list.
    seen: Vec<Microbatches>,
    numel: usize,
    world_size: usize,
    gradient_accumulation_steps: usize,
    code_steps: usize,
    recorded_steps: usize,
}

impl Plan {
    /// The plan that follows from `spec`, for the synthetic model of the run.
    pub fn new(spec: &RunSpec) -> Self {
        Self::with_params(spec, models::params(spec))
    }

    /// The plan for a model with these parameters, in flat order.
    pub fn with_params(spec: &RunSpec, params: Vec<Param>) -> Self {
        let params = lay_out(params);
        let numel: usize = params.iter().map(Param::numel).sum();
        let usages = params.iter().map(|param| Usage::of(spec, param)).collect();
        Self {
            params,
            usages,
            ordinary: Usage::ordinary(spec),
            seen: Vec::new(),
            numel,
            world_size: spec.world_size,
            gradient_accumulation_steps: spec.gradient_accumulation_steps,
            code_steps: spec.code_steps(),
            recorded_steps: spec.recorded_steps().count(),
        }
    }

    /// This plan for a script: `used` holds the microbatches that used each parameter, and `all` the microbatches
    /// that the script ran.
    #[must_use]
    pub fn of_microbatches(mut self, used: Vec<Microbatches>, all: &Microbatches) -> Self {
        let whole = all.len() == self.recorded_microbatches();
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        self.usages = used
            .into_iter()
            .map(|used| {
                if whole && used == *all && !all.is_empty() {
                    return Usage::ALWAYS;
                }
                let known = self.seen.iter().position(|seen| *seen == used);
                let number = known.unwrap_or_else(|| {
                    self.seen.push(used);
                    self.seen.len() - 1
                });
                *counts.entry(number).or_default() += 1;
                Usage::of_pattern(number)
            })
            .collect();
        let always = self.usages.iter().filter(|usage| usage.uses_all()).count();
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        // A parameter that no microbatch uses counts as not trainable, so no gradient is expected of it.
        for (param, usage) in self.params.iter_mut().zip(&self.usages) {
            param.trainable &= usage.seen.is_none_or(|number| !self.seen[number].is_empty());
        }
        self.ordinary = match most {
            Some((number, count)) if count > always => Usage::of_pattern(number),
            _ => Usage::ALWAYS,
        };
        self
    }

    fn recorded_microbatches(&self) -> usize {
        self.recorded_steps * self.world_size * self.gradient_accumulation_steps
    }

    /// The code that determines the gradients of a coded run.
    pub fn code(spec: &RunSpec) -> Code {
        match spec.script().and_then(|script| script.reserved) {
            None => Code::new(spec.contributions(), spec.seed),
            Some(reserved) => {
                let microbatches = spec.gradient_accumulation_steps;
                Code::spread(spec.contributions(), microbatches, reserved, spec.seed)
            }
        }
    }

    /// The default capacity of an IPG bucket, in elements: small enough that buckets fill before the boundary, and
    /// that the coded model's largest parameter does not fit into a bucket.
    pub fn default_bucket_size(spec: &RunSpec) -> usize {
        models::default_bucket_size(spec)
    }

    /// The parameters in flat order.
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// The usage of a parameter: which microbatches use it.
    pub fn usage(&self, param: usize) -> Usage {
        self.usages[param]
    }

    /// The usage that most parameters have.
    pub fn ordinary(&self) -> Usage {
        self.ordinary
    }

    /// True if this microbatch of a rank uses the parameters with this usage.
    pub fn uses(&self, usage: Usage, step: usize, rank: usize, microbatch: usize) -> bool {
        match usage.seen {
            Some(number) => self.seen[number].contains(&(step, rank, microbatch)),
            None => usage.uses(step, rank, microbatch, self.gradient_accumulation_steps),
        }
    }

    /// The number of elements of all parameters together.
    pub fn numel(&self) -> usize {
        self.numel
    }

    /// The layout of a buffer that holds every parameter whole.
    pub fn segments(&self) -> Vec<Segment> {
        let segment = |(index, param): (usize, &Param)| Segment::new(Some(index), 0, param.numel());
        self.params.iter().enumerate().map(segment).collect()
    }

    /// The weights that `rank` should hold at `point` after `microbatch` of `step`, in a parameter with this
    /// `usage`: one weight for each source column (see [`RunSpec::column`]), in units of the averaged gradient
    /// `g/(W·GA)`.
    ///
    /// Before the reduction a rank holds only its own gradients, which are not yet divided by `W`, so their weight
    /// is `W`. From the reduction on, every gradient of the step so far has weight 1. A microbatch that does not
    /// use the parameter has no gradient in it. In an expert, the gradients of a rank come from the data of all
    /// ranks.
    pub fn expected(
        &self,
        usage: Usage,
        point: Point,
        step: usize,
        microbatch: usize,
        rank: usize,
    ) -> Vec<f64> {
        let (world, ga) = (self.world_size, self.gradient_accumulation_steps);
        let mut weights = vec![0.0; self.code_steps * world * ga];
        let first = step % self.code_steps * world * ga;
        for (index, weight) in weights[first..][..world * ga].iter_mut().enumerate() {
            let (source, m) = (index / ga, index % ga);
            let is_own = source == rank || usage.is_experts();
            let own = if is_own { world as f64 } else { 0.0 };
            let planned = match point {
                Point::LocalGradient if m == microbatch => own,
                Point::Accumulator if m <= microbatch => own,
                Point::Reduced if m <= microbatch => 1.0,
                Point::LocalGradient | Point::Accumulator | Point::Reduced => 0.0,
                Point::BeforeStep
                | Point::OptimizerInput
                | Point::MasterWeights
                | Point::Parameters => 1.0,
            };
            *weight = if self.uses(usage, step, source, m) { planned } else { 0.0 };
        }
        weights
    }
}

fn lay_out(mut params: Vec<Param>) -> Vec<Param> {
    let mut offset = 0;
    for param in &mut params {
        param.offset = offset;
        offset += param.numel();
    }
    params
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::spec::{Engine, Model, Schedule, Shape, SpecRequest};

    fn plan(world_size: usize, ga: usize, steps: usize) -> (RunSpec, Plan) {
        let request = SpecRequest {
            world_size: Some(world_size),
            gradient_accumulation_steps: Some(ga),
            steps: Some(steps),
            ..SpecRequest::default()
        };
        let spec = request.resolve().expect("a valid request");
        let plan = Plan::new(&spec);
        (spec, plan)
    }

    proptest! {
        #[test]
        fn the_coded_model_has_the_shapes_in_which_bugs_hide(
            world_size in 1usize..17, ga in 1usize..9, steps in 1usize..4,
        ) {
            let (spec, plan) = plan(world_size, ga, steps);
            let code = Plan::code(&spec).length();
            let sizes: Vec<usize> = plan.params().iter().map(Param::numel).collect();
            prop_assert!(sizes.iter().any(|&size| size > spec.reduce_bucket_size));
            prop_assert!(sizes.iter().any(|&size| size < code));
        }
    }

    #[test]
    fn partition_boundaries_leave_no_part_too_short_to_decode() {
        for world_size in 1..=8 {
            for ga in 1..=8 {
                for steps in 1..=3 {
                    let (spec, plan) = plan(world_size, ga, steps);
                    let shortest = Plan::code(&spec).shortest();
                    let partition = plan.numel().div_ceil(world_size);
                    for param in plan.params() {
                        let range = param.range();
                        let cuts = (1..world_size).map(|rank| rank * partition);
                        let inner = cuts.filter(|cut| range.contains(cut) && *cut > range.start);
                        let ends = inner.chain([range.end]);
                        let mut start = range.start;
                        for end in ends {
                            assert!(
                                end - start >= shortest,
                                "{world_size} ranks, {ga} microbatches: {} {start}..{end}",
                                param.name
                            );
                            start = end;
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_larger_model_has_the_same_parameters_and_at_least_the_elements_that_were_asked_for() {
        for model in [Model::Coded, Model::Mlp] {
            let request = |parameters| SpecRequest {
                engine: Some(Engine::Ddp),
                model: Some(model),
                parameters,
                ..SpecRequest::default()
            };
            let plan = |parameters| Plan::new(&request(parameters).resolve().expect("it runs"));
            let small = plan(None);
            for asked in [1, 1_000_000, 50_000_001] {
                let large = plan(Some(asked));
                let names = |plan: &Plan| -> Vec<String> {
                    plan.params().iter().map(|param| param.name.clone()).collect()
                };
                assert_eq!(names(&large), names(&small));
                assert!(large.numel() >= asked.max(small.numel()));
                assert!(large.numel() < 2 * asked.max(small.numel()));
            }
            assert_eq!(plan(Some(1)).params(), small.params());
        }
    }

    #[test]
    fn before_the_reduction_a_rank_expects_its_own_gradients_undivided() {
        let (_, plan) = plan(2, 2, 2);
        let expected = |point, step, m, rank| plan.expected(Usage::ALWAYS, point, step, m, rank);
        assert_eq!(expected(Point::Accumulator, 0, 0, 0), [2., 0., 0., 0., 0., 0., 0., 0.]);
        assert_eq!(expected(Point::Accumulator, 1, 1, 1), [0., 0., 0., 0., 0., 0., 2., 2.]);
        assert_eq!(expected(Point::OptimizerInput, 1, 1, 0), [0., 0., 0., 0., 1., 1., 1., 1.]);
        assert_eq!(expected(Point::Reduced, 0, 0, 1), [1., 0., 1., 0., 0., 0., 0., 0.]);
    }

    #[test]
    fn a_part_of_a_model_is_due_the_gradients_of_the_ranks_that_hold_it() {
        let request = |engine| SpecRequest {
            engine: Some(engine),
            world_size: Some(4),
            gradient_accumulation_steps: Some(2),
            steps: Some(1),
            ..SpecRequest::default()
        };
        let fsdp2 = SpecRequest { tensor_parallel: Some(2), ..request(Engine::Fsdp2) };
        let pipeline = SpecRequest {
            pipelines: Some(2),
            schedule: Some(Schedule::ZbvZeroBubble),
            gradient_accumulation_steps: Some(4),
            ..request(Engine::Pipeline)
        };
        for (request, name, ranks) in [
            (&fsdp2, "head.bias[tp=1]", [1, 3]),
            (&pipeline, "stages.2.head.bias", [1, 3]),
            (&pipeline, "stages.3.head.bias", [0, 2]),
        ] {
            let spec = request.clone().resolve().expect("a valid request");
            let plan = Plan::new(&spec);
            let number = plan.params().iter().position(|it| it.name == name).expect(name);
            assert_eq!(plan.params()[number].ranks, ranks);
            assert_eq!(plan.params()[number].base_name(), "head.bias");
            let ga = spec.gradient_accumulation_steps;
            let weights = plan.expected(plan.usage(number), Point::OptimizerInput, 0, ga - 1, 0);
            for (column, weight) in weights.iter().enumerate() {
                let is_due = ranks.contains(&(column / ga));
                assert_eq!(*weight, f64::from(u8::from(is_due)), "{name}: {weights:?}");
            }
        }
    }

    #[test]
    fn an_expert_has_all_ranks_gradients_before_any_reduction() {
        let (spec, plan) = plan(2, 2, 1);
        let spec = RunSpec { shapes: vec![Shape::Experts], ..spec };
        let name = Shape::Experts.param().expect("a shape of one parameter");
        let usage = Usage::of(&spec, &Param::new(name, vec![1]));
        let expected = |point, m| plan.expected(usage, point, 0, m, 1);
        assert_eq!(expected(Point::Accumulator, 0), [2., 0., 2., 0.]);
        assert_eq!(expected(Point::LocalGradient, 1), [0., 2., 0., 2.]);
        assert_eq!(expected(Point::OptimizerInput, 1), [1.; 4]);
    }

    #[test]
    fn a_microbatch_that_does_not_use_a_parameter_is_expected_nowhere_in_it() {
        let (spec, plan) = plan(2, 3, 2);
        let name = |shape: Shape| shape.param().expect("a shape of one parameter");
        let expected = |shapes: &[Shape], shape: Shape, step| {
            let spec = RunSpec { shapes: shapes.to_vec(), ..spec.clone() };
            let usage = Usage::of(&spec, &Param::new(name(shape), vec![1]));
            let weights = plan.expected(usage, Point::OptimizerInput, step, 2, 0);
            weights[6 * step..][..6].to_vec()
        };
        let of = |shape, step| expected(&[shape], shape, step);
        assert_eq!(of(Shape::UnusedFirst, 1), [0., 1., 1., 0., 1., 1.]);
        assert_eq!(of(Shape::UnusedLast, 0), [1., 1., 0., 1., 1., 0.]);
        assert_eq!(of(Shape::UnusedAlternating, 0), [1.; 6]);
        assert_eq!(of(Shape::UnusedAlternating, 1), [0.; 6]);
        assert_eq!(of(Shape::UnusedOnOddRanks, 0), [1., 1., 1., 0., 0., 0.]);
        assert_eq!(of(Shape::UnusedAlways, 0), [0.; 6]);
        assert_eq!(of(Shape::Tied, 0), [1.; 6]);
        let both = [Shape::UnusedFirst, Shape::Unmanaged];
        assert_eq!(expected(&both, Shape::UnusedFirst, 0), [0., 1., 0., 0., 1., 0.]);
    }
}
