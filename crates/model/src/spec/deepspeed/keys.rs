//! The keys that DeepSpeed has, and the keys without which zprobe's native engine has to run.
//!
//! The keys are those of DeepSpeed 0.18.9 and 0.19.8, including keys that 0.19.8 has dropped: from
//! `runtime/constants.py` and `runtime/config.py` for the top level, from `runtime/zero/config.py`,
//! `runtime/zero/offload_config.py`, `runtime/precision_config.py`, `monitor/config.py`, `comm/config.py` and
//! `compile/config.py` for the sections.

use serde_json::Value;

use super::Reader;
use super::hjson::path;
use crate::document::nearest;
use Neutral::{Absent, Disabled, Equal};

/// The newest DeepSpeed release whose keys are in the table.
const RELEASE: &str = "0.19.8";

/// The keys of each section, separated by spaces. The first section is the top level.
const SECTIONS: &[(&str, &str)] = &[
    (
        "",
        "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps \
         communication_data_type seq_parallel_communication_data_type data_types \
         managed_gradient_accumulation gradient_clipping prescale_gradients gradient_predivide_factor \
         gradient_allreduce_op sparse_gradients disable_allgather fp16 bf16 bfloat16 amp torch_autocast \
         zero_optimization allgather_size zero_allow_untested_optimizer zero_force_ds_cpu_optimizer optimizer \
         scheduler elasticity progressive_layer_drop compression_training quantize_training \
         weight_quantization hybrid_engine tensor_parallel sequence_parallel_size expert_parallel \
         data_parallel_size use_data_before_expert_parallelism pipeline sparse_attention curriculum_learning \
         data_efficiency dataloader_drop_last activation_checkpointing compile graph_harvesting \
         steps_per_print wall_clock_breakdown memory_breakdown dump_state log_level disable_python_gc \
         vocabulary_size eigenvalue flops_profiler autotuning timers comms_logger tensorboard csv_monitor \
         wandb comet checkpoint nebula datastates_ckpt aio",
    ),
    ("data_types", "grad_accum_dtype param_dtype buffer_dtype keep_in_fp32_modules"),
    (
        "fp16",
        "enabled auto_cast loss_scale initial_scale_power loss_scale_window hysteresis consecutive_hysteresis \
         min_loss_scale fp16_master_weights_and_grads",
    ),
    (
        "bf16",
        "enabled immediate_grad_update check_grad_overflow bf16_master_weights_and_grads bf16_optimizer_states",
    ),
    // Keys of stage 3 have a second name, pydantic's alias.
    (
        "zero_optimization",
        "stage reduce_bucket_size contiguous_gradients reduce_scatter overlap_comm \
         use_multi_rank_bucket_allreduce allgather_partitions compute_grad_norm parameter_alignment \
         allgather_bucket_size round_robin_gradients legacy_stage1 offload_optimizer offload_param cpu_offload \
         cpu_offload_param cpu_offload_use_pin_memory zenflow zero_hpz_partition_size zero_quantized_weights \
         zero_quantized_nontrainable_weights zero_quantized_gradients zeropp_loco_param mics_shard_size \
         mics_hierarchical_params_gather ignore_unused_parameters load_from_fp32_weights elastic_checkpoint \
         log_trace_cache_warnings enable_sanity_checks pipeline_loading_checkpoint memory_efficient_linear \
         override_module_apply save_muon_momentum_buffer_in_memory leaf_module sub_group_size \
         prefetch_bucket_size stage3_prefetch_bucket_size param_persistence_threshold \
         stage3_param_persistence_threshold model_persistence_threshold stage3_model_persistence_threshold \
         max_live_parameters stage3_max_live_parameters max_reuse_distance stage3_max_reuse_distance \
         module_granularity_threshold stage3_module_granularity_threshold use_all_reduce_for_fetch_params \
         stage3_use_all_reduce_for_fetch_params allgather_sequential stage3_allgather_sequential \
         gather_16bit_weights_on_model_save stage3_gather_16bit_weights_on_model_save \
         stage3_gather_fp16_weights_on_model_save",
    ),
    (
        "zero_optimization.offload_optimizer",
        "device nvme_path buffer_count pin_memory pipeline_read pipeline_write fast_init ratio super_offload \
         cpuadam_cores_perc",
    ),
    (
        "zero_optimization.offload_param",
        "device nvme_path buffer_count buffer_size max_in_cpu pin_memory",
    ),
    ("optimizer", "type params legacy_fusion"),
    (
        "compile",
        "deepcompile free_activation free_activation_threshold offload_activation offload_activation_pin_memory \
         autoep_non_moe offload_opt_states offload_parameters double_buffer symmetric_memory debug_log \
         sync_before_reduce sync_after_reduce sync_before_allgather sync_after_allgather keep_int_input_tensors \
         keep_all_input_tensors passes",
    ),
    ("comms_logger", "enabled prof_all prof_ops verbose debug"),
    ("tensorboard", "enabled output_path job_name"),
    ("csv_monitor", "enabled output_path job_name"),
    ("wandb", "enabled group team project"),
    (
        "comet",
        "enabled samples_log_interval project workspace api_key experiment_name experiment_key online mode",
    ),
];

/// The value of a key that has the same effect as leaving the key out.
#[derive(Clone, Copy)]
enum Neutral {
    /// The value that this JSON text has.
    Equal(&'static str),
    /// A section without any `"enabled": true`.
    Disabled,
    /// No value.
    Absent,
}

/// The keys of which the native engine supports only the neutral value.
const UNSUPPORTED: &[(Neutral, &str)] = &[
    (
        Equal("false"),
        "prescale_gradients sparse_gradients fp16.fp16_master_weights_and_grads bf16.immediate_grad_update \
         bf16.bf16_master_weights_and_grads bf16.bf16_optimizer_states zero_optimization.parameter_alignment \
         zero_optimization.round_robin_gradients zero_optimization.legacy_stage1 \
         zero_optimization.offload_optimizer.super_offload zero_optimization.cpu_offload_param \
         zero_optimization.zero_quantized_weights zero_optimization.zero_quantized_nontrainable_weights \
         zero_optimization.zero_quantized_gradients compile.deepcompile",
    ),
    (Equal("true"), "managed_gradient_accumulation"),
    (
        Equal("1"),
        "gradient_predivide_factor zero_optimization.offload_optimizer.ratio \
         zero_optimization.zero_hpz_partition_size sequence_parallel_size",
    ),
    (Equal("-1"), "zero_optimization.mics_shard_size"),
    (Equal(r#""mean""#), "gradient_allreduce_op"),
    (Equal(r#""none""#), "zero_optimization.offload_param.device"),
    (
        Disabled,
        "amp torch_autocast elasticity progressive_layer_drop compression_training quantize_training \
         hybrid_engine expert_parallel",
    ),
    (
        Absent,
        "data_types.param_dtype zero_optimization.zenflow zero_optimization.zeropp_loco_param \
         weight_quantization tensor_parallel",
    ),
];

/// The keys that may be expected to have an effect, but do not change which gradients are summed.
const WITHOUT_EFFECT: &[(Neutral, &str)] = &[
    (
        Absent,
        "data_types.buffer_dtype data_types.keep_in_fp32_modules bf16.check_grad_overflow \
         zero_optimization.use_multi_rank_bucket_allreduce zero_optimization.allgather_partitions \
         zero_optimization.compute_grad_norm scheduler pipeline sparse_attention curriculum_learning \
         data_efficiency",
    ),
    // The native engine's loss scale moves by DeepSpeed's defaults.
    (Equal("1000"), "fp16.loss_scale_window"),
    (Equal("2"), "fp16.hysteresis"),
    (Equal("1"), "fp16.min_loss_scale"),
    (Equal("false"), "fp16.consecutive_hysteresis"),
];

impl Neutral {
    fn is(self, value: &Value) -> bool {
        match self {
            Equal(json) => serde_json::from_str::<Value>(json).is_ok_and(|it| it == *value),
            Disabled => !enables_something(value),
            Absent => false,
        }
    }
}

fn enables_something(value: &Value) -> bool {
    match value {
        Value::Object(members) => {
            members.get("enabled") == Some(&Value::Bool(true))
                || members.values().any(enables_something)
        }
        Value::Array(values) => values.iter().any(enables_something),
        _ => false,
    }
}

/// True if `keys` lists a key of this name that has another value than the neutral one.
fn has_effect(keys: &[(Neutral, &'static str)], name: &str, value: &Value) -> bool {
    let row = keys.iter().find(|(_, names)| words(names).any(|it| it == name));
    row.is_some_and(|(neutral, _)| !neutral.is(value))
}

fn words(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.split_ascii_whitespace()
}

/// The keys of a section; `None` if the section's keys are not known.
fn keys_of(section: &str) -> Option<&'static str> {
    SECTIONS.iter().find(|(name, _)| *name == section).map(|(_, keys)| *keys)
}

/// The keys at the top level of a configuration.
pub fn top_level() -> impl Iterator<Item = &'static str> {
    words(SECTIONS[0].1)
}

/// True if DeepSpeed has a key with this dotted path.
pub(in crate::spec) fn has_key(path: &str) -> bool {
    let (section, key) = path.rsplit_once('.').unwrap_or(("", path));
    keys_of(section).is_some_and(|keys| words(keys).any(|it| it == key))
}

fn dotted(section: &str, key: &str) -> String {
    if section.is_empty() { key.to_owned() } else { format!("{section}.{key}") }
}

/// The key that was probably meant by an unknown key of a section: one with the same name in another section, or one
/// with a similar name in the same section.
fn meant(section: &str, key: &str, known: &'static str) -> Option<String> {
    if let Some((section, name)) = key.rsplit_once('.').filter(|_| has_key(key)) {
        return Some(format!("{name} inside of {section}"));
    }
    if key == "max_grad_norm" {
        return Some("gradient_clipping".to_owned());
    }
    let mut same = SECTIONS.iter().filter(|(_, keys)| words(keys).any(|it| it == key));
    match (same.next(), same.next()) {
        (Some((other, _)), None) => Some(dotted(other, key)),
        _ => nearest(key, words(known)).map(|it| dotted(section, it)),
    }
}

impl Reader<'_> {
    /// Checks the keys of the object at `pointer`, and of the sections inside.
    pub(super) fn check_section(&mut self, pointer: &str) {
        // The old name of the section bf16, which DeepSpeed still reads.
        let pointer_of_name = if pointer == "/bfloat16" { "/bf16" } else { pointer };
        let section = pointer_of_name.trim_start_matches('/').replace('/', ".");
        let Some(known) = keys_of(&section) else { return };
        self.check_keys(pointer, &section, known);
        let Some(Value::Object(members)) = self.content().pointer(pointer) else { return };
        for (key, value) in members.iter().filter(|(key, _)| words(known).any(|it| it == *key)) {
            self.check_key(&path(pointer, key), &dotted(&section, key), value);
        }
    }

    /// Checks a known key with this dotted name.
    fn check_key(&mut self, pointer: &str, name: &str, value: &Value) {
        let is_section = keys_of(name).is_some() || name == "bfloat16";
        match value {
            Value::Null => {}
            // This "auto" is a word of DeepSpeed, and not left to the calling framework.
            Value::String(text) if text == "auto" && name != "data_types.keep_in_fp32_modules" => {
                self.auto.push(pointer.to_owned());
            }
            Value::Object(_) if is_section => self.check_section(pointer),
            Value::Bool(_) if name == "zero_optimization" => {}
            _ if is_section => self.refuse(pointer, "an object", value),
            _ if has_effect(UNSUPPORTED, name, value) => self.unsupported(pointer),
            _ if has_effect(WITHOUT_EFFECT, name, value) => {
                self.note(
                    &[pointer],
                    "accepted, but it does not change which gradients are summed",
                );
            }
            _ => {}
        }
    }

    /// Reports the keys of the object at `pointer` that are not in `known`, a list of names separated by spaces.
    pub(super) fn check_keys(&mut self, pointer: &str, section: &str, known: &'static str) {
        let Some(Value::Object(members)) = self.content().pointer(pointer) else { return };
        for key in members.keys().filter(|key| words(known).all(|it| it != *key)) {
            // A file with many unknown keys is more than misspelt: suggest nothing.
            let meant = if self.is_long() { None } else { meant(section, key, known) };
            let advice = match meant {
                Some(meant) => format!("; did you mean {meant}?"),
                None if self.is_passed_on() => String::new(),
                None => "; remove it in a copy of the file".to_owned(),
            };
            self.unknown(
                &path(pointer, key),
                &format!("DeepSpeed {RELEASE} has no such key{advice}"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn listed_keys_are_unique_and_known() {
        let listed = |keys: &'static [(Neutral, &str)]| keys.iter().flat_map(|(_, it)| words(it));
        let mut seen = BTreeSet::new();
        for key in listed(UNSUPPORTED).chain(listed(WITHOUT_EFFECT)) {
            assert!(has_key(key) && seen.insert(key), "{key}");
        }
        for (section, keys) in SECTIONS {
            assert!(section.is_empty() || has_key(section), "{section}");
            let unique: BTreeSet<&str> = words(keys).collect();
            assert_eq!(unique.len(), words(keys).count(), "{section}");
        }
    }
}
