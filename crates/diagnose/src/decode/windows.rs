//! The weights in a run of coded elements, window by window. All decoding of codes is done here.

use zprobe_model::spec::code::Code;

use super::{largest, snap};
use crate::bounds::DETERMINED_BITS;

/// The weights that were read from one window.
pub struct Window {
    /// The weights by column of the run (see [`zprobe_model::spec::RunSpec::column`]).
    pub weights: Vec<f64>,
    /// The largest coefficient of a *spare* code, one that no gradient of the run has. It measures data that no
    /// gradient explains.
    pub residual: f64,
    /// The number of spare codes.
    spare: usize,
}

impl Window {
    /// True if the weights cannot be chance: enough spare codes have the coefficient 0, or the weights are simple (all
    /// whole or all equal). A wrong element would change the coefficients of all codes.
    pub fn is_certain(&self, tolerance: f64) -> bool {
        let used = || self.weights.iter().filter(|weight| **weight != 0.0);
        let is_simple = used().all(|weight| weight.fract() == 0.0)
            || used().all(|weight| Some(weight) == used().next());
        self.residual <= tolerance && (self.is_checked() || is_simple)
    }

    /// True if the window has enough more elements than unknown weights to notice data that no combination of
    /// gradients explains.
    pub fn is_checked(&self) -> bool {
        self.spare as f64 >= DETERMINED_BITS
    }
}

/// Decodes `values`, which are at least [`Code::shortest`] elements; the first one is flat element `start`. Windows
/// are as long as the code if there are enough values, otherwise half as long. The last window overlaps the one
/// before.
///
/// A weight within `tolerance` of an integer is rounded to the integer.
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
