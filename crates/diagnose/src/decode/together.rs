//! The weights in the whole gradient, which the partitions of all ranks form together.
//!
//! With many ranks a partition is shorter than the code, and its own elements cannot tell thousands of gradients
//! apart. The partitions of all ranks together are the whole gradient, which can be decoded. Weights that explain a
//! window across ranks are candidates for every piece, and each piece confirms or rejects them.

use std::cell::OnceCell;
use std::rc::Rc;

use zprobe_model::spec::code::Code;
use zprobe_model::spec::{Plan, RunSpec};
use zprobe_model::trace::LayoutName;

use super::coded::{Decoder, Prepared};
use super::weights::ColumnWeights;
use super::windows::{Window, windows};

/// The largest number of candidates that are kept. Faults that differ from place to place are not searched for here.
const MOST_CANDIDATES: usize = 8;

/// The weights in the whole gradient that the partitions of all ranks form together at one moment, computed on first
/// use.
pub(super) struct Together<'a> {
    decoder: &'a Decoder<'a>,
    moment: &'a [Prepared<'a>],
    found: OnceCell<Vec<Rc<ColumnWeights>>>,
    /// The weights that were found in this way at earlier moments of the step.
    pub earlier: &'a [Rc<ColumnWeights>],
}

/// The weights that the partitions of all ranks held together at the moments of a step so far. They help to read the
/// update, which shows the consumed gradient.
#[derive(Default)]
pub struct Consumed {
    step: Option<usize>,
    weights: Vec<Rc<ColumnWeights>>,
}

impl Consumed {
    /// Returns the known weights of a step, and forgets those of any other step.
    pub fn before(&mut self, step: Option<usize>) -> &[Rc<ColumnWeights>] {
        if self.step != step {
            *self = Self { step, weights: Vec::new() };
        }
        &self.weights
    }

    /// Adds the weights that were found at the next moment of the step.
    pub fn add(&mut self, found: Vec<Rc<ColumnWeights>>) {
        self.weights.extend(found);
    }
}

impl<'a> Together<'a> {
    /// Prepares the search among the buffers of one moment; `earlier` are the weights of earlier moments.
    pub fn new(
        decoder: &'a Decoder<'a>,
        moment: &'a [Prepared<'a>],
        earlier: &'a [Rc<ColumnWeights>],
    ) -> Self {
        Self { decoder, moment, found: OnceCell::new(), earlier }
    }

    /// Returns the weights that the search found; empty if nobody asked for candidates.
    pub fn into_found(self) -> Vec<Rc<ColumnWeights>> {
        self.found.into_inner().unwrap_or_default()
    }

    /// Returns the weights that explain windows of the whole gradient.
    pub fn candidates(&self) -> &[Rc<ColumnWeights>] {
        let Decoder { spec, plan, code, .. } = self.decoder;
        self.found.get_or_init(|| candidates(spec, plan, code, self.moment))
    }
}

/// Returns the weights that explain windows of the whole gradient at one moment of the run.
fn candidates(
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
    // Windows as long as the whole code have as many spare codes as gradients, which rules out weights that would be
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
