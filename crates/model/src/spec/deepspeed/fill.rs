//! Fills the settings of a run from a DeepSpeed file, with DeepSpeed's defaults for keys that the file leaves out.

use serde_json::Value;

use super::Reader;
use crate::spec::{Dataflow, DeepSpeedFile, Dtype, Invalid, LossScale, Offload, SpecRequest};

/// The dtype of a model whose dtype the file leaves to `"auto"`.
const AUTO_DTYPE: Dtype = Dtype::Bf16;

/// DeepSpeed's default for `reduce_bucket_size` and `allgather_bucket_size` (`DeepSpeedZeroConfig` in
/// `runtime/zero/config.py`).
const DEFAULT_BUCKET: usize = 500_000_000;

/// DeepSpeed's default for `initial_scale_power` (`DeepSpeedFP16Config` in `runtime/precision_config.py`).
const DEFAULT_POWER: u32 = 16;

/// The exponent of the largest power of two that fp32 holds.
const MOST_POWER: i64 = 127;

impl Reader<'_> {
    /// Fills the settings that are still open; `asked` is the request without the file.
    pub(super) fn fill(&mut self, asked: &SpecRequest, filled: &mut SpecRequest) {
        let comm_dtype = asked.comm_dtype.or_else(|| self.comm_dtype());
        filled.stage = filled.stage.or_else(|| self.stage()).or(Some(0));
        self.fill_dtypes(filled, comm_dtype);
        self.fill_batch(filled);
        filled.optimizer = filled.optimizer.or_else(|| self.optimizer());
        match self.engine_use {
            DeepSpeedFile::Followed => self.fill_native(asked, filled),
            DeepSpeedFile::PassedOn => self.fill_passed_on(filled, comm_dtype),
            DeepSpeedFile::Unknown => {}
        }
    }

    /// Fills the settings that a run of the real DeepSpeed has in addition to the file itself.
    fn fill_passed_on(&mut self, filled: &mut SpecRequest, comm_dtype: Option<Dtype>) {
        filled.comm_dtype = comm_dtype;
        filled.reduce_bucket_size = filled
            .reduce_bucket_size
            .or_else(|| self.bucket_size("/zero_optimization/reduce_bucket_size"));
        filled.gradient_clipping =
            filled.gradient_clipping.or_else(|| self.number("/gradient_clipping"));
        filled.loss_scale = filled.loss_scale.or_else(|| self.loss_scale());
        filled.offload = filled.offload.or_else(|| self.offload());
    }

    /// Fills the settings that only the native engine reads from the file.
    fn fill_native(&mut self, asked: &SpecRequest, filled: &mut SpecRequest) {
        self.refuse_mixed_stage_0(asked);
        filled.gradient_clipping =
            filled.gradient_clipping.or_else(|| self.number("/gradient_clipping"));
        filled.allgather_bucket_size = filled.allgather_bucket_size.or_else(|| {
            // The old form of the section, a boolean (`read_zero_config_deprecated` in `runtime/zero/config.py`).
            let is_old = self.value("/zero_optimization") == Some(&Value::Bool(true));
            let new = "/zero_optimization/allgather_bucket_size";
            self.bucket_size(if is_old { "/allgather_size" } else { new })
        });
        self.fill_buckets(filled);
        if filled.dtype == Some(Dtype::Fp16) && filled.loss_scale.is_none() {
            filled.loss_scale = self.loss_scale();
            self.lower_loss_scale(filled);
        }
    }

    /// The ZeRO stage, as read by `get_zero_config` and `read_zero_config_deprecated` in `runtime/zero/config.py`.
    /// `None` if the file leaves it to `"auto"` or gives a wrong value.
    fn stage(&mut self) -> Option<u8> {
        const STAGE: &str = "/zero_optimization/stage";
        match self.value("/zero_optimization") {
            Some(Value::Bool(enabled)) => Some(u8::from(*enabled)),
            Some(Value::Object(_)) if self.value(STAGE).is_some() => {
                let stage = |value: &Value| value.as_u64().filter(|stage| *stage <= 3);
                self.read(STAGE, "a ZeRO stage: 0, 1, 2 or 3", stage).map(|stage| stage as u8)
            }
            Some(Value::Object(_)) if self.is_auto(STAGE) => None,
            None | Some(Value::Object(_)) => Some(0),
            // A value of a wrong type has already been reported.
            Some(_) => None,
        }
    }

    /// Fills the dtypes of the model, of the accumulation and of the communication.
    ///
    /// Unless the file sets them, the latter two are the model's dtype: `DeepSpeedEngine.get_data_types` and the
    /// property `DeepSpeedEngine.communication_data_type` in `runtime/engine.py`. The property depends on whether
    /// fp16 or bf16 is enabled, and not on the buffer that is reduced. Both reductions cast to this dtype:
    /// `DeepSpeedEngine.allreduce_bucket`, which reduces `BF16_Optimizer`'s fp32 accumulator, and the IPG buckets
    /// of `DeepSpeedZeroOptimizer`, which get the dtype as a constructor argument. So a bf16 model with fp32
    /// accumulation communicates in bf16. (With sequence parallelism, `seq_parallel_communication_data_type`
    /// replaces the property.)
    fn fill_dtypes(&mut self, filled: &mut SpecRequest, comm_dtype: Option<Dtype>) {
        let dtype = filled.dtype.or_else(|| self.model_dtype()).unwrap_or(AUTO_DTYPE);
        filled.dtype = Some(dtype);
        filled.grad_accum_dtype =
            filled.grad_accum_dtype.or_else(|| self.grad_accum_dtype()).or(Some(dtype));
        filled.comm_dtype = comm_dtype.or(Some(dtype));
    }

    /// The model's dtype, as in `DeepSpeedEngine.get_data_types` (`runtime/engine.py`), with the assertion of
    /// `DeepSpeedConfig._initialize_params`. `None` if the file leaves it to `"auto"`.
    fn model_dtype(&mut self) -> Option<Dtype> {
        // DeepSpeed reads the old name only if the new one is not given (`get_bfloat16_config` in
        // `runtime/precision_config.py`).
        let bf16 =
            if self.value("/bf16").is_some() { "/bf16/enabled" } else { "/bfloat16/enabled" };
        let fp16 = "/fp16/enabled";
        match (self.boolean(bf16), self.boolean(fp16)) {
            (Some(true), Some(true)) => {
                let text = "bf16 and fp16 are both enabled, but DeepSpeed trains in one of them; disable the other";
                self.problem(&[bf16, fp16], text);
                None
            }
            (Some(true), _) => Some(Dtype::Bf16),
            (_, Some(true)) => Some(Dtype::Fp16),
            _ if self.is_auto(bf16) || self.is_auto(fp16) => None,
            _ => Some(Dtype::Fp32),
        }
    }

    /// The accumulation dtype, with the names of `DtypeEnum` in `runtime/config.py`.
    fn grad_accum_dtype(&mut self) -> Option<Dtype> {
        self.read("/data_types/grad_accum_dtype", "fp32, bf16 or fp16", |value| {
            match value.as_str()? {
                "torch.float32" | "fp32" | "float32" | "float" => Some(Dtype::Fp32),
                "torch.bfloat16" | "bf16" | "bfloat16" => Some(Dtype::Bf16),
                "torch.float16" | "fp16" | "float16" | "half" => Some(Dtype::Fp16),
                _ => None,
            }
        })
    }

    /// The communication dtype, as read by `get_communication_data_type` in `runtime/config.py`, which ignores case.
    fn comm_dtype(&mut self) -> Option<Dtype> {
        self.read("/communication_data_type", "fp32, bf16 or fp16", |value| {
            let name = value.as_str()?.to_lowercase();
            Dtype::ALL.iter().copied().find(|dtype| dtype.name() == name)
        })
    }

    /// Refuses accumulation in fp32 for a narrower model in stage 0, as DeepSpeed does
    /// (`DeepSpeedEngine._do_optimizer_sanity_check` in `runtime/engine.py`). Combinations with a value from the command
    /// line are not checked.
    fn refuse_mixed_stage_0(&mut self, asked: &SpecRequest) {
        let is_asked =
            asked.stage.is_some() || asked.dtype.is_some() || asked.grad_accum_dtype.is_some();
        if !is_asked
            && self.stage() == Some(0)
            && self.grad_accum_dtype() == Some(Dtype::Fp32)
            && let Some(dtype @ (Dtype::Bf16 | Dtype::Fp16)) = self.model_dtype()
        {
            let text = format!(
                "in stage 0 DeepSpeed refuses to start with a model in {dtype} and accumulation in fp32; set \
                 zero_optimization.stage to 1, or this key to \"{dtype}\""
            );
            self.problem(&["/data_types/grad_accum_dtype"], &text);
        }
    }

    /// A bucket size; `None` if the file leaves it to `"auto"`.
    fn bucket_size(&mut self, path: &str) -> Option<usize> {
        if self.value(path).is_none() {
            return (!self.is_auto(path)).then_some(DEFAULT_BUCKET);
        }
        let size = self.whole(path, 0)?;
        if size == 0 {
            self.unsupported(path);
        }
        usize::try_from(size).ok().filter(|size| *size > 0)
    }

    /// The offload of optimizer states, from `offload_optimizer` or the older `cpu_offload`
    /// (`DeepSpeedConfigModel._process_deprecated_field` in `runtime/config_utils.py`).
    fn offload(&mut self) -> Option<Offload> {
        const OLD: &str = "/zero_optimization/cpu_offload";
        const NEW: &str = "/zero_optimization/offload_optimizer";
        const DEVICE: &str = "/zero_optimization/offload_optimizer/device";
        if let Some(is_on) = self.boolean(OLD) {
            if self.value(NEW).is_some() {
                let text = "cpu_offload is the old name of offload_optimizer, and DeepSpeed refuses both; \
                            remove cpu_offload";
                self.problem(&[OLD, NEW], text);
            }
            return is_on.then_some(Offload::Cpu);
        }
        let is_known = |device: &&str| ["none", "cpu", "nvme"].contains(device);
        let device =
            self.read(DEVICE, "none, cpu or nvme", |value| value.as_str().filter(is_known))?;
        if device == "nvme" {
            self.unsupported(DEVICE);
        }
        (device == "cpu").then_some(Offload::Cpu)
    }

    /// The scale of an fp16 model's loss; `None` for a scale that is below 1 or that fp32 does not hold.
    fn loss_scale(&mut self) -> Option<LossScale> {
        const POWER: &str = "/fp16/initial_scale_power";
        if let Some(scale) = self.number("/fp16/loss_scale").filter(|scale| *scale > 0.0) {
            return Some(LossScale::Static { scale });
        }
        let initial_power = match self.whole(POWER, i64::from(i32::MIN)) {
            None => DEFAULT_POWER,
            Some(power @ 0..=MOST_POWER) => power as u32,
            Some(_) => {
                self.unsupported(POWER);
                return None;
            }
        };
        Some(LossScale::Dynamic { initial_power })
    }

    /// Lowers a dynamic loss scale to the value at which DeepSpeed's scale would settle, because a run is too short
    /// for the steps that DeepSpeed skips until then.
    fn lower_loss_scale(&mut self, filled: &mut SpecRequest) {
        let Some(LossScale::Dynamic { initial_power }) = filled.loss_scale else { return };
        // Only `SpecRequest::resolve` knows how large zprobe's gradients are.
        let overflows = |request: &SpecRequest| {
            let is_overflow = |problem: &Invalid| matches!(problem, Invalid::Overflow { .. });
            request
                .clone()
                .resolve()
                .is_err_and(|refusal| refusal.problems().iter().any(is_overflow))
        };
        let mut power = initial_power;
        while power > 0 && overflows(filled) {
            power -= 1;
            filled.loss_scale = Some(LossScale::Dynamic { initial_power: power });
        }
        if power < initial_power {
            let text = format!(
                "the dynamic loss scale starts at 2^{power} and not at 2^{initial_power}, at which zprobe's \
                 gradients overflow in fp16: DeepSpeed would skip steps until its scale is that low; \
                 --loss-scale chooses another scale"
            );
            self.note(&[], &text);
        }
    }

    /// Fills the offload, the dataflow and the settings of buckets. Settings that DeepSpeed ignores keep their
    /// defaults, which have no effect in that case.
    fn fill_buckets(&mut self, filled: &mut SpecRequest) {
        const SIZE: &str = "/zero_optimization/reduce_bucket_size";
        const CONTIGUOUS: &str = "/zero_optimization/contiguous_gradients";
        let (Some(stage), Some(dtype), Some(accum)) =
            (filled.stage, filled.dtype, filled.grad_accum_dtype)
        else {
            return;
        };
        let has_zero = stage > 0;
        if filled.offload.is_none() {
            let offload = self.offload();
            let device = "/zero_optimization/offload_optimizer/device";
            filled.offload = self.effective(offload, has_zero, device);
        }
        let chosen = Dataflow::of_deepspeed(stage, dtype, accum, filled.offload);
        let dataflow = *filled.dataflow.get_or_insert(chosen);
        if filled.reduce_bucket_size.is_none() {
            let size = self.bucket_size(SIZE);
            filled.reduce_bucket_size = self.effective(size, dataflow == Dataflow::IpgBucket, SIZE);
        }
        let has_buckets = has_zero && dataflow == Dataflow::IpgBucket;
        // With offload up to stage 2, DeepSpeed always copies gradients to a contiguous buffer
        // (`DeepSpeedZeroOptimizer.__init__` in `runtime/zero/stage_1_and_2.py`).
        let is_always_contiguous = stage < 3 && filled.offload == Some(Offload::Cpu);
        let switches = [
            (&mut filled.contiguous_gradients, CONTIGUOUS, is_always_contiguous),
            (&mut filled.overlap_comm, "/zero_optimization/overlap_comm", false),
            (&mut filled.reduce_scatter, "/zero_optimization/reduce_scatter", false),
        ];
        for (setting, path, is_always_on) in switches {
            if setting.is_none() {
                let value = self.boolean(path);
                let is_moot = is_always_on && value == Some(false);
                *setting = self.effective(value, has_buckets && !is_moot, path);
            }
        }
    }

    /// The value of a setting if the setting has an effect. Otherwise a note says that the file's value has none.
    fn effective<T>(&mut self, value: Option<T>, has_effect: bool, path: &str) -> Option<T> {
        if !has_effect && self.value(path).is_some() {
            self.note(&[path], "ignored, as in DeepSpeed: it has no effect in this stage, with these dtypes and this offload");
        }
        value.filter(|_| has_effect)
    }
}
