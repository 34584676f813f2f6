//! Sets of weights that many pieces of many buffers share, with cached sums of the gradients with these weights.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use zprobe_model::spec::code::{Code, Sum};
use zprobe_model::spec::{Point, Usage};

use super::{Scene, expected};
use crate::observed::Buffer;
use crate::placement::Fragment;

/// A weight for each gradient (*column*) of the run (see [`zprobe_model::spec::RunSpec::column`]).
pub struct ColumnWeights {
    /// The weights, indexed by column.
    pub columns: Vec<f64>,
    sum: OnceCell<Sum>,
    by_microbatch: OnceCell<Vec<Sum>>,
}

impl ColumnWeights {
    /// Creates weights from the values of all columns.
    pub fn new(columns: Vec<f64>) -> Rc<Self> {
        Rc::new(Self { columns, sum: OnceCell::new(), by_microbatch: OnceCell::new() })
    }

    /// Returns the sum of the gradients with these weights.
    pub fn sum(&self, code: &Code) -> &Sum {
        self.sum.get_or_init(|| code.sum(&self.columns))
    }

    /// Returns the sum of the gradients of each microbatch with these weights.
    pub fn by_microbatch(&self, code: &Code, ga: usize) -> &[Sum] {
        self.by_microbatch.get_or_init(|| {
            let of = |m: usize| -> Vec<f64> {
                let all = self.columns.iter().enumerate();
                all.map(|(k, weight)| if k % ga == m { *weight } else { 0.0 }).collect()
            };
            (0..ga).map(|m| code.sum(&of(m))).collect()
        })
    }

    /// True if a piece of a buffer holds these weights, up to `tolerance` in each element.
    pub fn fit(&self, code: &Code, piece: &Fragment, values: &[f64], tolerance: f64) -> bool {
        let sum = self.sum(code);
        let mut elements = piece.flat.clone().zip(&values[piece.start..]);
        elements.all(|(element, value)| (value - sum.value(element)).abs() <= tolerance)
    }
}

/// Weights that a piece may hold, known without reading other pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KnownWeights {
    /// The plan's weights.
    Planned,
    /// Weights that are all 0.
    Nothing,
    /// The plan's weights of the previous step.
    Left,
    /// The sum of the plan's weights of this step and of the previous step.
    Added,
}

/// The weights that are known in advance, cached by everything on which they depend. From the reduction on they do not
/// depend on the rank, so that thousands of ranks share them.
pub struct Expectations<'a> {
    scene: &'a Scene<'a>,
    known: RefCell<HashMap<ExpectationKey, Rc<ColumnWeights>>>,
}

#[derive(PartialEq, Eq, Hash)]
struct ExpectationKey {
    known: KnownWeights,
    usage: Usage,
    point: Point,
    step: Option<usize>,
    microbatch: Option<usize>,
    /// The rank; `None` if the weights are the same on all ranks.
    rank: Option<usize>,
    /// Two flags: the rank skipped this step, and the rank skipped the previous step.
    skipped: [bool; 2],
}

impl<'a> Expectations<'a> {
    /// Creates an empty cache.
    pub fn new(scene: &'a Scene<'a>) -> Self {
        Self { scene, known: RefCell::default() }
    }

    /// Returns the weights that `known` stands for in this buffer, for parameters with this `usage`. `None` if they
    /// belong to a step before the first.
    pub fn of(
        &self,
        known: KnownWeights,
        buffer: &Buffer<'_>,
        usage: Usage,
    ) -> Option<Rc<ColumnWeights>> {
        let step = buffer.step.unwrap_or(0);
        if matches!(known, KnownWeights::Left | KnownWeights::Added) && step == 0 {
            return None;
        }
        let observed = self.scene.observed;
        let own = matches!(buffer.point, Point::LocalGradient | Point::Accumulator);
        let key = ExpectationKey {
            known,
            usage,
            point: buffer.point,
            step: buffer.step,
            microbatch: buffer.microbatch,
            rank: own.then_some(buffer.rank),
            skipped: [Some(step), step.checked_sub(1)]
                .map(|step| step.is_some_and(|step| observed.updates.skipped(step, buffer.rank))),
        };
        let mut shared = self.known.borrow_mut();
        let weights = shared
            .entry(key)
            .or_insert_with(|| ColumnWeights::new(self.columns(known, buffer, step, usage)));
        Some(Rc::clone(weights))
    }

    fn columns(
        &self,
        known: KnownWeights,
        buffer: &Buffer<'_>,
        step: usize,
        usage: Usage,
    ) -> Vec<f64> {
        let planned = |step| expected(self.scene, buffer, step, usage);
        match known {
            KnownWeights::Planned => planned(step),
            KnownWeights::Nothing => vec![0.0; self.scene.observed.spec.contributions()],
            KnownWeights::Left => planned(step - 1),
            KnownWeights::Added => {
                let (left, new) = (planned(step - 1), planned(step));
                left.iter().zip(new).map(|(left, new)| left + new).collect()
            }
        }
    }
}
