//! Weights that the partitions of all ranks hold together.
//!
//! With many ranks a partition is shorter than the code, and its own elements cannot tell thousands of gradients
//! apart. The partitions of all ranks together are the whole gradient, which can be decoded. Weights that explain a
//! window across ranks are candidates for every piece, and each piece confirms or rejects them.

use std::rc::Rc;

use zprobe_model::spec::code::Code;
use zprobe_model::spec::{Plan, RunSpec};
use zprobe_model::trace::LayoutName;

use super::coded::Prepared;
use super::weights::ColumnWeights;
use super::windows::{Window, windows};

/// The largest number of candidates that are kept. Faults that differ from place to place are not searched for here.
const MOST_CANDIDATES: usize = 8;

/// Returns the weights that explain windows of the partitions of one moment.
pub fn candidates(
    spec: &RunSpec,
    plan: &Plan,
    code: &Code,
    moment: &[Prepared<'_>],
) -> Vec<Rc<ColumnWeights>> {
    let mut found: Vec<Rc<ColumnWeights>> = Vec::new();
    let partitions = || moment.iter().filter(|it| it.buffer.layout == LayoutName::Partition);
    let held: usize = partitions().flat_map(|it| &it.pieces).map(|piece| piece.flat.len()).sum();
    // Samples of a large model contain no full window, but the samples of many small partitions may cover the whole
    // model.
    if spec.recording.sampled && held < plan.numel() {
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
    // Windows as long as the whole code have as many spare rows as gradients, which rules out weights that would be
    // decoded by chance and stand for all ranks. If a rank's part is missing, the residual is infinite.
    for param in plan.params().iter().filter(|param| param.numel() >= code.length()) {
        let held = (param.offset, &whole[param.range()]);
        for Window { weights, residual, .. } in windows(code, spec.contributions(), held, tolerance)
        {
            if residual <= tolerance
                && found.len() < MOST_CANDIDATES
                && found.iter().all(|it| it.columns != weights)
            {
                found.push(ColumnWeights::new(weights));
            }
        }
    }
    found
}
