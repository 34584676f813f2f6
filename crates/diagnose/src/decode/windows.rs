//! Weights of a run of elements, window by window: the one place where codes are read back.

use zprobe_model::spec::code::Code;

use super::super::bounds::DETERMINED_BITS;
use super::{largest, snap};

/// Weights that were read from one window.
pub struct Window {
    /// Weights by column of the run (see [`zprobe_model::spec::RunSpec::column`]).
    pub weights: Vec<f64>,
    /// Largest coefficient of a spare row: data that no gradient explains.
    pub residual: f64,
    /// Number of spare rows.
    spare: usize,
}

impl Window {
    /// True if the weights are no chance: enough spare rows are empty, or the weights are simple, whole or all
    /// the same. A wrong element is spread over all rows.
    pub fn is_certain(&self, tolerance: f64) -> bool {
        let used = || self.weights.iter().filter(|weight| **weight != 0.0);
        let is_simple = used().all(|weight| weight.fract() == 0.0)
            || used().all(|weight| Some(weight) == used().next());
        self.residual <= tolerance && (self.is_checked() || is_simple)
    }

    /// True if there are enough spare rows to show data that no gradient explains.
    pub fn is_checked(&self) -> bool {
        self.spare as f64 >= DETERMINED_BITS
    }
}

/// Decodes `values`, at least [`Code::shortest`] of them, whose first element is flat element
/// `start`: in windows as long as the code if there are as many values, else half as long. The last
/// window overlaps the one before.
///
/// A weight within `tolerance` of an integer is that integer.
pub fn windows(
    code: &Code,
    contributions: usize,
    (start, values): (usize, &[f64]),
    tolerance: f64,
) -> impl Iterator<Item = Window> {
    let is_whole = values.len() >= code.length();
    let length = if is_whole { code.length() } else { code.shortest() };
    let last = values.len() - length;
    (0..last).step_by(length).chain([last]).map(move |offset| {
        let mut weights = code.decode(&values[offset..][..length], start + offset);
        let spare = weights.split_off(contributions);
        for weight in &mut weights {
            *weight = snap(*weight, tolerance);
        }
        let (count, residual) = (spare.len(), largest(spare.into_iter().map(f64::abs)));
        Window { weights, residual, spare: count }
    })
}
