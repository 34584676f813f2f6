//! The loss scaler for fp16 models.
//!
//! The module follows DeepSpeed's `LossScaler` and `DynamicLossScaler` (`runtime/fp16/loss_scaler.py`).

use anyhow::Result;
use tch::Tensor;
use zprobe_model::spec::{Dtype, LossScale, RunSpec};

/// The factor by which the loss scale shrinks or grows.
const SCALE_FACTOR: f64 = 2.0;
/// The number of steps without overflow after which the loss scale grows (`loss_scale_window`).
const WINDOW: usize = 1000;
/// The number of the first overflow that shrinks the loss scale, counted from 1 (`hysteresis`).
const HYSTERESIS: u32 = 2;
/// The smallest loss scale (`min_loss_scale`).
const SMALLEST: f64 = 1.0;

/// An algorithm for the loss scale, by which losses are multiplied and gradients are divided.
pub trait Scaler {
    /// The loss scale of the current step.
    fn scale(&self) -> f64;

    /// Divides a gradient by the loss scale.
    fn unscale(&self, gradient: &mut Tensor) -> Result<()>;

    /// Adjusts the loss scale after a step.
    fn update(&mut self, overflow: bool);
}

/// A static or dynamic loss scale, with the counters of a dynamic scale.
pub struct LossScaler {
    scale: f64,
    is_dynamic: bool,
    /// The number of overflows up to and including the one that shrinks the scale.
    hysteresis: u32,
    /// The number of steps since the last overflow.
    steps_since_overflow: usize,
}

impl LossScaler {
    /// The scaler of an fp16 run; `None` for other dtypes, which need no loss scale.
    pub fn of(spec: &RunSpec) -> Option<Self> {
        (spec.dtype == Dtype::Fp16).then(|| Self::new(spec.loss_scale))
    }

    fn new(loss_scale: LossScale) -> Self {
        Self {
            scale: loss_scale.initial(),
            is_dynamic: matches!(loss_scale, LossScale::Dynamic { .. }),
            hysteresis: HYSTERESIS,
            steps_since_overflow: 0,
        }
    }
}

impl Scaler for LossScaler {
    fn scale(&self) -> f64 {
        self.scale
    }

    fn unscale(&self, gradient: &mut Tensor) -> Result<()> {
        let _ = gradient.f_div_scalar_(self.scale)?;
        Ok(())
    }

    fn update(&mut self, overflow: bool) {
        if !self.is_dynamic {
            return;
        }
        if overflow {
            self.steps_since_overflow = 0;
            if self.hysteresis > 1 {
                self.hysteresis -= 1;
            } else {
                self.scale = (self.scale / SCALE_FACTOR).max(SMALLEST);
            }
        } else {
            self.steps_since_overflow += 1;
            if self.steps_since_overflow.is_multiple_of(WINDOW) {
                self.hysteresis = HYSTERESIS;
                self.scale *= SCALE_FACTOR;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_shrinks_from_the_second_overflow_on_and_grows_after_a_thousand_calm_steps() {
        let mut scaler = LossScaler::new(LossScale::Dynamic { initial_power: 4 });
        let mut scales = Vec::new();
        for overflow in [true, true, true, false] {
            scaler.update(overflow);
            scales.push(scaler.scale());
        }
        assert_eq!(scales, [16.0, 8.0, 4.0, 4.0]);
        (1..WINDOW).for_each(|_| scaler.update(false));
        assert_eq!(scaler.scale(), 8.0);
    }

    #[test]
    fn a_static_scale_stays_and_a_dynamic_one_stays_above_one() {
        let mut scaler = LossScaler::new(LossScale::Static { scale: 32.0 });
        (0..9).for_each(|_| scaler.update(true));
        assert_eq!(scaler.scale(), 32.0);
        let mut scaler = LossScaler::new(LossScale::Dynamic { initial_power: 2 });
        (0..9).for_each(|_| scaler.update(true));
        assert_eq!(scaler.scale(), 1.0);
    }
}
