//! The workload of a run: what goes forward and backward in each microbatch of the synthetic model.
//!
//! Shapes change how a loss is computed, but not the sum of a microbatch's gradients, except in the parameters that
//! they leave unused. Only this module decides that: the native ranks ask a [`Workload`], and the ranks of real
//! engines get it as JSON (`ZPROBE_WORKLOAD`).

use serde::Serialize;

use super::plan::Param;
use super::{Plan, RunSpec, Shape, Usage, named_enum};

/// The index of a parameter in flat order, and the factor of its data.
type Term = (usize, f64);

/// The use of the model in a run, microbatch by microbatch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Workload {
    /// The losses of rank 0 in the first steps, which all other steps repeat; each step is a list of stretches of
    /// equal microbatches.
    steps: Vec<Vec<Stretch>>,
    /// The parameter that a second module uses too; in a pipeline, that of the first stage.
    pub second_use: Option<usize>,
    /// The parameter that the forward of even-numbered ranks does not use, and the parameter that the forward of
    /// odd-numbered ranks does not use.
    pub unused_by_parity: [Option<usize>; 2],
    /// True if the ranks with an odd number use the parameters in reverse order.
    pub reversed_on_odd_ranks: bool,
    /// The parameter that is an expert: each rank has its own.
    pub expert: Option<usize>,
    /// The parameter that requires no gradient in every other step, beginning with the first.
    frozen_alternating: Option<usize>,
    /// The infinite element, if there is one.
    pub infinite: Option<Infinite>,
    /// True if all ranks except the first start with zeros instead of the model's parameters.
    pub starts_differently: bool,
    /// The return value of the model's forward.
    pub output: Output,
}

/// Consecutive microbatches of a step with equal losses.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Stretch {
    /// The number of microbatches in the stretch.
    microbatches: usize,
    /// The losses of each microbatch in the stretch.
    losses: Vec<Loss>,
}

/// A loss that goes backward: a sum of terms, each a parameter times its data.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Loss {
    /// The factor of each parameter's data in the engine's forward, which does not use parameters with the factor
    /// 0 unless `without_gradient` has them; `None` if no forward precedes the backward.
    forward: Option<Factors>,
    /// The parameters that the engine's forward uses without an effect on their gradients, although their factor is 0.
    without_gradient: Vec<usize>,
    /// The block that runs in the engine's forward without being part of the loss.
    detached_block: Option<&'static str>,
    /// The terms of second modules in the same forward: one term, or one in each stage of a pipeline.
    again: Vec<Term>,
    /// The terms that are computed outside the engine's forward.
    beside: Vec<Term>,
    /// True if the loss reaches the parameters; otherwise it reaches only a tensor that the engine does not manage.
    managed: bool,
}

/// The factors of the parameters in flat order, run-length encoded: a number of parameters, and the factor that
/// they share.
type Factors = Vec<(usize, f64)>;

/// The only element of all gradients that is infinite: the first element of a parameter's gradient, in one microbatch of
/// each of the first steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Infinite {
    /// The number of steps with an infinite gradient, beginning with the first step.
    pub steps: usize,
    /// The microbatch of the infinite gradient.
    pub microbatch: usize,
    /// The rank of the infinite gradient.
    pub rank: usize,
    /// The index of the parameter with the infinite gradient.
    pub param: usize,
}

named_enum! {
    /// The return value of the model's forward.
    pub enum Output {
        /// Only the terms of the loss.
        Logits = "logits",
        /// The loss and its terms, in a tuple.
        Tuple = "tuple",
        /// The loss and its terms, by name.
        Dict = "dict",
    }
}

impl Workload {
    /// The workload of the run `spec`, with the model of `plan`.
    pub fn new(spec: &RunSpec, plan: &Plan) -> Self {
        let about = |shape: Shape| {
            let is_it = |param: &Param| shape.is_about(param.base_name());
            plan.params().iter().position(is_it).filter(|_| spec.has_shape(shape))
        };
        let steps = (0..spec.steps.min(Usage::PERIOD)).map(|step| {
            let mut stretches: Vec<Stretch> = Vec::new();
            for microbatch in 0..spec.gradient_accumulation_steps {
                let losses = losses(spec, plan, step, microbatch);
                match stretches.last_mut().filter(|last| last.losses == losses) {
                    Some(last) => last.microbatches += 1,
                    None => stretches.push(Stretch { microbatches: 1, losses }),
                }
            }
            stretches
        });
        let rank = spec.world_size - 1;
        Self {
            steps: steps.collect(),
            second_use: about(Shape::Tied),
            unused_by_parity: [Shape::UnusedOnEvenRanks, Shape::UnusedOnOddRanks].map(about),
            reversed_on_odd_ranks: spec.has_shape(Shape::ReversedOnOddRanks),
            expert: about(Shape::Experts),
            frozen_alternating: about(Shape::FrozenAlternating),
            infinite: about(Shape::InfinityOnOneRank).map(|param| Infinite {
                steps: spec.infinite_steps(),
                microbatch: 0,
                rank,
                param,
            }),
            starts_differently: spec.has_shape(Shape::DifferentStart),
            output: if spec.has_shape(Shape::TupleOutput) {
                Output::Tuple
            } else if spec.has_shape(Shape::DictOutput) {
                Output::Dict
            } else {
                Output::Logits
            },
        }
    }

    /// The losses that go backward in a microbatch, one after the other.
    pub fn losses(&self, step: usize, microbatch: usize) -> &[Loss] {
        let mut end = 0;
        let of_step = &self.steps[step % self.steps.len()];
        let stretch = of_step.iter().find(|stretch| {
            end += stretch.microbatches;
            microbatch < end
        });
        stretch.map_or(&[], |stretch| &stretch.losses)
    }
}

impl Loss {
    /// All terms of the loss, sorted by parameter; empty if the loss does not reach any parameter.
    pub fn terms(&self) -> Vec<Term> {
        if !self.managed {
            return Vec::new();
        }
        let mut terms: Vec<Term> = self.forward().into_iter().enumerate().collect();
        terms.retain(|(_, factor)| *factor != 0.0);
        terms.extend(self.again.iter().chain(&self.beside));
        terms.sort_by_key(|(param, _)| *param);
        terms
    }

    /// The factor of each parameter's data in the engine's forward; empty if there is no forward.
    fn forward(&self) -> Vec<f64> {
        let factors = self.forward.iter().flatten();
        factors.flat_map(|&(count, factor)| std::iter::repeat_n(factor, count)).collect()
    }
}

/// The factors of the parts in which the loss of a microbatch goes backward; they add up to 1.
pub fn parts(spec: &RunSpec) -> &'static [f64] {
    if spec.has_shape(Shape::SeveralBackwards) { &[2.0, -1.0] } else { &[1.0] }
}

fn losses(spec: &RunSpec, plan: &Plan, step: usize, microbatch: usize) -> Vec<Loss> {
    let ga = spec.gradient_accumulation_steps;
    let managed = !(spec.has_shape(Shape::Unmanaged) && microbatch + 1 == ga);
    let is_detached = spec.has_shape(Shape::DetachedBlock) && microbatch + 1 == ga;
    let detached_block = Shape::DetachedBlock.block().filter(|_| is_detached);
    let (mut factors, mut without_gradient) = (Vec::new(), Vec::new());
    let (mut again, mut beside, mut penalty) = (Vec::new(), Vec::new(), Vec::new());
    for (index, param) in plan.params().iter().enumerate() {
        let about = |shape: Shape| spec.has_shape(shape) && shape.is_about(param.base_name());
        let holder = param.ranks.first().copied().unwrap_or(0);
        if !Usage::in_forward(spec, param).on_some_rank().uses(step, holder, microbatch, ga) {
            factors.push(0.0);
            if (detached_block.is_some() && about(Shape::DetachedBlock))
                || (about(Shape::FrozenAlternating) && step.is_multiple_of(2))
            {
                without_gradient.push(index);
            }
            continue;
        }
        // The factors 2 in the forward and -1 elsewhere add up to 1.
        let elsewhere = [
            (Shape::Tied, &mut again),
            (Shape::Bypass, &mut beside),
            (Shape::PenaltyBackward, &mut penalty),
        ];
        let mut factor = 1.0;
        let is_there = |shape: Shape| about(shape) && (managed || shape == Shape::Tied);
        for (_, place) in elsewhere.into_iter().filter(|(shape, _)| is_there(*shape)) {
            place.push((index, -1.0));
            factor = 2.0;
        }
        factors.push(factor);
    }
    let part = |part: &f64| {
        let times = |(param, factor): Term| (param, part * factor);
        Loss {
            forward: Some(counted(factors.iter().map(|factor| part * factor))),
            without_gradient: without_gradient.clone(),
            detached_block,
            again: again.iter().copied().map(times).collect(),
            beside: beside.iter().copied().map(times).collect(),
            managed,
        }
    };
    let mut losses: Vec<Loss> = parts(spec).iter().map(part).collect();
    losses.extend(penalty.into_iter().map(|term| Loss {
        forward: None,
        without_gradient: Vec::new(),
        detached_block: None,
        again: Vec::new(),
        beside: vec![term],
        managed: true,
    }));
    losses
}

/// Run-length encodes `factors`.
fn counted(factors: impl Iterator<Item = f64>) -> Factors {
    let mut counted: Factors = Vec::new();
    for factor in factors {
        match counted.last_mut().filter(|(_, last)| *last == factor) {
            Some((count, _)) => *count += 1,
            None => counted.push((1, factor)),
        }
    }
    counted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::{select, subsequence};

    use super::*;
    use crate::spec::{Engine, Point, SpecRequest};

    proptest! {
        /// The factors of each parameter in a microbatch add up to the plan's weight for the microbatch's own
        /// gradient, whatever the shapes.
        #[test]
        fn whatever_the_shapes_the_terms_of_a_microbatch_add_up_to_what_the_plan_expects(
            engine in select(Engine::CHOICES), ga in 1usize..5, steps in 1usize..5,
            shapes in subsequence(Shape::ALL.to_vec(), 0..4),
        ) {
            let request = SpecRequest {
                engine: Some(engine),
                gradient_accumulation_steps: Some(ga),
                steps: Some(steps),
                shapes,
                ..SpecRequest::default()
            };
            let Ok(spec) = request.resolve() else { return Ok(()) };
            let plan = Plan::new(&spec);
            let workload = Workload::new(&spec, &plan);
            for (step, microbatch) in (0..steps).flat_map(|step| (0..ga).map(move |m| (step, m))) {
                let mut sums = vec![0.0; plan.params().len()];
                for loss in workload.losses(step, microbatch) {
                    for (param, factor) in loss.terms() {
                        sums[param] += factor;
                    }
                }
                for (index, param) in plan.params().iter().enumerate().filter(|(_, it)| it.trainable) {
                    let usage = plan.usage(index).on_some_rank();
                    let rank = param.ranks.first().copied().unwrap_or(0);
                    let own = plan.expected(usage, Point::LocalGradient, step, microbatch, rank);
                    let wanted = own[spec.column(step, rank, microbatch)] / spec.world_size as f64;
                    prop_assert_eq!(sums[index], wanted, "{}", &param.name);
                }
            }
        }
    }

    #[test]
    fn a_large_workload_is_said_in_few_words() {
        let request = SpecRequest {
            gradient_accumulation_steps: Some(64),
            steps: Some(100),
            shapes: vec![Shape::UnusedLast, Shape::UnusedAlternating],
            ..SpecRequest::default()
        };
        let spec = request.resolve().expect("a valid request");
        let workload = Workload::new(&spec, &Plan::new(&spec));
        let text = serde_json::to_string(&workload).expect("JSON");
        assert!(text.len() < 1000, "{text}");
    }
}
