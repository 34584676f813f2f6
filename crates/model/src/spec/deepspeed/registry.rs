//! All keys that DeepSpeed knows, and how zprobe treats each key.
//!
//! The keys are those of DeepSpeed 0.18.9 and 0.19.8, including keys that 0.19.8 has dropped: from
//! `runtime/constants.py` and `runtime/config.py` for the top level, from `runtime/zero/config.py`,
//! `runtime/zero/offload_config.py`, `runtime/precision_config.py`, `monitor/config.py`, `comm/config.py` and
//! `compile/config.py` for the sections. A new key is a new row of [`KEYS`].

use super::key::Key;
use super::key::Neutral::{self, Absent, NothingEnabled};
use super::key::Role::{self, Inert, NotYet, Noted, Used};
use super::key::Shape::{
    self, AtLeast, Bool, Dict, Free, Model, ModelOrBool, NonNegative, Number, OneOf, Text, Whole,
};

/// The newest DeepSpeed release whose keys are in the table.
pub(super) const RELEASE: &str = "0.19.8";

/// Finds a key by its full dotted path.
pub(super) fn find(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}

/// The keys at the top level of a configuration.
pub fn top_level() -> impl Iterator<Item = &'static str> {
    KEYS.iter().map(|key| key.path).filter(|path| !path.contains('.'))
}

/// True if DeepSpeed has a key with this full path.
#[cfg(test)]
pub(in crate::spec) fn has_key(path: &str) -> bool {
    find(path).is_some()
}

/// Splits a path into its section, which is empty at the top level, and its last part.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('.').unwrap_or(("", path))
}

/// The suggestion for an unknown key: the full path of a key with the same name in another section, or with a
/// similar name in the same section.
pub(super) fn suggestion(path: &str) -> Option<&'static str> {
    let (section, name) = split(path);
    let mut elsewhere = KEYS.iter().filter(|key| split(key.path).1 == name);
    if let (Some(only), None) = (elsewhere.next(), elsewhere.next()) {
        return Some(only.path);
    }
    let same_section = KEYS.iter().filter(|key| split(key.path).0 == section);
    nearest(name, same_section.map(|key| (split(key.path).1, key.path)))
}

/// Returns the second part of the pair whose first part is most similar to `word`; `None` if no pair is similar enough.
pub(super) fn nearest<'a>(
    word: &str,
    known: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Option<&'a str> {
    // A longer word resembles no key, and a comparison takes time and memory in proportion to both lengths.
    const LONGEST: usize = 100;
    known
        .into_iter()
        .filter(|_| word.len() <= LONGEST)
        .map(|(name, meant)| (meant, strsim::normalized_damerau_levenshtein(name, word)))
        .filter(|(_, similarity)| *similarity >= 0.6)
        .max_by(|(_, a), (_, b)| a.total_cmp(b))
        .map(|(meant, _)| meant)
}

/// The old name of the section `bf16`, which DeepSpeed reads if there is no `bf16` (`get_bfloat16_config` in
/// `runtime/precision_config.py`).
pub(super) const OLD_BF16: &str = "bfloat16";

const fn key(path: &'static str, shape: Shape, role: Role) -> Key {
    Key { path, shape, role }
}

const FALSE: Neutral = Neutral::Bool(false);
const TRUE: Neutral = Neutral::Bool(true);
const ONE: Neutral = Neutral::Number(1.0);

const PIECES: &str = "accepted: the pieces in which gradients and parameters are sent do not change what \
                      is summed";
const OWN_DTYPE: &str = "the native engine keeps the whole model in one dtype";
const SAMPLES: &str = "accepted; this key chooses samples, but zprobe's samples are synthetic";
const OFFLOAD_PARAM: &str = "the native engine offloads optimizer states, but not parameters";
const QUANTIZED: &str = "the native engine does not quantize its communication";
const ALL_RANKS: &str = "the native engine partitions over all ranks";

/// All keys of a DeepSpeed configuration.
pub(super) const KEYS: &[Key] = &[
    // Keys for the batch size.
    key("train_batch_size", AtLeast(1), Used),
    key("train_micro_batch_size_per_gpu", AtLeast(1), Used),
    key("gradient_accumulation_steps", AtLeast(1), Used),
    // Keys for the treatment of gradients.
    key("communication_data_type", Text, Used),
    key("seq_parallel_communication_data_type", Text, Inert),
    key("data_types", Dict, Used),
    key("data_types.grad_accum_dtype", Text, Used),
    key("data_types.param_dtype", Text, NotYet(Absent, OWN_DTYPE)),
    key("data_types.buffer_dtype", Text, Noted("accepted; zprobe's models have no buffers")),
    key(
        "data_types.keep_in_fp32_modules",
        Free,
        Noted(
            "accepted; this key is about modules of Hugging Face's models, and zprobe's models have none",
        ),
    ),
    key(
        "managed_gradient_accumulation",
        Bool,
        NotYet(TRUE, "the native engine counts microbatches itself, and steps at the boundary"),
    ),
    key("gradient_clipping", NonNegative, Used),
    key(
        "prescale_gradients",
        Bool,
        NotYet(
            FALSE,
            "the native engine divides by the number of ranks where DeepSpeed does by default",
        ),
    ),
    key(
        "gradient_predivide_factor",
        Number,
        NotYet(ONE, "the native engine divides by the number of ranks in a single division"),
    ),
    key(
        "gradient_allreduce_op",
        OneOf(&["mean", "sum"]),
        NotYet(Neutral::Text("mean"), "the native engine divides by the number of ranks"),
    ),
    key("sparse_gradients", Bool, NotYet(FALSE, "the native engine reduces dense gradients")),
    key("disable_allgather", Bool, Inert),
    // Keys for the precision.
    key("fp16", Model, Used),
    key("fp16.enabled", Bool, Used),
    key("fp16.auto_cast", Bool, Inert),
    key("fp16.loss_scale", NonNegative, Used),
    key("fp16.initial_scale_power", Whole, Used),
    key("fp16.loss_scale_window", Whole, Used),
    key("fp16.hysteresis", Whole, Used),
    key("fp16.consecutive_hysteresis", Bool, Used),
    key("fp16.min_loss_scale", Whole, Used),
    key(
        "fp16.fp16_master_weights_and_grads",
        Bool,
        NotYet(FALSE, "the native engine keeps master weights in fp32"),
    ),
    key("bf16", Model, Used),
    key("bf16.enabled", Bool, Used),
    key(
        "bf16.immediate_grad_update",
        Bool,
        NotYet(FALSE, "the native engine fills the fp32 accumulator after backward, not in hooks"),
    ),
    key("bf16.check_grad_overflow", Bool, Noted("accepted; zprobe's gradients are finite")),
    key(
        "bf16.bf16_master_weights_and_grads",
        Bool,
        NotYet(FALSE, "the native engine keeps master weights in fp32"),
    ),
    key(
        "bf16.bf16_optimizer_states",
        Bool,
        NotYet(FALSE, "the native engine keeps optimizer states in fp32"),
    ),
    key("amp", Free, NotYet(NothingEnabled, "the native engine has no Apex AMP")),
    key("torch_autocast", Free, NotYet(NothingEnabled, "the native engine has no autocast")),
    // Keys for ZeRO.
    key("zero_optimization", ModelOrBool, Used),
    key("zero_optimization.stage", Whole, Used),
    key("zero_optimization.reduce_bucket_size", AtLeast(0), Used),
    key("zero_optimization.contiguous_gradients", Bool, Used),
    key("zero_optimization.reduce_scatter", Bool, Used),
    key("zero_optimization.overlap_comm", Bool, Used),
    key("zero_optimization.use_multi_rank_bucket_allreduce", Bool, Noted(PIECES)),
    key("zero_optimization.allgather_partitions", Bool, Noted(PIECES)),
    key(
        "zero_optimization.compute_grad_norm",
        Bool,
        Noted("accepted: the native engine computes the norm in any case, for the report"),
    ),
    key(
        "zero_optimization.parameter_alignment",
        Bool,
        NotYet(FALSE, "the native engine puts parameters next to each other, without padding"),
    ),
    key("zero_optimization.allgather_bucket_size", AtLeast(0), Used),
    key(
        "zero_optimization.round_robin_gradients",
        Bool,
        NotYet(FALSE, "the native engine partitions parameters in their own order"),
    ),
    key(
        "zero_optimization.legacy_stage1",
        Bool,
        NotYet(FALSE, "DeepSpeed itself refuses this key from 0.5.9 on"),
    ),
    key("zero_optimization.offload_optimizer", Model, Used),
    key("zero_optimization.offload_optimizer.device", OneOf(&["none", "cpu", "nvme"]), Used),
    key("zero_optimization.offload_optimizer.nvme_path", Text, Inert),
    key("zero_optimization.offload_optimizer.buffer_count", AtLeast(0), Inert),
    key("zero_optimization.offload_optimizer.pin_memory", Bool, Inert),
    key("zero_optimization.offload_optimizer.pipeline_read", Bool, Inert),
    key("zero_optimization.offload_optimizer.pipeline_write", Bool, Inert),
    key("zero_optimization.offload_optimizer.fast_init", Bool, Inert),
    key(
        "zero_optimization.offload_optimizer.ratio",
        NonNegative,
        NotYet(ONE, "the native engine offloads all optimizer states or none"),
    ),
    key(
        "zero_optimization.offload_optimizer.super_offload",
        Bool,
        NotYet(FALSE, "the native engine updates offloaded weights after backward, not during it"),
    ),
    key("zero_optimization.offload_optimizer.cpuadam_cores_perc", NonNegative, Inert),
    key("zero_optimization.offload_param", Model, Used),
    key(
        "zero_optimization.offload_param.device",
        OneOf(&["none", "cpu", "nvme"]),
        NotYet(Neutral::Text("none"), OFFLOAD_PARAM),
    ),
    key("zero_optimization.offload_param.nvme_path", Text, Inert),
    key("zero_optimization.offload_param.buffer_count", AtLeast(0), Inert),
    key("zero_optimization.offload_param.buffer_size", AtLeast(0), Inert),
    key("zero_optimization.offload_param.max_in_cpu", AtLeast(0), Inert),
    key("zero_optimization.offload_param.pin_memory", Bool, Inert),
    // Deprecated keys that DeepSpeed still reads, as offload_optimizer and offload_param with the device cpu.
    key("zero_optimization.cpu_offload", Bool, Used),
    key("zero_optimization.cpu_offload_param", Bool, NotYet(FALSE, OFFLOAD_PARAM)),
    key("zero_optimization.cpu_offload_use_pin_memory", Bool, Inert),
    key(
        "zero_optimization.zenflow",
        Free,
        NotYet(Absent, "the native engine updates every gradient in every step"),
    ),
    key("zero_optimization.zero_hpz_partition_size", AtLeast(0), NotYet(ONE, ALL_RANKS)),
    key("zero_optimization.zero_quantized_weights", Bool, NotYet(FALSE, QUANTIZED)),
    key("zero_optimization.zero_quantized_nontrainable_weights", Bool, NotYet(FALSE, QUANTIZED)),
    key("zero_optimization.zero_quantized_gradients", Bool, NotYet(FALSE, QUANTIZED)),
    key("zero_optimization.zeropp_loco_param", Free, NotYet(Absent, QUANTIZED)),
    key("zero_optimization.mics_shard_size", Whole, NotYet(Neutral::Number(-1.0), ALL_RANKS)),
    key("zero_optimization.mics_hierarchical_params_gather", Bool, Inert),
    key("zero_optimization.ignore_unused_parameters", Bool, Inert),
    key("zero_optimization.load_from_fp32_weights", Bool, Inert),
    key("zero_optimization.elastic_checkpoint", Bool, Inert),
    key("zero_optimization.log_trace_cache_warnings", Bool, Inert),
    key("zero_optimization.enable_sanity_checks", Bool, Inert),
    key("zero_optimization.pipeline_loading_checkpoint", Bool, Inert),
    key("zero_optimization.memory_efficient_linear", Bool, Inert),
    key("zero_optimization.override_module_apply", Bool, Inert),
    key("zero_optimization.save_muon_momentum_buffer_in_memory", Bool, Inert),
    key("zero_optimization.leaf_module", Free, Inert),
    // Keys that only stage 3 uses, under their names and under pydantic's aliases.
    key("zero_optimization.sub_group_size", AtLeast(0), Inert),
    key("zero_optimization.prefetch_bucket_size", AtLeast(0), Inert),
    key("zero_optimization.stage3_prefetch_bucket_size", AtLeast(0), Inert),
    key("zero_optimization.param_persistence_threshold", AtLeast(0), Inert),
    key("zero_optimization.stage3_param_persistence_threshold", AtLeast(0), Inert),
    key("zero_optimization.model_persistence_threshold", AtLeast(0), Inert),
    key("zero_optimization.stage3_model_persistence_threshold", AtLeast(0), Inert),
    key("zero_optimization.max_live_parameters", AtLeast(0), Inert),
    key("zero_optimization.stage3_max_live_parameters", AtLeast(0), Inert),
    key("zero_optimization.max_reuse_distance", AtLeast(0), Inert),
    key("zero_optimization.stage3_max_reuse_distance", AtLeast(0), Inert),
    key("zero_optimization.module_granularity_threshold", Whole, Inert),
    key("zero_optimization.stage3_module_granularity_threshold", Whole, Inert),
    key("zero_optimization.use_all_reduce_for_fetch_params", Bool, Inert),
    key("zero_optimization.stage3_use_all_reduce_for_fetch_params", Bool, Inert),
    key("zero_optimization.allgather_sequential", Bool, Inert),
    key("zero_optimization.stage3_allgather_sequential", Bool, Inert),
    key("zero_optimization.gather_16bit_weights_on_model_save", Bool, Inert),
    key("zero_optimization.stage3_gather_16bit_weights_on_model_save", Bool, Inert),
    key("zero_optimization.stage3_gather_fp16_weights_on_model_save", Bool, Inert),
    // DeepSpeed reads this key only if zero_optimization is a boolean.
    key("allgather_size", AtLeast(0), Used),
    key("zero_allow_untested_optimizer", Bool, Inert),
    key("zero_force_ds_cpu_optimizer", Bool, Inert),
    // Keys for the optimizer, whose params `super::optimizer` reads.
    key("optimizer", Dict, Used),
    key("optimizer.type", Text, Used),
    key("optimizer.params", Free, Used),
    key("optimizer.legacy_fusion", Bool, Inert),
    key(
        "scheduler",
        Free,
        Noted(
            "accepted, and the learning rate stays constant: a schedule changes updates, not \
             gradients",
        ),
    ),
    // Keys that change the model, its data, or the set of ranks that take part.
    key(
        "elasticity",
        Free,
        NotYet(NothingEnabled, "elasticity would replace the file's batch sizes by its own"),
    ),
    key(
        "progressive_layer_drop",
        Free,
        NotYet(NothingEnabled, "the native engine runs every layer in every microbatch"),
    ),
    key(
        "compression_training",
        Free,
        NotYet(NothingEnabled, "the native engine neither quantizes nor prunes its model"),
    ),
    // This release no longer reads the key, but files written for earlier releases still have it.
    key(
        "quantize_training",
        Free,
        NotYet(NothingEnabled, "the native engine does not quantize its model"),
    ),
    key(
        "weight_quantization",
        Free,
        NotYet(Absent, "the native engine does not quantize its model"),
    ),
    key(
        "hybrid_engine",
        Free,
        NotYet(NothingEnabled, "the native engine trains and does not generate"),
    ),
    key("tensor_parallel", Free, NotYet(Absent, "the native engine has data parallelism only")),
    key(
        "sequence_parallel_size",
        AtLeast(1),
        NotYet(ONE, "the native engine has data parallelism only"),
    ),
    key(
        "expert_parallel",
        Free,
        NotYet(NothingEnabled, "the native engine has data parallelism only"),
    ),
    key("data_parallel_size", AtLeast(1), Inert),
    key("use_data_before_expert_parallelism", Bool, Inert),
    key(
        "pipeline",
        Free,
        Noted(
            "accepted; this key takes effect only in a PipelineModule, and zprobe's model is not one",
        ),
    ),
    key("sparse_attention", Free, Noted("accepted; zprobe's synthetic models have no attention")),
    key("curriculum_learning", Free, Noted(SAMPLES)),
    key("data_efficiency", Free, Noted(SAMPLES)),
    key("dataloader_drop_last", Bool, Inert),
    key("activation_checkpointing", Free, Inert),
    key("compile", Model, Used),
    key(
        "compile.deepcompile",
        Bool,
        NotYet(FALSE, "the native engine does not compile its own reductions"),
    ),
    key("compile.free_activation", Bool, Inert),
    key("compile.free_activation_threshold", Whole, Inert),
    key("compile.offload_activation", Bool, Inert),
    key("compile.offload_activation_pin_memory", Bool, Inert),
    key("compile.autoep_non_moe", Bool, Inert),
    key("compile.offload_opt_states", Bool, Inert),
    key("compile.offload_parameters", Bool, Inert),
    key("compile.double_buffer", Bool, Inert),
    key("compile.symmetric_memory", Bool, Inert),
    key("compile.debug_log", Bool, Inert),
    key("compile.sync_before_reduce", Bool, Inert),
    key("compile.sync_after_reduce", Bool, Inert),
    key("compile.sync_before_allgather", Bool, Inert),
    key("compile.sync_after_allgather", Bool, Inert),
    key("compile.keep_int_input_tensors", Bool, Inert),
    key("compile.keep_all_input_tensors", Bool, Inert),
    key("compile.passes", Free, Inert),
    key("graph_harvesting", Bool, Inert),
    // Keys for monitoring, saving and loading.
    key("steps_per_print", Number, Inert),
    key("wall_clock_breakdown", Bool, Inert),
    key("memory_breakdown", Bool, Inert),
    key("dump_state", Bool, Inert),
    key("log_level", Text, Inert),
    key("disable_python_gc", Bool, Inert),
    key("vocabulary_size", Whole, Inert),
    key("eigenvalue", Free, Inert),
    key("flops_profiler", Free, Inert),
    key("autotuning", Free, Inert),
    key("timers", Free, Inert),
    key("comms_logger", Model, Inert),
    key("comms_logger.enabled", Bool, Inert),
    key("comms_logger.prof_all", Bool, Inert),
    key("comms_logger.prof_ops", Free, Inert),
    key("comms_logger.verbose", Bool, Inert),
    key("comms_logger.debug", Bool, Inert),
    key("tensorboard", Model, Inert),
    key("tensorboard.enabled", Bool, Inert),
    key("tensorboard.output_path", Text, Inert),
    key("tensorboard.job_name", Text, Inert),
    key("csv_monitor", Model, Inert),
    key("csv_monitor.enabled", Bool, Inert),
    key("csv_monitor.output_path", Text, Inert),
    key("csv_monitor.job_name", Text, Inert),
    key("wandb", Model, Inert),
    key("wandb.enabled", Bool, Inert),
    key("wandb.group", Text, Inert),
    key("wandb.team", Text, Inert),
    key("wandb.project", Text, Inert),
    key("comet", Model, Inert),
    key("comet.enabled", Bool, Inert),
    key("comet.samples_log_interval", Whole, Inert),
    key("comet.project", Text, Inert),
    key("comet.workspace", Text, Inert),
    key("comet.api_key", Text, Inert),
    key("comet.experiment_name", Text, Inert),
    key("comet.experiment_key", Text, Inert),
    key("comet.online", Bool, Inert),
    key("comet.mode", Text, Inert),
    key("checkpoint", Free, Inert),
    key("nebula", Free, Inert),
    key("datastates_ckpt", Free, Inert),
    key("aio", Free, Inert),
];
