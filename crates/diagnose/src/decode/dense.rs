//! Weights by least squares, from the local gradients that the ranks recorded.
//!
//! The model is `b = Σ w[k]·c[k] + e`, with `c[k] = g[k]/(W·GA)`, solved by QR in fp64. The remainder `e` must stay
//! within the rounding that the dataflow is allowed, which is bounded element by element (`γ(n) = n·u/(1−n·u)`,
//! Higham, Accuracy and Stability of Numerical Algorithms, lemma 3.1); a larger remainder is foreign data. A weight
//! counts as wrong if it is off by more than six standard errors, which are estimated without the assumption of equal
//! noise in all elements. No conclusion is drawn if six standard errors exceed one half.

use std::collections::{BTreeMap, HashMap};

use nalgebra::{DMatrix, DVector};

use zprobe_model::spec::{Dtype, RunSpec, Usage};
use zprobe_model::trace::Point;
use zprobe_report::Precision;

use super::precision::{self, Remainder, is_of_one_rank};
use super::sums::StepAddends;
use super::weights::ColumnWeights;
use super::{Decoded, Reading, Scene, contribution, is_readable, snap};
use crate::bounds::{self, FACTORS, STANDARD_ERRORS, gamma};
use crate::norm::Clipping;
use crate::observed::Buffer;
use crate::placement::fragments;

pub(super) fn decode(scene: &Scene<'_>) -> Decoded {
    let observed = scene.observed;
    let spec = observed.spec;
    let mut decoded = Decoded::empty();
    // Local gradients are recorded as g/GA; a contribution is g/(W·GA).
    let columns = match columns(scene, spec.world_size as f64) {
        Ok(columns) => columns,
        Err(refusal) => {
            decoded.refusals.push(refusal);
            return decoded;
        }
    };
    // Buffers with the same elements share a system.
    let mut systems: BTreeMap<(usize, Vec<usize>), Result<System, String>> = BTreeMap::new();
    for buffer in observed.buffers.all.iter().filter(|buffer| is_readable(observed, buffer)) {
        let (Some(step), Ok(values)) = (buffer.step, buffer.payload.values()) else { continue };
        let factor = match scene.clip(buffer) {
            Clipping::By(factor) => factor,
            Clipping::No => 1.0,
            Clipping::Unbounded => {
                let refusal = "the gradient was clipped by an unknown norm";
                decoded.refusals.push(format!("{} of step {step}: {refusal}", buffer.point));
                continue;
            }
        };
        let (elements, mut values): (Vec<usize>, Vec<f64>) =
            elements(scene, buffer, &values).unzip();
        for value in &mut values {
            *value /= factor;
        }
        // The bound counts three operations for the factor, and the product.
        let clipping = if factor < 1.0 { bounds::clipping(buffer.payload.dtype) } else { 0.0 };
        let read = elements.len();
        let system = systems
            .entry((step, elements))
            .or_insert_with_key(|(_, elements)| System::new(spec, &columns, step, elements));
        let outcome = match system {
            Ok(system) => {
                let covered = scene.placement.recorded_share(buffer.rank, buffer.layout);
                let held_in = buffer.payload.dtype;
                let seen = system.solve(spec, buffer.point, held_in, &values, clipping, covered);
                // The first microbatch is no sum, as it is added to nothing.
                let is_sum = buffer.microbatch != Some(0) || !is_of_one_rank(buffer.point);
                if let (Some(precision), true) = (seen.precision, is_sum) {
                    precision::add(&mut decoded.precision, precision);
                }
                seen.reading
            }
            Err(refusal) => Err(refusal.clone()),
        };
        match outcome {
            Ok((reading, condition)) => {
                let worst = decoded.condition.unwrap_or(1.0).max(condition);
                decoded.condition = Some(worst);
                if buffer.point == scene.observed.spec.last_word() {
                    *decoded.read.entry((step, buffer.rank)).or_insert(0) += read;
                    let worst = decoded.smallest_weight_deviation.unwrap_or(0.0);
                    decoded.smallest_weight_deviation = Some(worst.max(reading.tolerance));
                }
                decoded.contributions.push(contribution(scene, buffer, reading));
            }
            Err(refusal) => {
                decoded.refusals.push(format!("{} of step {step}: {refusal}", buffer.point));
            }
        }
    }
    decoded
}

/// Returns the least precise of all dtypes that gradients pass through.
fn narrowest(spec: &RunSpec) -> Dtype {
    let through = [spec.grad_accum_dtype, spec.narrowest_comm_dtype()];
    let coarser = |a: Dtype, b: Dtype| if a.unit_roundoff() > b.unit_roundoff() { a } else { b };
    through.into_iter().fold(spec.dtype, coarser)
}

/// Iterates over the recorded elements of a buffer, as (index in the flat order, value).
pub(super) fn elements<'v>(
    scene: &Scene<'_>,
    buffer: &Buffer<'_>,
    values: &'v [f64],
) -> impl Iterator<Item = (usize, f64)> + 'v {
    let layout = scene.observed.model.recorded(buffer.rank, buffer.layout);
    fragments(layout.unwrap_or_default(), scene.plan)
        .into_iter()
        .flat_map(|fragment| fragment.flat.zip(fragment.start..))
        .filter_map(|(element, place)| Some((element, *values.get(place)?)))
}

/// The local gradients of a run. The outer key is the number of the gradient in the whole run, and the inner key is
/// the index of an element in the flat order.
pub(super) type Columns = BTreeMap<usize, HashMap<usize, f64>>;

/// Returns the local gradients of the run, divided by `divisor`. Gradients of microbatches that never ran are left
/// out.
pub(super) fn columns(scene: &Scene<'_>, divisor: f64) -> Result<Columns, String> {
    let spec = scene.observed.spec;
    scene
        .observed
        .buffers
        .all
        .iter()
        .filter(|buffer| buffer.point == Point::LocalGradient)
        .filter_map(|buffer| Some((buffer.step?, buffer.microbatch?, buffer)))
        .map(|(step, microbatch, buffer)| {
            let mut values = buffer.payload.values()?;
            for value in &mut values {
                *value /= divisor;
            }
            let values = elements(scene, buffer, &values).collect();
            let column =
                step * spec.contributions_per_step() + spec.column(0, buffer.rank, microbatch);
            Ok((column, values))
        })
        .collect()
}

/// The least-squares problem of some elements of the flat order in one step.
pub(super) struct System {
    /// The numbers of the gradients whose weights are unknown: those of this step and of the steps just before.
    pub present: Vec<usize>,
    /// The elements of the gradients; each column is one gradient.
    pub matrix: DMatrix<f64>,
    /// The pseudo-inverse `R⁻¹Qᵀ`, which maps elements to weights.
    pub inverse: DMatrix<f64>,
    /// The value `1 − h` of every element, where `h` is its leverage: the share of its error that remains visible.
    visible: Vec<f64>,
    /// The largest standard error of a weight for noise of 1 in each element.
    pub spread: f64,
    /// The bound on the error of a weight that fp64 arithmetic itself causes.
    pub arithmetic: f64,
    /// The condition number of the matrix.
    pub condition: f64,
    /// The number of the first gradient of the buffer's step.
    pub current: usize,
}

/// The weights in a buffer, and the precision of its sums.
struct Solution {
    /// The weights and the condition number, or the reason why there are none.
    reading: Result<(Reading, f64), String>,
    /// The precision with which the gradients were added up; `None` if other effects hide it.
    precision: Option<Precision>,
}

impl System {
    fn new(
        spec: &RunSpec,
        columns: &Columns,
        step: usize,
        elements: &[usize],
    ) -> Result<Self, String> {
        let per_step = spec.contributions_per_step();
        let steps = spec.steps_seen(step).filter(|step| spec.records_step(*step));
        let due: Vec<usize> =
            steps.flat_map(|step| step * per_step..(step + 1) * per_step).collect();
        let present: Vec<usize> =
            due.iter().copied().filter(|column| columns.contains_key(column)).collect();
        if present.len() < due.len() {
            return Err(format!(
                "only {} of {} local gradients were recorded",
                present.len(),
                due.len()
            ));
        }
        Self::of(columns, present, step * per_step, elements)
    }

    /// Creates the problem of the gradients with numbers `present`; `current` is the number of the first gradient of
    /// the buffer's own step.
    pub fn of(
        columns: &Columns,
        present: Vec<usize>,
        current: usize,
        elements: &[usize],
    ) -> Result<Self, String> {
        let rows = elements.len();
        if present.is_empty() {
            return Err("no gradient of this step was recorded for these elements".to_owned());
        }
        if rows < 2 * present.len() {
            return Err(format!(
                "{} elements are too few to tell {} contributions apart",
                rows,
                present.len()
            ));
        }
        let matrix = DMatrix::from_fn(rows, present.len(), |row, column| {
            columns[&present[column]].get(&elements[row]).copied().unwrap_or(0.0)
        });
        if matrix.iter().any(|value| !value.is_finite()) {
            return Err("a local gradient is not finite".to_owned());
        }
        let (q, r) = matrix.clone().qr().unpack();
        let singular = r.singular_values();
        let (sigma_max, sigma_min) = (singular.max(), singular.min());
        if sigma_min <= sigma_max * f64::EPSILON * rows as f64 {
            return Err("the local gradients are linearly dependent".to_owned());
        }
        let inverse = r.try_inverse().ok_or("the local gradients are linearly dependent")?;
        // The covariance of the weights under equal noise is (RᵀR)⁻¹ = R⁻¹R⁻ᵀ.
        let spread = inverse.row_iter().map(|row| row.norm()).fold(0.0, f64::max);
        let visible =
            q.row_iter().map(|row| (1.0 - row.norm_squared()).max(f64::EPSILON)).collect();
        let condition = sigma_max / sigma_min;
        Ok(Self {
            present,
            matrix,
            inverse: inverse * q.transpose(),
            visible,
            spread,
            arithmetic: f64::EPSILON * condition * rows as f64,
            condition,
            current,
        })
    }

    /// The largest standard error of a weight, from the remainder of each element separately. Rounding grows with the
    /// element, so that errors are not equal (HC3 of MacKinnon and White, 1985).
    pub fn standard_error(&self, error: &DVector<f64>) -> f64 {
        let errors: Vec<f64> =
            error.iter().zip(&self.visible).map(|(error, visible)| error / visible).collect();
        self.inverse
            .row_iter()
            .map(|row| {
                let terms = row.iter().zip(&errors).map(|(p, error)| (p * error).powi(2));
                terms.sum::<f64>().sqrt()
            })
            .fold(0.0, f64::max)
    }

    /// Solves for the weights that the gradients have in a buffer with these `values`.
    fn solve(
        &self,
        spec: &RunSpec,
        point: Point,
        held_in: Dtype,
        values: &[f64],
        clipping: f64,
        covered: f64,
    ) -> Solution {
        let b = DVector::from_column_slice(values);
        if b.iter().any(|value| !value.is_finite()) {
            let reading = Err("the buffer is not finite".to_owned());
            return Solution { reading, precision: None };
        }
        let w = &self.inverse * &b;
        let error = &b - &self.matrix * &w;
        let as_asked = error.norm() <= self.allowed_error(spec, point, &w, clipping);
        let remainder = self.remainder(spec, point, values, &w);
        let sums = self.sums(spec, point, held_in, &w);
        let narrower = sums.and_then(|sums| sums.narrower(spec, values));
        let too_narrow = narrower.is_some();
        let explained = as_asked || too_narrow;
        // A rounded factor is off by the same share in all elements, which their scatter does not show.
        let dtype = if too_narrow { Dtype::Bf16 } else { narrowest(spec) };
        let factors = gamma(FACTORS, dtype) + clipping;
        let tolerance = STANDARD_ERRORS * self.standard_error(&error) + self.arithmetic + factors;
        // A sum with a wrong scale is off by more than the rounding of its additions.
        let is_whole = w.iter().all(|weight| (weight - weight.round()).abs() <= tolerance);
        let precision = (explained && is_whole && remainder.is_known())
            .then(|| remainder.precision(spec, point, narrower));
        if explained && tolerance > 0.5 {
            let refusal = format!(
                "rounding alone may move a weight by {tolerance:.2}; use fp32, a larger micro \
                 batch or --model coded"
            );
            return Solution { reading: Err(refusal), precision };
        }
        // Foreign data is not noise, and must not widen the tolerance.
        let tolerance = if explained { tolerance } else { tolerance.min(0.5) };
        let mut weights = vec![0.0; spec.contributions()];
        for (&column, &weight) in self.present.iter().zip(w.iter()) {
            // With foreign data there are no integers to find.
            let column = column % spec.contributions();
            weights[column] = if explained { snap(weight, tolerance) } else { weight };
        }
        // The part outside the span of the gradients that is no rounding, in units of a weight.
        let residual = if explained { 0.0 } else { (error.norm() * self.spread).max(1.0) };
        let reading = Reading {
            weights: ColumnWeights::new(weights),
            possible: Vec::new(),
            slip: None,
            elements: Vec::new(),
            is_plain: false,
            residual,
            tolerance,
            covered,
            usage: Usage::ALWAYS,
            params: None,
        };
        Solution { reading: Ok((reading, self.condition)), precision }
    }

    /// The difference between a buffer and the sum of gradients with the nearest whole weights.
    fn remainder(
        &self,
        spec: &RunSpec,
        point: Point,
        values: &[f64],
        w: &DVector<f64>,
    ) -> Remainder {
        let due = &self.matrix * &w.map(f64::round);
        let elements = values.iter().copied().zip(due.iter().copied());
        Remainder::new(spec, point, elements)
    }

    /// Returns the gradients whose sum a buffer holds; `None` if the buffer holds a gradient more than once, or a
    /// gradient of an earlier step.
    fn sums(
        &self,
        spec: &RunSpec,
        point: Point,
        held_in: Dtype,
        w: &DVector<f64>,
    ) -> Option<StepAddends> {
        // Columns are divided by the number of ranks, like the average of the ranks.
        let ranks = spec.world_size as f64;
        let once = if is_of_one_rank(point) { ranks } else { 1.0 };
        let mut held: BTreeMap<usize, usize> = BTreeMap::new();
        for (place, (&column, weight)) in self.present.iter().zip(w.iter()).enumerate() {
            let weight = weight.round();
            if weight == 0.0 {
                continue;
            }
            if weight != once {
                return None;
            }
            held.insert(column.checked_sub(self.current)?, place);
        }
        StepAddends::new(spec, point, held_in, |rank, microbatch| {
            let place = held.get(&spec.column(0, rank, microbatch))?;
            Some(self.matrix.column(*place).iter().map(|value| value * ranks).collect())
        })
    }

    /// Computes the bound on the norm of all rounding errors in a buffer, from a bound for each element.
    fn allowed_error(&self, spec: &RunSpec, point: Point, w: &DVector<f64>, clipping: f64) -> f64 {
        let accumulation = gamma(spec.gradient_accumulation_steps, spec.grad_accum_dtype);
        // The bound counts the casts to and from the wire, the division by W, which may precede the casts, and the
        // sum over ranks.
        let communication = if is_of_one_rank(point) {
            0.0
        } else {
            gamma(spec.world_size + 2, spec.narrowest_comm_dtype()) + gamma(1, spec.dtype)
        };
        // Gradients that an engine multiplies by a loss scale are rounded differently from the recorded ones.
        let scaled = if spec.dtype == Dtype::Fp16 { gamma(FACTORS, Dtype::Fp16) } else { 0.0 };
        let relative = accumulation + communication + clipping + scaled;
        let mut total = 0.0;
        for row in self.matrix.row_iter() {
            let magnitude: f64 = row
                .iter()
                .zip(w.iter())
                .zip(&self.present)
                .map(|((c, w), &column)| {
                    // Gradients of earlier steps are not planned: their weight should be 0.
                    let planned = if column >= self.current { 1.0 } else { 0.0 };
                    c.abs() * w.abs().max(planned)
                })
                .sum();
            total += (relative * magnitude).powi(2);
        }
        total.sqrt()
    }
}
