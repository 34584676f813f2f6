//! Exact weights from coded gradients.
//!
//! A buffer is cut where faults begin and end: at parameters, and wherever some rank's partition is cut. Each piece
//! of at least half a code length is decoded by itself, window by window; its last window overlaps the one before. If
//! that leaves an unexplained part, [`super::cut`] searches for places at which the weights change. Shorter pieces
//! are compared, element by element, with known weights ([`super::short`]).

use std::collections::BTreeMap;
use std::rc::Rc;

use zprobe_model::spec::code::Code;
use zprobe_model::spec::{Plan, RunSpec, UNIT, Usage};
use zprobe_model::trace::{LayoutName, Point};

use super::cut::{PieceCut, cut, differing};
use super::entries::Entries;
use super::first_step::with_first_step;
use super::groups::{PieceGroups, PiecePlace, whole};
use super::hypotheses::{WeightSlip, slips};
use super::scale::CommonScale;
use super::short::{BestWeights, ElementSet};
use super::together::{Consumed, Together};
use super::weights::{ColumnWeights, Expectations, KnownWeights};
use super::windows::{Window, windows};
use super::{Decoded, Factor, Reading, Scene, is_readable};
use crate::bounds;
use crate::infinity;
use crate::norm::Clipping;
use crate::observed::Buffer;
use crate::placement::Fragment;

/// The largest number of different weights that are searched for inside one piece.
const MOST_RUNS: usize = 8;

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
    // Buffers are read moment by moment, so that only one moment's values of all ranks are in memory.
    for moment in observed.buffers.all.chunk_by(Buffer::is_beside) {
        let mut prepared = Vec::new();
        for buffer in moment {
            match decoder.prepare(buffer, &mut before) {
                Ok(ready) => prepared.extend(ready),
                Err(refusal) => refusals.push(refusal),
            }
        }
        let earlier = consumed.before(moment[0].step);
        let together = Together::new(&decoder, &prepared, earlier);
        for ready in &prepared {
            let buffer = ready.buffer;
            if let (true, Some(step)) =
                (buffer.point == scene.observed.spec.last_word(), buffer.step)
            {
                *read.entry((step, buffer.rank)).or_insert(0) += ready.elements();
                let told = ready.factor.filter(|factor| !factor.is_assumed);
                factors.extend(told.map(|factor| ((step, buffer.rank), factor)));
                worst = worst.max(ready.tolerance);
            }
            entries.add(buffer, with_first_step(&decoder, ready, decoder.read(ready, &together)));
        }
        let found = together.into_found();
        consumed.add(found);
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

/// The master weights and parameters that ranks recorded last, by (rank, point): the step after which they were
/// recorded, and their values.
type Before = BTreeMap<(usize, Point), (Option<usize>, Vec<f64>)>;

/// A buffer that is ready to be decoded.
pub(super) struct Prepared<'a> {
    /// The recorded buffer.
    pub buffer: &'a Buffer<'a>,
    /// The fragments of parameters in the buffer.
    pub pieces: Vec<Fragment>,
    /// The elements of the buffer. For master weights and parameters, they are the change in the step divided by the
    /// learning rate. Clipping is undone.
    pub values: Vec<f64>,
    /// The bound on the rounding error of an element, in units of one contribution.
    pub tolerance: f64,
    /// The factor by which a user's script multiplied all gradients, which `values` no longer contain.
    factor: Option<Factor>,
    /// The number of elements that are infinite, as planned.
    infinite: usize,
}

impl Prepared<'_> {
    fn elements(&self) -> usize {
        self.pieces.iter().map(|piece| piece.flat.len()).sum::<usize>() + self.infinite
    }
}

/// The facts about a run that decoding needs, and the data that all buffers share.
pub(super) struct Decoder<'a> {
    pub scene: &'a Scene<'a>,
    pub spec: &'a RunSpec,
    pub plan: &'a Plan,
    pub code: Code,
    pub expectations: Expectations<'a>,
    pub slips: Vec<WeightSlip>,
    /// The bound on the rounding error of an element, in units of one contribution.
    tolerance: f64,
}

/// Iterates over the elements of the pieces of a buffer.
fn in_pieces<'a>(pieces: &'a [Fragment], values: &'a [f64]) -> impl Iterator<Item = f64> + 'a {
    pieces.iter().flat_map(|piece| &values[piece.start..][..piece.flat.len()]).copied()
}

/// Pairs each set of weights with the bound on the error of an element that holds them.
fn with_slack(
    weights: Vec<Rc<ColumnWeights>>,
    groups: &PieceGroups,
) -> Vec<(Rc<ColumnWeights>, f64)> {
    let with_slack = |weights: Rc<ColumnWeights>| {
        let slack = groups.slack(&weights);
        (weights, slack)
    };
    weights.into_iter().map(with_slack).collect()
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

    /// Prepares a buffer for decoding; returns `None` if it has nothing to read. `before` has the values that each
    /// rank recorded last at each point.
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
            let lr = spec.readable_lr(buffer.step.unwrap_or(0));
            let (Some((after, earlier)), Some(lr)) = (earlier, lr) else {
                return Ok(None);
            };
            if buffer.step.is_none_or(|step| after != step.checked_sub(1)) {
                // More than one step lies between the two recordings.
                return Ok(None);
            }
            for (after, before) in values.iter_mut().zip(earlier) {
                *after = (before - *after) / lr;
            }
            if let Some(refusal) = self.inexact_update(buffer) {
                return Err(refusal);
            }
        }
        // Only the optimizers' inputs were freed of the old gradients of a script's first step, which have no codes.
        let mut left = self.scene.observed.updates.left.keys();
        let has_old_ones = buffer.point != Point::OptimizerInput
            && left.any(|(step, _)| Some(*step) == buffer.step);
        if has_old_ones || !is_readable(self.scene.observed, buffer) {
            return Ok(None);
        }
        let planned = infinity::planned(self.scene.observed, self.plan, buffer);
        let mut pieces = self.pieces(buffer);
        pieces.retain(|piece| !self.scene.observed.is_transformed(piece.param));
        let (pieces, infinite) = infinity::without_planned(pieces, &values, planned);
        if in_pieces(&pieces, &values).any(|value| !value.is_finite()) {
            return refuse("not finite");
        }
        let mut factor = None;
        let tolerance = match (self.spec.script(), buffer.step) {
            (Some(_), Some(step)) => {
                let left = self.scene.observed.updates.left.get(&(step, buffer.rank));
                let largest = left.into_iter().flat_map(|params| params.iter());
                let largest = largest.map(|it| it.largest).fold(0.0, f64::max);
                let scale = self.scale(buffer, step, &pieces, &values);
                let scale = scale.map(|scale| scale.after(self.spec, largest));
                if scale.is_none() && in_pieces(&pieces, &values).any(|value| value != 0.0) {
                    return refuse(
                        "too few elements to tell a common factor from single wrong weights",
                    );
                }
                factor = scale.map(|scale| scale.factor);
                values
                    .iter_mut()
                    .for_each(|value| *value /= UNIT * factor.map_or(1.0, |it| it.value));
                scale.map_or(self.tolerance, |scale| scale.tolerance)
            }
            _ => self.undo_clipping(buffer, &mut values),
        };
        let elements = in_pieces(&pieces, &values);
        let tolerance = match factor.and_then(|_| bounds::seen_rounding(elements)) {
            // The bound covers the worst case, and grows with the number of gradients.
            Some(seen) if tolerance > bounds::BETWEEN_WEIGHTS => seen,
            _ => tolerance,
        };
        if tolerance > bounds::BETWEEN_WEIGHTS && factor.is_some() {
            return refuse(&format!(
                "rounding changes sums of this many gradients by up to {tolerance:.1e} of a contribution in {}",
                self.spec.dtype,
            ));
        }
        if tolerance > bounds::BETWEEN_WEIGHTS {
            return refuse(&format!(
                "clipping rounds away up to {tolerance:.1e} of a contribution; use fewer contributions, \
                 or omit --gradient-clipping"
            ));
        }
        Ok(Some(Prepared { buffer, pieces, values, tolerance, factor, infinite }))
    }

    /// Reads the factor by which a user's script multiplied all gradients of a buffer; `None` if all elements are 0,
    /// or if there are too few of them.
    fn scale(
        &self,
        buffer: &Buffer<'_>,
        step: usize,
        pieces: &[Fragment],
        values: &[f64],
    ) -> Option<CommonScale> {
        let replicas = self.scene.observed.replicas();
        if buffer.point == Point::Accumulator {
            return Some(CommonScale::own(self.spec, values));
        }
        let is_long = |piece: &Fragment| piece.flat.len() >= self.code.length();
        if pieces.iter().any(is_long) {
            return CommonScale::read(
                self.spec, replicas, self.plan, &self.code, step, pieces, values,
            );
        }
        let mut planned = Vec::new();
        for piece in pieces {
            let weights = self.planned(buffer, self.plan.usage(piece.param));
            let sum = weights.sum(&self.code);
            planned.extend(piece.flat.clone().map(|element| sum.value(element)));
        }
        let values: Vec<f64> = in_pieces(pieces, values).collect();
        CommonScale::of_few(self.spec, replicas, &planned, &values)
    }

    /// Returns the reason why the update of a buffer cannot be read. Weights and parameters hold the sum of all
    /// updates so far, which may be too large to be exact in a narrow dtype.
    fn inexact_update(&self, buffer: &Buffer<'_>) -> Option<String> {
        let dtype = buffer.payload.dtype;
        let largest = self.spec.all_contributions() * self.spec.units_of_lr() + Code::MOST_INITIAL;
        (largest > dtype.exact_integers()).then(|| {
            format!(
                "the {} after each step: sums of {largest} contributions are not exact in {dtype} (the limit is {})",
                buffer.point,
                dtype.exact_integers(),
            )
        })
    }

    /// Divides `values` by the clipping factor, and returns the bound on the rounding error of an element.
    ///
    /// Clipping changes elements, which are at most `W·GA`, by the share [`bounds::clipping`]. An update is read as
    /// the difference of two weights; once these are no longer integers, both were rounded.
    fn undo_clipping(&self, buffer: &Buffer<'_>, values: &mut [f64]) -> f64 {
        let factor = match self.scene.clip(buffer) {
            Clipping::By(factor) => factor,
            Clipping::No | Clipping::Unbounded => 1.0,
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
            let clip = Clipping::of(self.scene.observed, self.scene.norms, step, buffer.rank);
            matches!(clip, Clipping::By(_))
        };
        let is_update = matches!(buffer.point, Point::MasterWeights | Point::Parameters);
        if is_update && (0..=buffer.step.unwrap_or(0)).any(was_clipped) {
            let weight = (Code::MOST_INITIAL + self.spec.all_contributions()) as f64;
            tolerance += 2.0 * dtype.unit_roundoff() * weight / factor;
        }
        tolerance
    }

    /// Reads a buffer: all parameters of ordinary usage together, and each other parameter by itself.
    fn read(&self, ready: &Prepared<'_>, together: &Together<'_>) -> Vec<Reading> {
        let Prepared { buffer, pieces, tolerance, .. } = ready;
        let mut kinds: BTreeMap<Option<usize>, PieceGroups> = BTreeMap::new();
        for piece in pieces {
            let kind = self.kind(piece);
            kinds.entry(kind).or_insert_with(|| {
                let usage = self.plan.usage(piece.param);
                let planned = self.planned(buffer, usage);
                PieceGroups::new(usage, kind.is_some(), planned, *tolerance)
            });
        }
        let shortest = self.code.shortest();
        let (long, short): (Vec<_>, Vec<_>) =
            pieces.iter().partition(|piece| piece.flat.len() >= shortest);
        let mut decoded = 0;
        let mut odd: BTreeMap<Option<usize>, Vec<Fragment>> = BTreeMap::new();
        let mut uncertain = Vec::new();
        for piece in long {
            let kind = self.kind(piece);
            let Some(groups) = kinds.get_mut(&kind) else { continue };
            match self.read_long(ready, piece, groups) {
                Some(fragments) => {
                    decoded += piece.flat.len();
                    odd.entry(kind).or_default().extend(fragments);
                }
                None => uncertain.push(piece),
            }
        }
        for piece in short.into_iter().chain(uncertain) {
            let kind = self.kind(piece);
            let whole = std::slice::from_ref(piece);
            let best = self.explain(&kinds, ready, ElementSet::Whole, whole, together);
            if let (Some(best), Some(groups)) = (best, kinds.get_mut(&kind)) {
                odd.entry(kind).or_default().extend(self.read_short(ready, piece, best, groups));
            }
        }
        for (kind, fragments) in odd.iter().filter(|(_, fragments)| !fragments.is_empty()) {
            let best = self.explain(&kinds, ready, ElementSet::Odd, fragments, together);
            if let (Some(best), Some(groups)) = (best, kinds.get_mut(kind)) {
                groups.add(best, fragments.iter().map(|it| self.elements(it)));
            }
        }
        let total: usize = pieces.iter().map(|piece| piece.flat.len()).sum();
        let covered = if total == 0 { 0.0 } else { decoded as f64 / total as f64 };
        let covered = covered * self.scene.placement.recorded_share(buffer.rank, buffer.layout);
        let name = |param| self.scene.observed.model.param_name(param);
        kinds.into_values().flat_map(|groups| groups.into_readings(covered, name)).collect()
    }

    /// Reads a piece that is long enough to be decoded by itself, and returns the elements that differ from their
    /// surroundings. `None` if the piece has no more elements than there are weights, so that the weights may fit by
    /// chance.
    fn read_long(
        &self,
        ready: &Prepared<'_>,
        piece: &Fragment,
        groups: &mut PieceGroups,
    ) -> Option<Vec<Fragment>> {
        let Prepared { values, tolerance, .. } = ready;
        let planned = Rc::clone(groups.planned());
        if planned.fit(&self.code, piece, values, 0.0) {
            groups.add(BestWeights::exact(planned), [whole(piece)]);
            return Some(Vec::new());
        }
        let held = (piece.flat.start, &values[piece.start..][..piece.flat.len()]);
        let windows: Vec<Window> =
            windows(&self.code, self.spec.contributions(), held, *tolerance).collect();
        let mut known = vec![planned];
        for window in windows.iter().filter(|window| window.is_certain(*tolerance)) {
            let is_new = known.iter().all(|weights| weights.columns != window.weights);
            if is_new && known.len() < MOST_RUNS {
                known.push(ColumnWeights::new(window.weights.clone()));
            }
        }
        let known = with_slack(known, groups);
        if let Some(found) = cut(&self.code, piece, values, &known) {
            return Some(self.add_runs(ready, found, &known[0].0, groups));
        }
        if !windows.iter().all(Window::is_checked) {
            return None;
        }
        for Window { weights, residual, .. } in windows {
            groups.add(BestWeights::new(ColumnWeights::new(weights), residual), [whole(piece)]);
        }
        Some(Vec::new())
    }

    /// Reads a piece that is too short to be decoded by itself, given the best explanation of the whole piece.
    /// Returns the elements that differ from their surroundings.
    fn read_short(
        &self,
        ready: &Prepared<'_>,
        piece: &Fragment,
        best: BestWeights,
        groups: &mut PieceGroups,
    ) -> Vec<Fragment> {
        if !groups.explains(&best) {
            let mut known = vec![Rc::clone(groups.planned())];
            known.extend(groups.found().cloned());
            let known = with_slack(known, groups);
            let found = cut(&self.code, piece, &ready.values, &known);
            let found = found.or_else(|| differing(&self.code, piece, &ready.values, &known[0]));
            if let Some(found) = found {
                return self.add_runs(ready, found, &known[0].0, groups);
            }
        }
        if !best.possible.is_empty() {
            groups.add(best, [self.elements(piece)]);
            return Vec::new();
        }
        groups.add(best, [whole(piece)]);
        Vec::new()
    }

    /// Adds the runs of a piece that was cut to the groups, and returns the elements that differ from their
    /// surroundings.
    fn add_runs(
        &self,
        ready: &Prepared<'_>,
        PieceCut { runs, odd }: PieceCut,
        planned: &Rc<ColumnWeights>,
        groups: &mut PieceGroups,
    ) -> Vec<Fragment> {
        let is_whole = runs.len() == 1;
        for (weights, run) in runs {
            let residual = self.deviation(&weights, std::slice::from_ref(&run), &ready.values);
            let is_plain = is_whole || Rc::ptr_eq(&weights, planned);
            let place = if is_plain { whole(&run) } else { self.elements(&run) };
            groups.add(BestWeights::new(weights, residual), [place]);
        }
        odd
    }

    /// Returns the elements of a fragment, counted from the start of its parameter.
    fn elements(&self, fragment: &Fragment) -> PiecePlace {
        let first = self.plan.params()[fragment.param].offset;
        let Fragment { param, flat, .. } = fragment;
        (*param, Some([flat.start - first, flat.end - first]))
    }

    fn planned(&self, buffer: &Buffer<'_>, usage: Usage) -> Rc<ColumnWeights> {
        let planned = self.expectations.of(KnownWeights::Planned, buffer, usage);
        planned.unwrap_or_else(|| ColumnWeights::new(vec![0.0; self.spec.contributions()]))
    }

    /// Returns the parameter of a piece if only some microbatches use it; `None` for a parameter of ordinary usage.
    pub(super) fn kind(&self, piece: &Fragment) -> Option<usize> {
        let usage = self.plan.usage(piece.param);
        (!usage.is_like(self.plan.ordinary())).then_some(piece.param)
    }

    /// Cuts a buffer into pieces at the ends of its parameters. A buffer with whole parameters is also cut at the ends
    /// of the ranks' partitions.
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
