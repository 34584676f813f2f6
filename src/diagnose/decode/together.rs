//! Weights that the partitions of all ranks hold together.
//!
//! With many ranks a partition is shorter than the code, and its own elements cannot tell thousands
//! of gradients apart. The partitions of all ranks are the whole gradient, which can: weights that
//! explain a window across ranks are candidates for every piece, and each piece confirms them or
//! does not.

use std::rc::Rc;

use crate::spec::code::Code;
use crate::spec::{Plan, RunSpec};
use crate::trace::LayoutName;

use super::coded::Prepared;
use super::weights::Weights;
use super::{largest, snap};

/// Most candidates that are kept: faults that differ from place to place are not looked for here.
const MOST_CANDIDATES: usize = 8;

/// Weights that explain windows of the partitions of one moment.
pub fn candidates(
    spec: &RunSpec,
    plan: &Plan,
    code: &Code,
    moment: &[Prepared<'_>],
) -> Vec<Rc<Weights>> {
    let mut found: Vec<Rc<Weights>> = Vec::new();
    let partitions = || moment.iter().filter(|it| it.buffer.layout == LayoutName::Partition);
    if spec.recording.sampled {
        return found;
    }
    let mut whole = vec![f64::NAN; plan.numel()];
    let mut tolerance: f64 = 0.0;
    for prepared in partitions() {
        tolerance = tolerance.max(prepared.tolerance);
        for piece in &prepared.pieces {
            whole[piece.flat.clone()]
                .copy_from_slice(&prepared.values[piece.start..][..piece.flat.len()]);
        }
    }
    // Windows as long as the whole code have as many spare rows as gradients: weights that are
    // decoded by chance would stand for all ranks.
    let length = code.length();
    for param in plan.params() {
        let range = param.range();
        let last = range.end.saturating_sub(length);
        if range.len() < length {
            continue;
        }
        // The last window overlaps the one before.
        for window in (range.start..last).step_by(length).chain([last]) {
            let values = &whole[window..window + length];
            if values.iter().any(|value| !value.is_finite()) {
                continue;
            }
            let mut columns = code.decode(values, window);
            let spare = columns.split_off(spec.contributions());
            if largest(spare.iter().map(|coefficient| coefficient.abs())) > tolerance {
                continue;
            }
            for weight in &mut columns {
                *weight = snap(*weight, tolerance);
            }
            if found.len() < MOST_CANDIDATES && found.iter().all(|it| it.columns != columns) {
                found.push(Weights::new(columns));
            }
        }
    }
    found
}
