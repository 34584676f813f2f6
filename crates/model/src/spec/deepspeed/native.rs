//! The settings that only the native engine reads from a DeepSpeed file; DeepSpeed itself gets the whole file.

use crate::spec::{Dataflow, Dtype, Invalid, LossScale, Offload, SpecRequest};

use super::DeepSpeedConfig;
use super::message::{Problem, Remark, Spot};
use super::settings::{MOST_POWER, Set, Settings};

impl DeepSpeedConfig {
    /// Fills the settings that are still open; `asked` is the request without the file.
    pub(super) fn fill_native(&mut self, asked: &SpecRequest, filled: &mut SpecRequest) {
        let file = self.settings.clone();
        filled.gradient_clipping = filled.gradient_clipping.or(file.gradient_clipping);
        filled.allgather_bucket_size = filled.allgather_bucket_size.or(file.allgather_bucket_size);
        self.refuse_mixed_stage_0(asked);
        self.fill_buckets(&file, filled);
        if filled.dtype == Some(Dtype::Fp16) && filled.loss_scale.is_none() {
            self.fill_loss_scale(&file, filled);
        }
    }

    /// Refuses accumulation in fp32 for a narrower model in stage 0, as DeepSpeed does
    /// (`DeepSpeedEngine._do_optimizer_sanity_check` in `runtime/engine.py`).
    ///
    /// Combinations with a value from the command line are not checked here, and an accumulation dtype that the
    /// native engine lacks has already been refused.
    fn refuse_mixed_stage_0(&mut self, asked: &SpecRequest) {
        let is_asked =
            asked.stage.is_some() || asked.dtype.is_some() || asked.grad_accum_dtype.is_some();
        let Settings { stage: Some(0), dtype: Some(dtype), grad_accum_dtype: Some(set), .. } =
            &self.settings
        else {
            return;
        };
        if !is_asked && set.value == Dtype::Fp32 && *dtype != Dtype::Fp32 {
            let text = format!(
                "in stage 0 DeepSpeed refuses to start with a model in {dtype} and accumulation in \
                 fp32; set zero_optimization.stage to 1, or this key to \"{dtype}\""
            );
            self.problems.push(Problem::mistake(vec![set.spot.clone()], text));
        }
    }

    /// Fills the offload, the dataflow and the settings of buckets. Settings that DeepSpeed ignores keep their
    /// defaults, which have no effect in that case.
    fn fill_buckets(&mut self, file: &Settings, filled: &mut SpecRequest) {
        let (Some(stage), Some(dtype), Some(accum)) =
            (filled.stage, filled.dtype, filled.grad_accum_dtype)
        else {
            return;
        };
        let has_zero = stage > 0;
        let mut ignored = Vec::new();
        fill(&mut filled.offload, file.offload.as_ref(), has_zero, &mut ignored);
        let chosen = Dataflow::of_deepspeed(stage, dtype, accum, filled.offload);
        let dataflow = *filled.dataflow.get_or_insert(chosen);
        match (dataflow, filled.reduce_bucket_size) {
            (Dataflow::IpgBucket, None) => filled.reduce_bucket_size = file.reduce_bucket_size,
            (Dataflow::Accumulator, None) => ignored.extend(file.reduce_bucket_spot.clone()),
            (_, Some(_)) => {}
        }
        let has_buckets = has_zero && dataflow == Dataflow::IpgBucket;
        // See `DeepSpeedZeroOptimizer.__init__` in `runtime/zero/stage_1_and_2.py`.
        let always_contiguous = stage < 3 && filled.offload == Some(Offload::Cpu);
        match &file.contiguous_gradients {
            Some(Set { value: false, spot })
                if has_buckets && always_contiguous && filled.contiguous_gradients.is_none() =>
            {
                let text = "false counts as true: with offloaded optimizer states, DeepSpeed \
                            always copies gradients to a contiguous buffer";
                self.remark(spot.clone(), text.to_owned());
            }
            set => {
                fill(&mut filled.contiguous_gradients, set.as_ref(), has_buckets, &mut ignored);
            }
        }
        fill(&mut filled.overlap_comm, file.overlap_comm.as_ref(), has_buckets, &mut ignored);
        fill(&mut filled.reduce_scatter, file.reduce_scatter.as_ref(), has_buckets, &mut ignored);
        let text = if has_zero {
            "ignored: the accumulator dataflow has no buckets, like BF16_Optimizer, which DeepSpeed \
             uses for a bf16 model that accumulates in fp32"
        } else {
            "ignored, as in DeepSpeed: the key configures ZeRO, which stage 0 switches off"
        };
        if !ignored.is_empty() {
            ignored.sort_by_key(|spot| spot.at);
            self.remarks.push(Remark { spots: ignored, text: text.to_owned() });
        }
    }

    /// Fills the loss scale. A dynamic scale starts at the value at which DeepSpeed's scale would settle, because a
    /// run is too short for the steps that DeepSpeed skips until then.
    fn fill_loss_scale(&mut self, file: &Settings, filled: &mut SpecRequest) {
        filled.loss_scale = file.loss_scale();
        let spots = file.initial_scale_power.iter().map(|set| set.spot.clone()).collect();
        let Some(scale) = filled.loss_scale else {
            let text = format!(
                "this power of 2 is not supported yet: the native engine's scales range from 2^0 to \
                 2^{MOST_POWER}; pass --loss-scale to choose another scale"
            );
            self.problems.push(Problem::not_yet(spots, None, text));
            return;
        };
        let LossScale::Dynamic { initial_power } = scale else {
            let Some(set) = &file.static_scale else { return };
            let other = SpecRequest { loss_scale: None, ..filled.clone() };
            if let (Err(refusal), Ok(_)) = (filled.clone().resolve(), other.resolve()) {
                let spots = vec![set.spot.clone()];
                self.problems.push(Problem::not_yet(spots, None, refusal.to_string()));
            }
            return;
        };
        let mut power = initial_power;
        // Only `SpecRequest::resolve` knows how large zprobe's gradients are.
        let overflows = |problem: &Invalid| matches!(problem, Invalid::Overflow { .. });
        while power > 0 && refuses(filled, overflows) {
            power -= 1;
            filled.loss_scale = Some(LossScale::Dynamic { initial_power: power });
        }
        if power < initial_power {
            let text = format!(
                "the dynamic loss scale starts at 2^{power} and not at 2^{initial_power}, at \
                 which zprobe's gradients overflow in fp16: DeepSpeed would skip steps until its scale \
                 is that low; --loss-scale chooses another scale"
            );
            self.remarks.push(Remark { spots, text });
        }
        if !file.scale_moves.is_empty() {
            let text = "accepted: how the loss scale moves does not change what is summed, and the \
                        native engine's scale moves by DeepSpeed's defaults";
            self.remarks.push(Remark { spots: file.scale_moves.clone(), text: text.to_owned() });
        }
    }
}

/// True if a request is refused for a reason that satisfies `reason`.
pub(super) fn refuses(request: &SpecRequest, reason: impl Fn(&Invalid) -> bool) -> bool {
    request.clone().resolve().is_err_and(|refusal| refusal.problems().iter().any(reason))
}

/// Fills one setting from the file, or adds its key to `ignored` if the setting has no effect.
fn fill<T: Copy>(
    setting: &mut Option<T>,
    file: Option<&Set<T>>,
    has_bearing: bool,
    ignored: &mut Vec<Spot>,
) {
    match (&setting, file) {
        (None, Some(set)) if has_bearing => *setting = Some(set.value),
        (None, Some(set)) => ignored.push(set.spot.clone()),
        _ => {}
    }
}
