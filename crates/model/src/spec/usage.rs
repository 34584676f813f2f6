//! The usage of parameters: which microbatches of a run use each parameter, according to the run's shapes.

use super::plan::Param;
use super::{RunSpec, Shape};

/// The microbatches whose loss depends on a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Usage {
    /// True if any microbatch uses the parameter.
    ever: bool,
    /// True if the first microbatch of each step uses the parameter.
    first: bool,
    /// True if the last microbatch of each step uses the parameter.
    last: bool,
    /// True if the microbatches of every other step, beginning with the first, use the parameter.
    even_steps: bool,
    /// True if the microbatches of every other step, beginning with the second, use the parameter.
    odd_steps: bool,
    /// True if the ranks with an odd number use the parameter.
    odd_ranks: bool,
    /// True if the ranks with an even number use the parameter.
    even_ranks: bool,
    /// True for an expert: each rank's gradient of the parameter comes from the data of all ranks.
    from_all: bool,
    /// The part of the model that the parameter belongs to, if only some ranks hold and use it; `None` if all ranks do.
    part: Option<Part>,
    /// The index of the pattern in [`super::Plan`] that says which microbatches use the parameter; `None` if the
    /// fields above say so.
    pub(super) seen: Option<usize>,
}

/// A part of a model that is split by model parallelism: of `parts` consecutive ranks, each holds one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Part {
    /// The number of parts.
    parts: usize,
    /// The index of this part.
    number: usize,
}

impl Part {
    /// The part that a parameter belongs to; `None` if every rank holds the parameter.
    fn of(spec: &RunSpec, param: &Param) -> Option<Self> {
        let parts = spec.model_parallel();
        let first = param.ranks.first().filter(|_| parts > 1)?;
        Some(Self { parts, number: first % parts })
    }

    /// True if a rank holds this part.
    fn is_on(self, rank: usize) -> bool {
        rank % self.parts == self.number
    }
}

impl Usage {
    /// The usage of a parameter that every microbatch uses.
    pub const ALWAYS: Usage = Usage {
        ever: true,
        first: true,
        last: true,
        even_steps: true,
        odd_steps: true,
        odd_ranks: true,
        even_ranks: true,
        from_all: false,
        part: None,
        seen: None,
    };

    /// The usage of a parameter by the microbatches of a pattern in the plan.
    pub(super) fn of_pattern(number: usize) -> Self {
        Self { seen: Some(number), ..Self::ALWAYS }
    }

    /// The number of steps after which the usage of every parameter repeats.
    pub const PERIOD: usize = 2;

    /// The usage of a parameter in a run.
    pub fn of(spec: &RunSpec, param: &Param) -> Self {
        let forward = Self::in_forward(spec, param);
        Self {
            ever: forward.ever && param.trainable,
            last: forward.last && Self::ordinary(spec).last,
            ..forward
        }
    }

    /// The usage of a parameter by the terms of the loss in the engine's forward. A parameter is unused in the steps in
    /// which the shape `frozen-alternating` freezes it; the shape `frozen` does not count.
    pub(super) fn in_forward(spec: &RunSpec, param: &Param) -> Self {
        let about = |shape: Shape| spec.has_shape(shape) && shape.is_about(param.base_name());
        Self {
            ever: !about(Shape::UnusedAlways),
            first: !about(Shape::UnusedFirst) && !about(Shape::SkippedBlock),
            last: !about(Shape::UnusedLast) && !about(Shape::DetachedBlock),
            even_steps: !about(Shape::FrozenAlternating),
            odd_steps: !about(Shape::UnusedAlternating),
            odd_ranks: !about(Shape::UnusedOnOddRanks),
            even_ranks: !about(Shape::UnusedOnEvenRanks),
            from_all: about(Shape::Experts),
            part: Part::of(spec, param),
            seen: None,
        }
    }

    /// The usage of the parameters that no shape is about.
    pub fn ordinary(spec: &RunSpec) -> Self {
        Self { last: !spec.has_shape(Shape::Unmanaged), ..Self::ALWAYS }
    }

    /// The usage by a rank that uses the parameter whenever any rank uses it.
    pub(super) fn on_some_rank(self) -> Self {
        Self { odd_ranks: true, even_ranks: true, ..self }
    }

    /// True if two parameters are used in the same way by the ranks that hold them.
    pub fn is_like(self, other: Self) -> bool {
        Self { part: other.part, ..self } == other
    }

    /// True for an expert: each rank's gradient comes from the data of all ranks, because each rank has an expert
    /// of its own, to which all ranks send data.
    pub fn is_experts(self) -> bool {
        self.from_all
    }

    /// True if every microbatch of every step uses the parameter.
    pub fn uses_all(self) -> bool {
        self == Self { from_all: self.from_all, ..Self::ALWAYS }
    }

    /// True if this microbatch of a rank uses the parameter in `step`, where a step has `ga` microbatches.
    pub fn uses(self, step: usize, rank: usize, microbatch: usize, ga: usize) -> bool {
        self.ever
            && self.part.is_none_or(|part| part.is_on(rank))
            && if rank.is_multiple_of(2) { self.even_ranks } else { self.odd_ranks }
            && (self.first || microbatch > 0)
            && (self.last || microbatch + 1 < ga)
            && if step.is_multiple_of(2) { self.even_steps } else { self.odd_steps }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Engine, Plan, SpecRequest};

    #[test]
    fn every_shape_that_uses_a_parameter_in_its_own_way_says_which() {
        for &shape in Shape::ALL {
            let only_ddp = shape == Shape::LateNoSync;
            let request = SpecRequest {
                engine: Some(if only_ddp { Engine::Ddp } else { Engine::DeepSpeed }),
                stage: (!only_ddp).then_some(2),
                shapes: vec![shape],
                ..SpecRequest::default()
            };
            let plan = Plan::new(&request.resolve().expect("a valid request"));
            let special: Vec<&str> = (0..plan.params().len())
                .filter(|&param| plan.usage(param) != Usage::ALWAYS)
                .map(|param| plan.params()[param].name.as_str())
                .collect();
            if shape == Shape::Unmanaged {
                assert_eq!(special.len(), plan.params().len());
                continue;
            }
            let expected = shape.leaves_unused() || matches!(shape, Shape::Frozen | Shape::Experts);
            let about = plan.params().iter().map(|param| param.name.as_str());
            let about: Vec<&str> = about.filter(|name| expected && shape.is_about(name)).collect();
            assert_eq!(special, about);
            assert_eq!(expected, !about.is_empty());
        }
    }
}
