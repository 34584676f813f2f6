//! The law of a dynamic loss scale: when it may grow, and when it has to shrink.

use serde_json::Value;

use super::settings::configured;
use super::{Dtype, Engine, LossScale, RunSpec};

/// The law of a dynamic loss scale, as far as all releases of an engine follow it. The scale is halved and doubled.
///
/// Sources: `DynamicLossScaler` (DeepSpeed's `runtime/fp16/loss_scaler.py`) and torch's `GradScaler`. Releases of
/// DeepSpeed differ by one step in the length of the window, so the law has only a lower bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScaleLaw {
    /// The smallest number of steps without overflow before the scale grows (DeepSpeed's `loss_scale_window`).
    pub window: usize,
    /// The number of overflows after which the scale has to shrink (DeepSpeed's `hysteresis`).
    pub hysteresis: usize,
    /// True if only consecutive overflows are counted (DeepSpeed's `consecutive_hysteresis`).
    pub is_consecutive: bool,
    /// The smallest scale (DeepSpeed's `min_loss_scale`).
    pub smallest: f64,
}

impl ScaleLaw {
    /// The law of torch's `GradScaler` with its default settings.
    const TORCH: ScaleLaw =
        ScaleLaw { window: 2000, hysteresis: 1, is_consecutive: false, smallest: 0.0 };
    /// The law of DeepSpeed with its default settings, which zprobe's own engine follows, too.
    const DEEPSPEED: ScaleLaw =
        ScaleLaw { window: 1000, hysteresis: 2, is_consecutive: false, smallest: 1.0 };

    /// The law of the run's loss scale; `None` if the scale is fixed, or if the training loop sets the scale.
    pub fn of(spec: &RunSpec) -> Option<Self> {
        if !matches!(spec.loss_scale, LossScale::Dynamic { .. })
            || spec.override_loss_scale().is_some()
        {
            return None;
        }
        match spec.engine() {
            Engine::Native => (spec.dtype == Dtype::Fp16).then_some(Self::DEEPSPEED),
            Engine::DeepSpeed => (spec.dtype == Dtype::Fp16).then(|| Self::configured(spec)),
            _ => Some(Self::TORCH),
        }
    }

    fn configured(spec: &RunSpec) -> Self {
        let law = Self::DEEPSPEED;
        let count = |key| configured(spec, key).and_then(Value::as_u64).map(|it| it as usize);
        Self {
            window: count("fp16.loss_scale_window").unwrap_or(law.window),
            hysteresis: count("fp16.hysteresis").unwrap_or(law.hysteresis),
            is_consecutive: configured(spec, "fp16.consecutive_hysteresis")
                .and_then(Value::as_bool)
                .unwrap_or(law.is_consecutive),
            smallest: configured(spec, "fp16.min_loss_scale")
                .and_then(Value::as_f64)
                .unwrap_or(law.smallest),
        }
    }
}

impl RunSpec {
    /// The number of steps in which the shape `infinity-on-one-rank` makes a gradient infinite: as many as shrink the
    /// loss scale, if the configuration says how many (DeepSpeed's `hysteresis`), and otherwise 1.
    pub fn infinite_steps(&self) -> usize {
        let asked = configured(self, "fp16.hysteresis").and_then(Value::as_u64);
        let counts =
            matches!(ScaleLaw::of(self), Some(law) if Some(law.hysteresis as u64) == asked);
        if counts { asked.unwrap_or(1).max(1) as usize } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::SpecRequest;
    use crate::spec::deepspeed::Member;

    fn spec(set: &[&str]) -> RunSpec {
        let request = SpecRequest {
            engine: Some(Engine::DeepSpeed),
            dtype: Some(Dtype::Fp16),
            deepspeed_set: set.iter().map(|it| it.parse::<Member>().expect("KEY=VALUE")).collect(),
            ..SpecRequest::default()
        };
        request.resolve().expect("a valid request")
    }

    #[test]
    fn the_law_of_deepspeed_is_that_of_its_configuration() {
        assert_eq!(ScaleLaw::of(&spec(&[])), Some(ScaleLaw::DEEPSPEED));
        let law = ScaleLaw::of(&spec(&["fp16.loss_scale_window=2", "fp16.hysteresis=3"]));
        assert_eq!(law, Some(ScaleLaw { window: 2, hysteresis: 3, ..ScaleLaw::DEEPSPEED }));
    }

    #[test]
    fn as_many_steps_are_infinite_as_the_configuration_says() {
        assert_eq!(spec(&[]).infinite_steps(), 1);
        assert_eq!(spec(&["fp16.hysteresis=3"]).infinite_steps(), 3);
    }

    #[test]
    fn an_overflow_in_bf16_is_skipped_if_deepspeed_is_asked_to_check() {
        let skips = |stage, accumulation, asks: bool| {
            let check: Member = "bf16.check_grad_overflow=true".parse().expect("KEY=VALUE");
            let request = SpecRequest {
                engine: Some(Engine::DeepSpeed),
                stage: Some(stage),
                dtype: Some(Dtype::Bf16),
                grad_accum_dtype: Some(accumulation),
                deepspeed_set: Vec::from_iter(asks.then_some(check)),
                ..SpecRequest::default()
            };
            request.resolve().expect("a valid request").skips_overflows()
        };
        assert!(skips(1, Dtype::Bf16, true) && skips(2, Dtype::Fp32, true));
        assert!(!skips(2, Dtype::Fp32, false));
        // `BF16_Optimizer` and stage 3 do not have the check.
        assert!(!skips(1, Dtype::Fp32, true) && !skips(3, Dtype::Bf16, true));
    }
}
