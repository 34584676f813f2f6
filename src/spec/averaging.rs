//! Where a sum over the ranks is divided by their number: before it crosses them, or after.

use serde_json::Value;

use super::{Dataflow, Engine, RunSpec};

impl RunSpec {
    /// Whether gradients cross the ranks undivided, so that what is on the wire grows to `W` times
    /// the average.
    ///
    /// DeepSpeed divides last where it all-reduces everything to everybody, unless
    /// `prescale_gradients` is set: `allreduce_bucket` in `runtime/engine.py` (stage 0 and
    /// `BF16_Optimizer`) and `gradient_reduction_w_predivide` in `runtime/zero/stage_1_and_2.py`
    /// (`reduce_scatter: false`). Where gradients go to their owners (`average_tensor`), and in
    /// stage 3 always (`__avg_scatter_contiguous_grads`, `reduce_scatter_coalesced`), it divides
    /// first. FSDP2 divides last by what of `W` is no power of two.
    pub fn divides_last(&self) -> bool {
        match self.engine() {
            Engine::Native => {
                let accumulates = self.dataflow() == Some(Dataflow::Accumulator);
                accumulates || self.all_reduces(self.reduce_scatter() == Some(false))
            }
            Engine::DeepSpeed => {
                let is = |pointer, wanted| self.configured(pointer) == Some(&Value::Bool(wanted));
                let chosen = Dataflow::of_deepspeed(
                    self.stage,
                    self.dtype,
                    self.grad_accum_dtype,
                    Some(self.offload),
                );
                let accumulates = chosen == Dataflow::Accumulator;
                let all_reduces = self.all_reduces(is("/zero_optimization/reduce_scatter", false));
                (accumulates || all_reduces) && !is("/prescale_gradients", true)
            }
            Engine::Ddp => false,
            Engine::Fsdp2 => true,
        }
    }

    /// Whether whole buckets are all-reduced and then divided.
    fn all_reduces(&self, scatters_not: bool) -> bool {
        self.stage == 0 || (self.stage < 3 && scatters_not)
    }

    fn configured(&self, pointer: &str) -> Option<&Value> {
        self.deepspeed_config()?.pointer(pointer)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::spec::{Dtype, Offload, SpecRequest};

    fn divides_last(engine: Engine, stage: u8, request: SpecRequest) -> bool {
        let request = SpecRequest { engine: Some(engine), stage: Some(stage), ..request };
        request.resolve().expect("a valid request").divides_last()
    }

    #[test]
    fn only_an_all_reduce_of_everything_divides_last_and_never_in_stage_three() {
        for engine in [Engine::Native, Engine::DeepSpeed] {
            let stages = |reduce_scatter| {
                let request = SpecRequest {
                    dtype: Some(Dtype::Fp32),
                    reduce_scatter: Some(reduce_scatter),
                    ..SpecRequest::default()
                };
                [0, 1, 2, 3].map(|stage| divides_last(engine, stage, request.clone()))
            };
            assert_eq!(stages(true), [true, false, false, false], "{engine}");
            assert_eq!(stages(false), [true, true, true, false], "{engine}");
        }
    }

    #[test]
    fn the_accumulator_divides_last_and_offload_does_away_with_it() {
        for engine in [Engine::Native, Engine::DeepSpeed] {
            let offload =
                |offload| SpecRequest { offload: Some(offload), ..SpecRequest::default() };
            assert!(divides_last(engine, 1, offload(Offload::None)), "{engine}");
            assert!(!divides_last(engine, 1, offload(Offload::Cpu)), "{engine}");
        }
    }

    #[test]
    fn deepspeed_divides_first_where_it_is_told_to_prescale() {
        let file = json!({"prescale_gradients": true, "zero_optimization": {"stage": 0}});
        let request = SpecRequest { deepspeed_config: Some(file), ..SpecRequest::default() };
        assert!(!divides_last(Engine::DeepSpeed, 0, request));
    }
}
