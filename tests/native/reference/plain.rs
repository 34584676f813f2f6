//! The run without an engine: one process, one sum, one step. The code is independent of the native engine,
//! which sums in the dtypes of its buffers, by parts, on several ranks.

use zprobe_model::spec::{Dtype, Model, Optimizer, Plan, RunSpec};

use super::interval::Interval;
use super::recorded::Recorded;

/// The master weights of all parameters, in flat order, with bounds on their values.
pub struct Plain {
    optimizer: Optimizer,
    steps: i32,
    weights: Vec<Interval>,
    exp_avg: Vec<Interval>,
    exp_avg_sq: Vec<Interval>,
}

impl Plain {
    /// Starts from recorded parameters, which fp32 master weights copy exactly.
    pub fn new(optimizer: Optimizer, initial: &[f64]) -> Self {
        let zeros = vec![Interval::exactly(0.0); initial.len()];
        Self {
            optimizer,
            steps: 0,
            weights: initial.iter().map(|&value| Interval::exactly(value)).collect(),
            exp_avg: zeros.clone(),
            exp_avg_sq: zeros,
        }
    }

    /// The master weights after the steps so far, in flat order.
    pub fn weights(&self) -> &[Interval] {
        &self.weights
    }

    /// Takes an optimizer step with the averaged gradient.
    pub fn step(&mut self, gradient: &[Interval]) {
        self.steps += 1;
        for (element, &g) in gradient.iter().enumerate() {
            let weight = self.weights[element];
            self.weights[element] = match self.optimizer {
                Optimizer::Sgd { lr } => weight.minus(g.times(lr).rounded(2)).rounded(1),
                Optimizer::Adamw { lr, betas, eps, weight_decay } => {
                    let [beta1, beta2] = betas;
                    let (m, v) = (self.exp_avg[element], self.exp_avg_sq[element]);
                    let terms = m.magnitude() + 2.0 * g.magnitude();
                    let m = m.times(beta1).plus(g.times(1.0 - beta1)).rounded_terms(4, terms);
                    let square = g.squared();
                    let v = v.times(beta2).plus(square.times(1.0 - beta2));
                    let v = v.rounded_terms(6, v.magnitude());
                    (self.exp_avg[element], self.exp_avg_sq[element]) = (m, v);
                    let corrections = betas.map(|beta| 1.0 - beta.powi(self.steps));
                    let root = v.root().times(1.0 / corrections[1].sqrt()).rounded(4);
                    let divisor = root.plus(Interval::exactly(eps)).rounded(2);
                    let update = m.over(divisor).times(lr / corrections[0]).rounded(4);
                    weight.times(1.0 - lr * weight_decay).rounded(2).minus(update).rounded(1)
                }
                Optimizer::Muon => unreachable!("only DeepSpeed has Muon"),
            };
        }
    }
}

/// The averaged gradient of a step, in flat order.
pub fn averaged(spec: &RunSpec, plan: &Plan, recorded: &Recorded, step: usize) -> Vec<Interval> {
    match spec.model {
        Model::Coded => (0..plan.numel()).map(|element| coded(spec, step, element)).collect(),
        Model::Mlp => dense(spec, plan, recorded, step),
    }
}

/// The averaged gradient of the coded model: codes add up to an integer, and are scaled so that their average
/// is this sum.
fn coded(spec: &RunSpec, step: usize, element: usize) -> Interval {
    let code = Plan::code(spec);
    let first = step * spec.contributions_per_step();
    let columns = first..first + spec.contributions_per_step();
    let sum: i32 = columns.map(|column| i32::from(code.value(column, element))).sum();
    Interval::exactly(f64::from(sum))
}

/// The mean of the recorded local gradients, which are divided by `GA` already, with a bound on the roundings
/// in the run's dtypes: `E = [γ_a(GA−1) + γ_c(W−1) + casts]·Σ|g|/W`.
fn dense(spec: &RunSpec, plan: &Plan, recorded: &Recorded, step: usize) -> Vec<Interval> {
    let (ranks, ga) = (spec.world_size, spec.gradient_accumulation_steps);
    let locals: Vec<&[f64]> = (0..ranks)
        .flat_map(|rank| (0..ga).map(move |microbatch| (rank, microbatch)))
        .map(|(rank, microbatch)| recorded.local(step, rank, microbatch))
        .collect();
    let (accumulation, wire) = (spec.grad_accum_dtype, spec.narrowest_comm_dtype());
    // The casts are one to the dtype of the accumulation, one to the dtype of the communication, and the
    // division in that dtype.
    let relative = (1.0 + gamma(accumulation, ga)) * (1.0 + gamma(wire, ranks + 1)) - 1.0;
    let is_narrow = [accumulation, wire, spec.dtype].contains(&Dtype::Fp16);
    // Each sum in fp16 also loses everything below the smallest number of fp16.
    let scaled = if spec.dtype == Dtype::Fp16 { spec.loss_scale.initial() } else { 1.0 };
    let lost = if is_narrow { 2f64.powi(-25) / scaled * (4 * ranks * ga) as f64 } else { 0.0 };
    (0..plan.numel())
        .map(|element| {
            let values = locals.iter().map(|local| local[element]);
            let sum: f64 = values.clone().sum();
            let magnitude: f64 = values.map(f64::abs).sum();
            Interval::around(sum / ranks as f64, relative * magnitude / ranks as f64 + lost)
        })
        .collect()
}

/// The bound on the change by `operations` roundings, relative to the sum of absolute values (Higham,
/// Accuracy and Stability of Numerical Algorithms, section 3.1).
fn gamma(dtype: Dtype, operations: usize) -> f64 {
    let mu = operations as f64 * dtype.unit_roundoff();
    mu / (1.0 - mu)
}
