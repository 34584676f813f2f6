//! Weights of a script's real gradients, by least squares over samples of them.
//!
//! As in [`super::dense`], `b = Σ w[k]·g[k] + e`. The script's engine is unknown: neither the common factor of all
//! gradients, which is read from the weights themselves, nor the dtype of the sums is given. So the remainder `e` may
//! be as large as the rounding of sums in the gradients' own dtype or in bf16. In both cases the bound on a weight is
//! six times its standard error. Each parameter has its own system; where all of them agree, the weights come from
//! one joint system, which is more precise.

use std::collections::BTreeMap;

use nalgebra::DVector;

use zprobe_model::spec::{Dtype, Point, RunSpec, Usage};
use zprobe_model::trace::Outcome;

use super::dense::{Columns, System, columns, elements};
use super::entries::Entries;
use super::weights::ColumnWeights;
use super::{Decoded, Factor, Reading, Scene, expected, is_readable, largest, snap};
use crate::bounds::{FACTORS, SAME_SCALE, STANDARD_ERRORS, gamma};
use crate::observed::Buffer;

/// The largest number of gradients in the system of one parameter, because larger systems take too long.
const MOST_COLUMNS: usize = 256;

pub(super) fn decode(scene: &Scene<'_>) -> Decoded {
    let observed = scene.observed;
    let mut decoded = Decoded::empty();
    let columns = match columns(scene, 1.0) {
        Ok(columns) => columns,
        Err(refusal) => {
            decoded.refusals.push(refusal);
            return decoded;
        }
    };
    let mut entries = Entries::new(scene);
    for buffer in observed.buffers.all.iter().filter(|buffer| is_readable(observed, buffer)) {
        let Some(step) = buffer.step else { continue };
        if let Some(rank) = lost_in(scene, &columns, step) {
            decoded.complete = false;
            decoded.refusals.push(format!(
                "step {step}: not all gradients of rank {rank} were recorded, because its zprobe process was lost"
            ));
            continue;
        }
        if observed.has_unrecorded_microbatches(step) {
            continue;
        }
        let layout = observed.model.recorded(buffer.rank, buffer.layout).unwrap_or_default();
        let due: usize = layout.iter().map(|segment| segment.len).sum();
        let values = match buffer.payload.values() {
            Ok(values) if values.len() == due => values,
            _ => {
                decoded.complete = false;
                let what = format!("{} of step {step} on rank {}", buffer.point, buffer.rank);
                decoded.refusals.push(format!("{what}: its content was not recorded in full"));
                continue;
            }
        };
        let rows = ParamSamples::of(scene, buffer, &values);
        decoded.complete &= !observed.transforms();
        if rows.params.is_empty() {
            continue;
        }
        match rows.read(scene, &columns, step, buffer) {
            Ok(read) => {
                let worst = decoded.condition.unwrap_or(1.0).max(read.condition);
                decoded.condition = Some(worst);
                if buffer.point == observed.spec.last_word() {
                    *decoded.read.entry((step, buffer.rank)).or_insert(0) += values.len();
                    let tolerances = || read.readings.iter().map(|reading| reading.tolerance);
                    let slack = tolerances().fold(f64::INFINITY, f64::min);
                    let factor = Factor { slack, ..Factor::exact(read.factor) };
                    decoded.factors.insert((step, buffer.rank), factor);
                    let worst = decoded.smallest_weight_deviation.unwrap_or(0.0);
                    decoded.smallest_weight_deviation = Some(tolerances().fold(worst, f64::max));
                }
                entries.add(buffer, read.readings);
            }
            Err(refusal) => {
                decoded.refusals.push(format!("{} of step {step}: {refusal}", buffer.point));
            }
        }
    }
    decoded.contributions = entries.into_contributions();
    decoded
}

/// Returns the first rank whose machine was lost before all of its gradients of a step were recorded; `None` if all
/// gradients were recorded.
fn lost_in(scene: &Scene<'_>, columns: &Columns, step: usize) -> Option<usize> {
    let spec = scene.observed.spec;
    let is_lost =
        |rank: &usize| scene.observed.processes.ranks[*rank].outcome == Some(Outcome::Lost);
    (0..spec.world_size).filter(is_lost).find(|&rank| {
        let first = step * spec.contributions_per_step() + spec.column(0, rank, 0);
        columns.range(first..first + spec.gradient_accumulation_steps).count()
            < spec.gradient_accumulation_steps
    })
}

/// The recorded elements of a buffer, parameter by parameter.
struct ParamSamples {
    /// The indices of the elements in the flat order and their values, by parameter.
    params: BTreeMap<usize, (Vec<usize>, Vec<f64>)>,
}

/// The gradients that a buffer of a step may hold.
struct StepGradients<'a> {
    spec: &'a RunSpec,
    /// The local gradients of the run.
    columns: &'a Columns,
    /// The index of the buffer's step.
    step: usize,
}

/// The weights that were read from a buffer.
struct BufferWeights {
    readings: Vec<Reading>,
    factor: f64,
    condition: f64,
}

/// The weights in some parameters of a buffer, before they are divided by the common factor of all gradients.
struct Fit {
    params: Vec<usize>,
    usage: Usage,
    system: System,
    weights: DVector<f64>,
    /// The difference between the samples and the sum of gradients with these weights.
    error: DVector<f64>,
    /// The bound on the error of a weight.
    tolerance: f64,
    /// True if `error` is no larger than a rounding error.
    explained: bool,
}

impl ParamSamples {
    fn of(scene: &Scene<'_>, buffer: &Buffer<'_>, values: &[f64]) -> Self {
        let plan = scene.plan;
        let starts: Vec<usize> = plan.params().iter().map(|param| param.offset).collect();
        let mut params: BTreeMap<usize, (Vec<usize>, Vec<f64>)> = BTreeMap::new();
        for (element, value) in elements(scene, buffer, values) {
            let param = starts.partition_point(|start| *start <= element) - 1;
            // A parameter that no microbatch uses is not read.
            if !plan.params()[param].trainable || scene.observed.is_transformed(param) {
                continue;
            }
            let rows = params.entry(param).or_default();
            rows.0.push(element);
            rows.1.push(value);
        }
        Self { params }
    }

    /// Reads the weights of all parameters in the buffer.
    fn read(
        &self,
        scene: &Scene<'_>,
        columns: &Columns,
        step: usize,
        buffer: &Buffer<'_>,
    ) -> Result<BufferWeights, String> {
        let spec = scene.observed.spec;
        let mut groups: Vec<(Usage, Vec<usize>)> = Vec::new();
        for &param in self.params.keys() {
            let usage = scene.plan.usage(param);
            match groups.iter_mut().find(|(known, _)| *known == usage) {
                Some((_, params)) => params.push(param),
                None => groups.push((usage, vec![param])),
            }
        }
        let moment = StepGradients { spec, columns, step };
        let mut fits = Vec::new();
        for (usage, params) in groups {
            fits.extend(self.fits(&moment, usage, params)?);
        }
        let factor = factor(scene, buffer, step, &fits);
        let condition = fits.iter().map(|fit| fit.system.condition).fold(1.0, f64::max);
        let covered = scene.placement.recorded_share(buffer.rank, buffer.layout);
        let only = fits.len() == 1;
        let name = |param: &usize| scene.observed.model.param_name(*param);
        let readings = fits.iter().map(|fit| Reading {
            params: (!only).then(|| fit.params.iter().map(name).collect()),
            ..fit.reading(expected(scene, buffer, step, fit.usage), factor, covered)
        });
        Ok(BufferWeights { readings: readings.collect(), factor, condition })
    }

    /// Fits the weights of parameters with the same usage. Parameters with the same weights share a fit.
    fn fits(
        &self,
        moment: &StepGradients<'_>,
        usage: Usage,
        params: Vec<usize>,
    ) -> Result<Vec<Fit>, String> {
        let together = self.fit(moment, usage, params.clone());
        let is_small = together.as_ref().is_ok_and(|it| it.system.present.len() <= MOST_COLUMNS);
        let (mut apart, mut unread): (Vec<Fit>, Vec<usize>) = (Vec::new(), Vec::new());
        for &param in params.iter().filter(|_| is_small && params.len() > 1) {
            match self.fit(moment, usage, vec![param]) {
                Ok(alone) => match apart.iter_mut().find(|known| known.agrees_with(&alone)) {
                    Some(known) => {
                        known.params.push(param);
                        if alone.tolerance < known.tolerance {
                            let params = std::mem::take(&mut known.params);
                            *known = Fit { params, ..alone };
                        }
                    }
                    None => apart.push(alone),
                },
                Err(_) => unread.push(param),
            }
        }
        let together = match together {
            Ok(all) if all.explained && apart.iter().all(|it| it.agrees_with(&all)) => {
                return Ok(vec![all]);
            }
            together => together,
        };
        if apart.is_empty() {
            return together.map(|all| vec![all]);
        }
        if !unread.is_empty() {
            apart.push(self.fit(moment, usage, unread)?);
        }
        // Each group is fitted once more, with all samples of its parameters.
        let again = |fit: Fit| self.fit(moment, usage, fit.params.clone()).unwrap_or(fit);
        Ok(apart.into_iter().map(|fit| if fit.explained { again(fit) } else { fit }).collect())
    }

    /// Fits the weights of some parameters together, from all of their elements.
    fn fit(
        &self,
        moment: &StepGradients<'_>,
        usage: Usage,
        params: Vec<usize>,
    ) -> Result<Fit, String> {
        let StepGradients { spec, columns, step } = *moment;
        let mut rows: Vec<usize> = Vec::new();
        let mut values: Vec<f64> = Vec::new();
        for param in &params {
            let (numbers, of_param) = &self.params[param];
            rows.extend(numbers);
            values.extend(of_param);
        }
        // A gradient that is 0 in all of these elements has no weight.
        let per_step = spec.contributions_per_step();
        let of_steps =
            spec.steps_seen(step).flat_map(|step| step * per_step..(step + 1) * per_step);
        let present: Vec<usize> = of_steps
            .filter(|column| {
                let values = columns.get(column);
                values
                    .is_some_and(|it| rows.iter().any(|row| it.get(row).is_some_and(|v| *v != 0.0)))
            })
            .collect();
        same_data(columns, &present, &rows, spec)?;
        let system = System::of(columns, present, step * per_step, &rows)?;
        let values: DVector<f64> = DVector::from_vec(values);
        if values.iter().any(|value| !value.is_finite()) {
            return Err("the buffer is not finite".to_owned());
        }
        let weights: DVector<f64> = &system.inverse * &values;
        let error = values - &system.matrix * &weights;
        let magnitude = (system.matrix.abs() * weights.abs()).norm();
        let additions = spec.gradient_accumulation_steps + spec.world_size + 2 + FACTORS;
        let allowed = |dtype| gamma(additions, dtype) * magnitude;
        let explained = error.norm() <= allowed(spec.dtype).max(allowed(Dtype::Bf16));
        let most = largest(weights.iter().map(|weight| weight.abs()));
        let tolerance = STANDARD_ERRORS * system.standard_error(&error)
            + (system.arithmetic + gamma(FACTORS, spec.dtype)) * most;
        // A parameter whose gradient is lost in rounding has no readable weights.
        if explained && tolerance > 0.5 * most {
            return Err(format!(
                "rounding alone may move a weight by {:.2}: run with codes in place of gradients (without \
                 --observe)",
                tolerance / most,
            ));
        }
        Ok(Fit { params, usage, system, weights, error, tolerance, explained })
    }
}

/// Returns an error if two ranks or microbatches of a step have the same gradients.
fn same_data(
    columns: &Columns,
    present: &[usize],
    rows: &[usize],
    spec: &RunSpec,
) -> Result<(), String> {
    let ga = spec.gradient_accumulation_steps;
    let at = |column: usize| {
        let number = column % spec.contributions_per_step();
        format!("rank {}, microbatch {}", number / ga, number % ga)
    };
    for (place, one) in present.iter().enumerate() {
        let twin = present[place + 1..]
            .iter()
            .find(|other| rows.iter().all(|row| columns[one].get(row) == columns[*other].get(row)));
        if let Some(other) = twin {
            return Err(format!(
                "{} and {} have the same gradients, so that their weights cannot be told apart: do \
                 they read the same data?",
                at(*one),
                at(*other),
            ));
        }
    }
    Ok(())
}

impl Fit {
    /// True if both fits have the same weights, within their tolerances.
    fn agrees_with(&self, other: &Self) -> bool {
        let slack = self.tolerance.max(other.tolerance);
        let is_like = |(column, weight): (&usize, &f64)| {
            let place = other.system.present.iter().position(|it| it == column);
            (weight - place.map_or(0.0, |place| other.weights[place])).abs() <= slack
        };
        self.explained
            && other.explained
            && self.system.present.iter().zip(self.weights.iter()).all(is_like)
    }

    /// Returns the weights divided by the common factor `factor`. Gradients without a readable weight get their
    /// `planned` one.
    fn reading(&self, planned: Vec<f64>, factor: f64, covered: f64) -> Reading {
        let Self { system, explained, .. } = self;
        let tolerance = self.tolerance / factor;
        // Foreign data is not noise, and must not widen the tolerance.
        let tolerance = if *explained { tolerance } else { tolerance.min(0.5) };
        // A gradient that is 0 in all recorded elements cannot be read, and counts as planned.
        let mut all = planned;
        for (&column, weight) in system.present.iter().zip(self.weights.iter()) {
            let weight = weight / factor;
            let weight = if *explained { snap(weight, tolerance) } else { weight };
            let column = column % all.len();
            all[column] = weight;
        }
        let left = self.error.norm() / factor * system.spread;
        Reading {
            weights: ColumnWeights::new(all),
            possible: Vec::new(),
            slip: None,
            elements: Vec::new(),
            is_plain: false,
            residual: if *explained { 0.0 } else { left.max(1.0) },
            tolerance,
            covered,
            usage: self.usage,
            params: None,
        }
    }
}

/// Returns the factor by which all gradients were multiplied. It is the factor with which most microbatches are
/// right, or have the number of replicas as their weight on this rank only. Of several such factors, it is the one
/// nearest to an average.
fn factor(scene: &Scene<'_>, buffer: &Buffer<'_>, step: usize, fits: &[Fit]) -> f64 {
    let spec = scene.observed.spec;
    if buffer.point == Point::Accumulator {
        return Factor::own(spec).value;
    }
    let (world, ga) = (scene.observed.replicas() as f64, spec.gradient_accumulation_steps);
    let average = 1.0 / world;
    // The weights of each microbatch of each fit, by rank.
    let mut microbatches: Vec<(usize, Vec<(usize, f64)>)> = Vec::new();
    for fit in fits {
        for microbatch in 0..ga {
            let of_it = (0..spec.world_size).filter_map(|rank| {
                let column = step * spec.contributions_per_step() + rank * ga + microbatch;
                let place = fit.system.present.iter().position(|it| *it == column)?;
                Some((rank, fit.weights[place]))
            });
            microbatches.push((fit.params.len(), of_it.collect()));
        }
    }
    let is = |weight: f64, wanted: f64| (weight - wanted).abs() < SAME_SCALE * wanted.max(1.0);
    let right = |factor: f64| -> usize {
        let is_right = |weights: &Vec<(usize, f64)>| {
            let all = |wanted: &dyn Fn(usize) -> f64| {
                weights.iter().all(|(rank, weight)| is(weight.abs() / factor, wanted(*rank)))
            };
            let own = |rank| if rank == buffer.rank { world } else { 0.0 };
            all(&|_| 1.0) || all(&own)
        };
        microbatches.iter().filter(|(_, it)| is_right(it)).map(|(count, _)| count).sum()
    };
    let weights = microbatches.iter().flat_map(|(_, it)| it).map(|(_, weight)| weight.abs());
    let candidates: Vec<f64> =
        weights.filter(|weight| *weight > 0.0).flat_map(|it| [it, it / world]).collect();
    let distance = |factor: f64| (factor / average).ln().abs();
    let best = candidates
        .iter()
        .map(|candidate| (right(*candidate), *candidate))
        .max_by(|a, b| a.0.cmp(&b.0).then_with(|| distance(b.1).total_cmp(&distance(a.1))));
    let Some((_, best)) = best else { return average };
    // Rounding changes each weight separately, and their mean by less.
    let alike: Vec<f64> = candidates.into_iter().filter(|it| is(it / best, 1.0)).collect();
    alike.iter().sum::<f64>() / alike.len() as f64
}
