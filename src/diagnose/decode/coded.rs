//! Exact weights from coded gradients.
//!
//! A buffer is cut where faults begin and end: at parameters, and wherever some rank's partition is
//! cut. Every piece that is at least half a code long is decoded by itself, window by window, where
//! the last window overlaps the one before. A shorter piece is compared, element by element, with
//! the prediction of each set of weights found in the same buffer (and of the plan's own), with
//! what the partitions of all ranks hold together, and finally with what each named slip would have
//! made of the plan's weights.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::spec::code::Code;
use crate::spec::{Plan, RunSpec, UNIT, Usage};
use crate::trace::{LayoutName, Point};

use super::super::bounds;
use super::super::infinity;
use super::super::norm::Clip;
use super::super::observed::Buffer;
use super::super::placement::Fragment;
use super::entries::Entries;
use super::groups::Groups;
use super::hypotheses::{Owner, Slip, slips};
use super::scale::Scale;
use super::together;
use super::weights::{Expectations, Known, Weights};
use super::windows::windows;
use super::{Decoded, Reading, Scene, is_readable, largest};

pub(super) fn decode(scene: &Scene<'_>) -> Decoded {
    let observed = scene.observed;
    let decoder = Decoder::new(scene);
    let mut entries = Entries::new(scene);
    let mut refusals = Vec::new();
    let mut before = Before::new();
    let mut read = BTreeMap::new();
    let mut factors = BTreeMap::new();
    let mut worst = decoder.tolerance;
    let mut consumed = Consumed::default();
    // Moment by moment, so that the values of all ranks are held for one moment at a time.
    for moment in observed.buffers.chunk_by(Buffer::is_beside) {
        let mut prepared = Vec::new();
        for buffer in moment {
            match decoder.prepare(buffer, &mut before) {
                Ok(ready) => prepared.extend(ready),
                Err(refusal) => refusals.push(refusal),
            }
        }
        let earlier = consumed.before(moment[0].step);
        let together =
            Together { decoder: &decoder, moment: &prepared, found: OnceCell::new(), earlier };
        for ready in &prepared {
            let buffer = ready.buffer;
            if let (true, Some(step)) =
                (buffer.point == scene.observed.spec.last_word(), buffer.step)
            {
                *read.entry((step, buffer.rank)).or_insert(0) += ready.elements();
                factors.extend(ready.factor.map(|factor| ((step, buffer.rank), factor)));
                worst = worst.max(ready.tolerance);
            }
            entries.add(buffer, decoder.read(ready, &together));
        }
        let found = together.found.into_inner();
        consumed.weights.extend(found.into_iter().flatten());
    }
    Decoded {
        contributions: entries.into_contributions(),
        smallest_weight_deviation: (!read.is_empty()).then_some(worst),
        condition: Some(1.0),
        smallest_element_deviation: Some(worst),
        precision: Vec::new(),
        factors,
        refusals,
        complete: true,
        read,
    }
}

/// Master weights and parameters that ranks recorded last, by rank and point: the step after which
/// they were recorded, and their values.
type Before = BTreeMap<(usize, Point), (Option<usize>, Vec<f64>)>;

/// A buffer that is ready to be decoded.
pub(super) struct Prepared<'a> {
    /// The buffer.
    pub buffer: &'a Buffer<'a>,
    /// Fragments of parameters in the buffer.
    pub pieces: Vec<Fragment>,
    /// Elements of the buffer; for weights and parameters their update, divided by the learning
    /// rate. Clipping is undone.
    pub values: Vec<f64>,
    /// Bound on the rounding error of an element.
    pub tolerance: f64,
    /// The factor that a user's script has multiplied all gradients with, which is undone.
    factor: Option<f64>,
    /// Number of elements that are infinite, as planned.
    infinite: usize,
}

impl Prepared<'_> {
    fn elements(&self) -> usize {
        self.pieces.iter().map(|piece| piece.flat.len()).sum::<usize>() + self.infinite
    }
}

/// Weights that the partitions of a moment hold together, computed on first use.
struct Together<'a> {
    decoder: &'a Decoder<'a>,
    moment: &'a [Prepared<'a>],
    found: OnceCell<Vec<Rc<Weights>>>,
    /// Weights that the partitions held together at earlier moments of the step.
    earlier: &'a [Rc<Weights>],
}

/// Weights that the partitions of a step hold together, from moment to moment: an update shows what
/// was consumed.
#[derive(Default)]
struct Consumed {
    step: Option<usize>,
    weights: Vec<Rc<Weights>>,
}

impl Consumed {
    /// The weights that are known of a step; those of another step are forgotten.
    fn before(&mut self, step: Option<usize>) -> &[Rc<Weights>] {
        if self.step != step {
            *self = Self { step, weights: Vec::new() };
        }
        &self.weights
    }
}

impl Together<'_> {
    fn candidates(&self) -> &[Rc<Weights>] {
        let Decoder { spec, plan, code, .. } = self.decoder;
        self.found.get_or_init(|| together::candidates(spec, plan, code, self.moment))
    }
}

/// The best explanation of a short piece.
struct Best {
    weights: Rc<Weights>,
    slip: Option<Slip>,
    residual: f64,
}

struct Decoder<'a> {
    scene: &'a Scene<'a>,
    spec: &'a RunSpec,
    plan: &'a Plan,
    code: Code,
    expectations: Expectations<'a>,
    slips: Vec<Slip>,
    /// Bound on the rounding error of an element, in units of one contribution.
    tolerance: f64,
}

impl<'a> Decoder<'a> {
    fn new(scene: &'a Scene<'a>) -> Self {
        let spec = scene.observed.spec;
        Self {
            scene,
            spec,
            plan: scene.plan,
            code: Plan::code(spec),
            expectations: Expectations::new(scene),
            slips: slips(spec),
            tolerance: bounds::coded(spec),
        }
    }

    /// Makes a buffer ready to be decoded; none where there is nothing to read. `before` has what
    /// each rank recorded last at each point.
    fn prepare<'b>(
        &self,
        buffer: &'b Buffer<'b>,
        before: &mut Before,
    ) -> Result<Option<Prepared<'b>>, String> {
        let refuse = |why: &str| Err(format!("rank {}, {}: {why}", buffer.rank, buffer.point));
        if !buffer.payload.has_content() {
            return Ok(None);
        }
        let mut values = match buffer.payload.values() {
            Ok(values) => values,
            Err(err) => return refuse(&err),
        };
        let spec = self.spec;
        if matches!(buffer.point, Point::MasterWeights | Point::Parameters) {
            let held = (buffer.step, values.clone());
            let earlier = before.insert((buffer.rank, buffer.point), held);
            let (Some((after, earlier)), Some(lr)) = (earlier, spec.optimizer.readable_lr()) else {
                return Ok(None);
            };
            if buffer.step.is_none_or(|step| after != step.checked_sub(1)) {
                // More than one step lies between.
                return Ok(None);
            }
            for (after, before) in values.iter_mut().zip(earlier) {
                *after = (before - *after) / lr;
            }
            if let Some(refusal) = self.inexact_update(buffer) {
                return Err(refusal);
            }
        }
        if !is_readable(self.scene.observed, buffer) {
            return Ok(None);
        }
        let planned = infinity::planned(self.scene.observed, self.plan, buffer);
        let (pieces, infinite) = infinity::without_planned(self.pieces(buffer), &values, planned);
        let mut in_pieces =
            pieces.iter().flat_map(|piece| &values[piece.start..][..piece.flat.len()]);
        if in_pieces.any(|value| !value.is_finite()) {
            return refuse("not finite");
        }
        let mut factor = None;
        let tolerance = match (self.spec.script(), buffer.step) {
            (Some(_), Some(step)) => {
                let scale = Scale::read(
                    self.spec,
                    self.scene.observed.replicas(),
                    self.plan,
                    &self.code,
                    step,
                    &pieces,
                    &values,
                );
                factor = scale.map(|scale| scale.factor);
                values.iter_mut().for_each(|value| *value /= UNIT * factor.unwrap_or(1.0));
                scale.map_or(self.tolerance, |scale| scale.tolerance)
            }
            _ => self.undo_clipping(buffer, &mut values),
        };
        if tolerance > bounds::BETWEEN_WEIGHTS && factor.is_some() {
            return refuse(&format!(
                "sums of so many gradients are rounded by up to {tolerance:.1e} of a contribution in {}",
                self.spec.dtype,
            ));
        }
        if tolerance > bounds::BETWEEN_WEIGHTS {
            return refuse(&format!(
                "clipping rounds away up to {tolerance:.1e} of a contribution; use fewer of them, \
                 or no --gradient-clipping"
            ));
        }
        Ok(Some(Prepared { buffer, pieces, values, tolerance, factor, infinite }))
    }

    /// Reason why the update of a buffer cannot be read: weights and parameters hold the sum of all
    /// updates so far, which may be too large to be exact in a narrow dtype.
    fn inexact_update(&self, buffer: &Buffer<'_>) -> Option<String> {
        let dtype = buffer.payload.dtype;
        let largest = self.spec.all_contributions() + Code::MOST_INITIAL;
        (largest > dtype.exact_integers()).then(|| {
            format!(
                "the {} after each step: {largest} contributions are not exact in {dtype} \
                 (at most {})",
                buffer.point,
                dtype.exact_integers(),
            )
        })
    }

    /// Divides by the factor that clipping had to multiply with; returns the bound on the rounding
    /// error of an element.
    ///
    /// Clipping moves elements of at most `W·GA` by [`bounds::clipping`]. An update is read back as
    /// the difference of two weights: once these are no integers any more, each of the two was
    /// rounded.
    fn undo_clipping(&self, buffer: &Buffer<'_>, values: &mut [f64]) -> f64 {
        let factor = match self.scene.clip(buffer) {
            Clip::By(factor) => factor,
            Clip::No | Clip::Unbounded => 1.0,
        };
        for value in values {
            *value /= factor;
        }
        let dtype = buffer.payload.dtype;
        let mut tolerance = self.tolerance;
        if factor < 1.0 {
            tolerance += bounds::clipping(dtype) * self.spec.contributions_per_step() as f64;
        }
        let was_clipped = |step| {
            let clip = Clip::of(self.scene.observed, self.scene.norms, step, buffer.rank);
            matches!(clip, Clip::By(_))
        };
        let is_update = matches!(buffer.point, Point::MasterWeights | Point::Parameters);
        if is_update && (0..=buffer.step.unwrap_or(0)).any(was_clipped) {
            let weight = (Code::MOST_INITIAL + self.spec.all_contributions()) as f64;
            tolerance += 2.0 * dtype.unit_roundoff() * weight / factor;
        }
        tolerance
    }

    /// Reads a buffer: parameters of ordinary usage together, each other one by itself.
    fn read(&self, ready: &Prepared<'_>, together: &Together<'_>) -> Vec<Reading> {
        let Prepared { buffer, pieces, values, tolerance, .. } = ready;
        let mut kinds: BTreeMap<Option<usize>, Groups> = BTreeMap::new();
        for piece in pieces {
            let kind = self.kind(piece);
            kinds.entry(kind).or_insert_with(|| {
                let usage = self.plan.usage(piece.param);
                let planned = self.planned(buffer, usage);
                Groups::new(usage, kind.is_some(), planned, *tolerance)
            });
        }
        let (long, short): (Vec<_>, Vec<_>) =
            pieces.iter().partition(|piece| piece.flat.len() >= self.code.shortest());
        let mut decoded = 0;
        for piece in long {
            decoded += piece.flat.len();
            let Some(groups) = kinds.get_mut(&self.kind(piece)) else { continue };
            let planned = Rc::clone(groups.planned());
            if planned.fit(&self.code, piece, values, 0.0) {
                groups.add(planned, None, 0.0, piece.param);
                continue;
            }
            let held = (piece.flat.start, &values[piece.start..][..piece.flat.len()]);
            for window in windows(&self.code, self.spec.contributions(), held, *tolerance) {
                groups.add(Weights::new(window.weights), None, window.residual, piece.param);
            }
        }
        for piece in short {
            let best = self.best(&kinds, ready, piece, together);
            if let (Some(best), Some(groups)) = (best, kinds.get_mut(&self.kind(piece))) {
                groups.add(best.weights, best.slip, best.residual, piece.param);
            }
        }
        let total: usize = pieces.iter().map(|piece| piece.flat.len()).sum();
        let covered = if total == 0 { 0.0 } else { decoded as f64 / total as f64 };
        let covered = covered * self.scene.placement.recorded_share(buffer.rank, buffer.layout);
        let name = |param| self.scene.observed.param_name(param);
        kinds.into_values().flat_map(|groups| groups.into_readings(covered, name)).collect()
    }

    fn planned(&self, buffer: &Buffer<'_>, usage: Usage) -> Rc<Weights> {
        let planned = self.expectations.of(Known::Planned, buffer, usage);
        planned.unwrap_or_else(|| Weights::new(vec![0.0; self.spec.contributions()]))
    }

    /// The parameter of a piece, if its usage is not the ordinary one.
    fn kind(&self, piece: &Fragment) -> Option<usize> {
        (self.plan.usage(piece.param) != self.plan.ordinary()).then_some(piece.param)
    }

    /// The first weights that explain a piece too short to decode: those found elsewhere in the
    /// buffer, the plan's, those of a gradient that is left over, those that the partitions hold
    /// together, or those of the only slip that fits. If none do, those that deviate least.
    fn best(
        &self,
        kinds: &BTreeMap<Option<usize>, Groups>,
        ready: &Prepared<'_>,
        piece: &Fragment,
        together: &Together<'_>,
    ) -> Option<Best> {
        let Prepared { buffer, values, tolerance, .. } = ready;
        let own = kinds.get(&self.kind(piece))?;
        // A piece may agree with several weights. If all decoded pieces hold the same weights,
        // those come first; otherwise nothing is assumed to be wrong, and the plan's come first.
        let mut found = own.found();
        let mut candidates: Vec<Rc<Weights>> = match (found.next(), found.next()) {
            (Some(only), None) => vec![Rc::clone(only)],
            _ => Vec::new(),
        };
        candidates.push(Rc::clone(own.planned()));
        let fits = |weights: &&Rc<Weights>| weights.fit(&self.code, piece, values, *tolerance);
        let accept = |weights: &Rc<Weights>, slip| {
            let residual = self.deviation(weights, piece, values);
            Some(Best { weights: Rc::clone(weights), slip, residual })
        };
        if let Some(weights) = candidates.iter().find(fits) {
            return accept(weights, None);
        }
        // Beside data that no gradient explains, a few elements may agree with something by chance,
        // which says nothing.
        let is_foreign = kinds.values().any(Groups::has_unexplained);
        let usage = own.usage();
        candidates.extend(own.found().cloned());
        for groups in kinds.values().filter(|groups| groups.usage() != usage) {
            candidates.extend(groups.found().map(|weights| self.as_used(weights, usage)));
        }
        if !is_foreign {
            let known = [Known::Nothing, Known::Added, Known::Left];
            let known = known.map(|known| self.expectations.of(known, buffer, usage));
            candidates.extend(known.into_iter().flatten());
            let whole = match buffer.layout {
                LayoutName::Partition => together.candidates(),
                LayoutName::Full if buffer.point == Point::Parameters => together.earlier,
                LayoutName::Full => &[],
            };
            candidates.extend(whole.iter().map(|weights| self.as_used(weights, usage)));
        }
        if let Some(weights) = candidates.iter().find(fits) {
            return accept(weights, None);
        }
        if !is_foreign && let Some((weights, slip)) = self.only_slip(own.planned(), ready, piece) {
            return accept(&weights, Some(slip));
        }
        let best = candidates
            .iter()
            .map(|weights| (self.deviation(weights, piece, values), weights))
            .min_by(|a, b| a.0.total_cmp(&b.0))?;
        Some(Best { weights: Rc::clone(best.1), slip: None, residual: best.0 })
    }

    /// The only slip that explains a piece; none if several different ones do, as a few elements
    /// may agree with many.
    fn only_slip(
        &self,
        planned: &Rc<Weights>,
        ready: &Prepared<'_>,
        piece: &Fragment,
    ) -> Option<(Rc<Weights>, Slip)> {
        let owner = Owner { step: ready.buffer.step?, rank: ready.buffer.rank };
        let columns = &planned.columns;
        let mut only: Option<&Slip> = None;
        for slip in &self.slips {
            let held = (piece, &ready.values[..]);
            if !slip.fits(self.spec, &self.code, planned, owner, held, ready.tolerance)
                || !slip.changes(self.spec, columns, owner.rank)
            {
                continue;
            }
            match only {
                None => only = Some(slip),
                Some(known) if known.is_same(slip, self.spec, columns, owner.rank) => {}
                Some(_) => return None,
            }
        }
        only.map(|slip| (Weights::new(slip.weights(self.spec, columns, owner.rank)), slip.clone()))
    }

    /// Largest difference between a piece and what weights predict for it.
    fn deviation(&self, weights: &Weights, piece: &Fragment, values: &[f64]) -> f64 {
        let sum = weights.sum(&self.code);
        let elements = piece.flat.clone().zip(&values[piece.start..]);
        largest(elements.map(|(element, value)| (value - sum.value(element)).abs()))
    }

    /// The weights with 0 for gradients that a parameter with this `usage` does not have.
    fn as_used(&self, weights: &Rc<Weights>, usage: Usage) -> Rc<Weights> {
        if usage.uses_all() {
            return Rc::clone(weights);
        }
        let ga = self.spec.gradient_accumulation_steps;
        let per_step = self.spec.contributions_per_step();
        let steps = self.spec.code_steps();
        let used = |k: usize| {
            let (step, rank) = (k / per_step, k % per_step / ga);
            let mut recorded = self.spec.recorded_steps().filter(|it| it % steps == step);
            recorded.any(|step| self.plan.uses(usage, step, rank, k % ga))
        };
        let has_more = |(k, weight): (usize, &f64)| *weight != 0.0 && !used(k);
        if !weights.columns.iter().enumerate().any(has_more) {
            return Rc::clone(weights);
        }
        let columns = weights.columns.iter().enumerate();
        Weights::new(columns.map(|(k, &weight)| if used(k) { weight } else { 0.0 }).collect())
    }

    /// Cuts a buffer at parameters and, where it holds them whole, at partitions.
    fn pieces(&self, buffer: &Buffer<'_>) -> Vec<Fragment> {
        let pieces = infinity::parts(self.scene.observed, self.plan, buffer);
        match buffer.layout {
            LayoutName::Partition => pieces,
            LayoutName::Full => {
                pieces.into_iter().flat_map(|piece| self.scene.placement.cut(piece)).collect()
            }
        }
    }
}
