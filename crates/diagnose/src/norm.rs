//! The global norm of a step's gradient: its planned value, and the factor by which clipping to a limit scales the
//! gradient.

use std::collections::BTreeMap;
use std::f64::consts::LN_2;

use zprobe_model::spec::{Dtype, Model, NormType, Plan, Point, RunSpec};

use crate::bounds;
use crate::infinity;
use crate::observed::Observed;

/// The number that `torch.nn.utils.clip_grad_norm_` and DeepSpeed's `unscale_and_clip_grads`
/// (`runtime/zero/stage_1_and_2.py`) add to the norm, before they divide the limit by the norm.
const CLIP_EPSILON: f64 = 1e-6;

/// The norms that the averaged gradients of a run must have, by step. Only coded data have known norms.
pub struct PlannedNorms {
    by_step: BTreeMap<usize, f64>,
    /// The number of elements that every norm covers.
    elements: usize,
    /// The kind of the norms.
    kind: NormType,
}

impl PlannedNorms {
    /// Computes the planned norms. A step with an infinite gradient has no norm.
    pub fn new(observed: &Observed<'_>, plan: &Plan) -> Self {
        let spec = observed.spec;
        let elements = (0..plan.params().len())
            .filter(|&param| plan.params()[param].trainable)
            .map(|param| copies(spec, plan, param) * plan.params()[param].numel())
            .sum();
        let infinite = infinity::element(observed, plan).is_some();
        let by_step = spec
            .recorded_steps()
            .filter(|&step| {
                spec.model == Model::Coded && !(infinite && step < spec.infinite_steps())
            })
            .map(|step| (step, norm(spec, plan, step)))
            .collect();
        Self { by_step, elements, kind: spec.norm_type }
    }

    /// The norm of a step's averaged gradient; `None` if it is unknown.
    pub fn of(&self, step: usize) -> Option<f64> {
        self.by_step.get(&step).copied()
    }

    /// The norm of a gradient whose elements are all 1.
    pub fn of_ones(&self) -> f64 {
        let elements = self.elements as f64;
        match self.kind {
            NormType::Two => elements.sqrt(),
            NormType::One => elements,
            NormType::Infinity => 1.0,
        }
    }

    /// The bound on the error of an engine's norm, as a share of the norm ([`bounds::norm`]).
    pub fn tolerance(&self, gradient: Dtype) -> f64 {
        bounds::norm(self.elements, gradient)
    }
}

/// The number of parameters of the model for each parameter of the plan: experts are different on each
/// rank.
fn copies(spec: &RunSpec, plan: &Plan, param: usize) -> usize {
    if plan.usage(param).is_experts() { spec.world_size } else { 1 }
}

/// Computes the norm of the planned input of the optimizers, whose elements are whole numbers.
fn norm(spec: &RunSpec, plan: &Plan, step: usize) -> f64 {
    let code = Plan::code(spec);
    let boundary = spec.gradient_accumulation_steps - 1;
    let input =
        |param: usize| plan.expected(plan.usage(param), Point::OptimizerInput, step, boundary, 0);
    if spec.norm_type != NormType::Two {
        let params = 0..plan.params().len();
        let elements =
            params.flat_map(|param| code.encode(&input(param), plan.params()[param].range()));
        return spec.norm_type.of(elements);
    }
    let squares = (0..plan.params().len()).map(|param| {
        let weights = input(param);
        let elements = plan.params()[param].range();
        // The rows of the code are orthogonal over every full period.
        let periods = elements.len() / code.length();
        let rest = elements.start + periods * code.length()..elements.end;
        let in_period = weights.iter().map(|w| w * w).sum::<f64>() * code.length() as f64;
        let in_rest = code.encode(&weights, rest).iter().map(|value| value * value).sum::<f64>();
        copies(spec, plan, param) as f64 * (periods as f64 * in_period + in_rest)
    });
    squares.sum::<f64>().sqrt()
}

/// The factor by which clipping multiplies a gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clipping {
    /// No factor: the norm is within the limit, or there is no limit.
    No,
    /// A factor below 1.
    By(f64),
    /// The norm is not finite or unknown. By the formula of `clip_grad_norm_` every finite element becomes 0, but an
    /// engine that leaves all elements unchanged is right too. (DeepSpeed replaces such a norm by a number, reports
    /// that number, and clips by it.)
    Unbounded,
}

impl Clipping {
    /// Returns the clipping that a rank's engine had to apply in a step, according to the norm that the engine
    /// computed. ZP604 judges whether that norm is right.
    pub fn of(observed: &Observed<'_>, norms: &PlannedNorms, step: usize, rank: usize) -> Self {
        let reported = observed.updates.norms.get(&(step, rank));
        let limit = reported.map_or(observed.spec.gradient_clipping, |norm| norm.limit);
        if limit <= 0.0 {
            return Clipping::No;
        }
        let right = norms.of(step);
        let scale = observed.updates.scaled.get(&(step, rank)).map_or(1.0, |scaled| scaled.scale);
        let used = |norm| right.map_or(norm, |right| without_scale(norm, scale, right));
        match reported.map_or(right, |reported| reported.norm.map(used)) {
            Some(norm) if norm + CLIP_EPSILON > limit => {
                Clipping::By(limit / (norm + CLIP_EPSILON))
            }
            Some(_) => Clipping::No,
            None => Clipping::Unbounded,
        }
    }
}

/// Returns the norm by which an engine clipped, given the norm that the engine `reported`. Some engines report the
/// norm of the gradient of the scaled loss, and divide by the scale only for clipping, such as DeepSpeed's
/// `FP16_UnfusedOptimizer.unscale_and_clip_grads` in `runtime/fp16/unfused_optimizer.py`.
fn without_scale(reported: f64, scale: f64, right: f64) -> f64 {
    let off = |norm: f64| (norm / right).ln().abs();
    // A gradient with another fault has another norm, but one of about the same size.
    let is_scaled = off(reported / scale) < off(reported).min(LN_2);
    if is_scaled { reported / scale } else { reported }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zprobe_model::spec::{Engine, Shape, SpecRequest};

    #[test]
    fn every_expert_is_a_part_of_the_norm() {
        let request = SpecRequest {
            engine: Some(Engine::DeepSpeed),
            world_size: Some(3),
            gradient_accumulation_steps: Some(2),
            shapes: vec![Shape::Experts],
            ..SpecRequest::default()
        };
        let spec = request.resolve().expect("a valid request");
        let square = |spec: &RunSpec, plan: &Plan| norm(spec, plan, 0).powi(2).round();
        let plan = Plan::new(&spec);
        // The same parameters, none of which belongs to an expert.
        let ordinary = RunSpec { shapes: Vec::new(), ..spec.clone() };
        let shared = Plan::with_params(&ordinary, plan.params().to_vec());
        let name = Shape::Experts.param();
        let expert = plan.params().iter().find(|param| Some(&*param.name) == name);
        let of_one = (expert.expect("an expert").numel() * 3 * 2) as f64;
        assert_eq!(square(&spec, &plan), square(&ordinary, &shared) + 2.0 * of_one);
    }
}
