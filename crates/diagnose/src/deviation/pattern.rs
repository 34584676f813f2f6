//! The named patterns of wrong weights.

use std::fmt;

use zprobe_model::spec::Shape;
use zprobe_model::spec::plan::base_name;
use zprobe_model::trace::Point;

use crate::bounds;
use crate::observed::Observed;

/// A named pattern of wrong weights, such as a microbatch whose gradients are missing.
#[derive(Clone, Debug, PartialEq)]
pub enum Pattern {
    /// The boundary microbatch's gradients have weight `W` on their own rank and 0 on all others; the other
    /// microbatches are right.
    BoundaryLeak,
    /// Every gradient has weight `W` on its own rank and 0 on all others.
    NotAveraged,
    /// The gradients of the listed microbatches have weight `W` on their own rank and 0 on all others; the other
    /// microbatches are right.
    PartlyAveraged(Vec<usize>),
    /// Every gradient has weight 1 on its own rank and 0 on all others: the gradients were divided by `W` but not
    /// summed.
    NotSummed,
    /// The gradients of the listed microbatches have this weight on the ranks of their own replica and 0 on the ranks of
    /// other replicas; the other microbatches are right.
    WithinReplica(f64, Vec<usize>),
    /// The listed gradients, as (rank, microbatch), are missing, and the others are right.
    Missing(Vec<(usize, usize)>),
    /// The listed gradients, as (rank, microbatch), were counted several times, and the others are right.
    Repeated(Vec<(usize, usize)>),
    /// The listed gradients, as (rank, microbatch), have the world size or the number of microbatches as their
    /// weight, and the others are right.
    PartlyScaled(Vec<(usize, usize)>, f64),
    /// All gradients have the same wrong weight.
    Scaled(f64),
    /// A part of every gradient is missing. Gradients have two parts in models that run backward in two places.
    PartLost(GradientPart),
    /// All gradients of one microbatch have the same weight, but microbatches differ. Holds the weight of each
    /// microbatch.
    ByMicrobatch(Vec<f64>),
    /// All gradients of one rank have the same weight, but ranks differ. Holds the weight of each rank.
    ByRank(Vec<f64>),
    /// Gradients of an earlier step were consumed again.
    Leftover,
    /// The optimizer consumed gradients of the listed microbatches, which belong to another optimizer.
    OfOthers(Vec<usize>),
    /// Some elements are not as planned, and they are too few to single out one pattern. Holds all patterns that
    /// explain them.
    Ambiguous(Vec<Pattern>),
    /// No weights explain the buffer, or the weights form no known pattern.
    Unexplained,
}

/// One part of a gradient that goes through backward in two places: the first adds twice the gradient, and the second
/// subtracts the gradient once (see [`zprobe_model::spec::Workload`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientPart {
    /// The part that goes through the engine's forward.
    Forward,
    /// The part that goes around the engine's forward.
    Beside,
    /// The part of the first of two backwards.
    FirstBackward,
}

impl GradientPart {
    /// The weight of a gradient that lacks its first part.
    const WITHOUT_FIRST: f64 = -1.0;
    /// The weight of a gradient that lacks its second part.
    const WITHOUT_SECOND: f64 = 2.0;

    /// Returns the lost part that explains the wrong weight of the gradients of `params`. `weight` compares this
    /// weight with a number. `None` if another mistake would give the same weight.
    pub(super) fn lost(
        observed: &Observed<'_>,
        params: Option<&[String]>,
        weight: impl Fn(f64) -> bool,
    ) -> Option<Self> {
        let spec = observed.spec;
        if spec.has_shape(Shape::SeveralBackwards) {
            return weight(Self::WITHOUT_FIRST).then_some(Self::FirstBackward);
        }
        let is_about = |shape: &Shape| {
            spec.has_shape(*shape)
                && params.is_some_and(|it| it.iter().all(|it| shape.is_about(base_name(it))))
        };
        let shape =
            [Shape::Tied, Shape::Bypass, Shape::PenaltyBackward].into_iter().find(is_about)?;
        if weight(Self::WITHOUT_FIRST) {
            Some(Self::Forward)
        } else {
            // A gradient that is reduced twice, as a tied one may be, has this weight too.
            let is_second = shape != Shape::Tied && weight(Self::WITHOUT_SECOND);
            is_second.then_some(Self::Beside)
        }
    }
}

impl Pattern {
    /// The number of bits of evidence for this pattern from a single element. Two sets of weights that differ in a
    /// single gradient agree in every other element, and groups of gradients agree in every fourth.
    pub(super) fn bits(&self) -> f64 {
        let (Pattern::Missing(sources)
        | Pattern::Repeated(sources)
        | Pattern::PartlyScaled(sources, _)) = self
        else {
            return 2.0;
        };
        if sources.len() == 1 { 1.0 } else { 2.0 }
    }

    /// True if both patterns come from the same mistake. Scales are compared with a tolerance, because each sum rounds
    /// a scale a little differently.
    pub fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Pattern::Scaled(a), Pattern::Scaled(b)) => (a / b - 1.0).abs() < bounds::SAME_SCALE,
            (Pattern::ByMicrobatch(a), Pattern::ByMicrobatch(b))
            | (Pattern::ByRank(a), Pattern::ByRank(b)) => {
                let same = |(a, b): (&f64, &f64)| (a / b - 1.0).abs() < bounds::SAME_SCALE;
                a.len() == b.len() && a.iter().zip(b).all(same)
            }
            _ => self == other,
        }
    }
}

/// A place on the way of a step's gradient from backward to the optimizer.
#[derive(Clone, Debug, PartialEq)]
pub struct JourneyPlace {
    /// The index of the optimizer step.
    pub step: usize,
    /// The microbatch; `None` for points after the accumulation.
    pub microbatch: Option<usize>,
    /// The point at which the buffer was recorded.
    pub point: Point,
    /// The rank that recorded the buffer.
    pub rank: usize,
}

impl fmt::Display for JourneyPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}", self.step)?;
        if let Some(microbatch) = self.microbatch {
            write!(f, ", microbatch {microbatch}")?;
        }
        write!(f, ", {} of rank {}", self.point.describe(), self.rank)
    }
}
