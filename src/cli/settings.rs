//! Flags of `zprobe run` that only some engines have.

use zprobe::spec::{CommHook, LossScale, Observation, Offload, SpecRequest};

/// Settings that only some engines have. Those that the chosen engine does not have are refused.
#[derive(clap::Args)]
pub struct Settings {
    /// Where optimizer states live [default: none]
    #[arg(long, env = "ZPROBE_OFFLOAD", help_heading = "ZeRO")]
    offload: Option<Offload>,

    /// Overlap reduction with backward [default: false, stage 3: true]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        default_missing_value = "true",
        env = "ZPROBE_OVERLAP_COMM",
        help_heading = "ZeRO"
    )]
    overlap_comm: Option<bool>,

    /// Copy gradients to a contiguous buffer as they are produced [default: true]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        default_missing_value = "true",
        env = "ZPROBE_CONTIGUOUS_GRADIENTS",
        help_heading = "ZeRO"
    )]
    contiguous_gradients: Option<bool>,

    /// Reduce-scatter gradients instead of all-reducing them [default: true]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        default_missing_value = "true",
        env = "ZPROBE_REDUCE_SCATTER",
        help_heading = "ZeRO"
    )]
    reduce_scatter: Option<bool>,

    /// Fill BF16_Optimizer's accumulator from hooks [default: false]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        default_missing_value = "true",
        env = "ZPROBE_IMMEDIATE_GRAD_UPDATE",
        help_heading = "DeepSpeed"
    )]
    immediate_grad_update: Option<bool>,

    /// Most elements that one all-gather of parameters returns [default: 500000000]
    #[arg(long, value_name = "N", env = "ZPROBE_ALLGATHER_BUCKET_SIZE", help_heading = "Native")]
    allgather_bucket_size: Option<usize>,

    /// Parameter groups: 1, or 2 to part what is decayed from what is not [default: 1]
    #[arg(long, value_name = "N", env = "ZPROBE_PARAMETER_GROUPS", help_heading = "Native")]
    parameter_groups: Option<usize>,

    /// Scale of an fp16 model's loss: a number, or `dynamic` [default: dynamic, from 2^6]
    #[arg(
        long,
        value_name = "SCALE|dynamic",
        value_parser = loss_scale,
        env = "ZPROBE_LOSS_SCALE",
        help_heading = "ZeRO"
    )]
    loss_scale: Option<LossScale>,

    /// Largest global norm of the gradient before it is scaled down; 0 does not clip [default: 0]
    #[arg(long, value_name = "NORM", env = "ZPROBE_GRADIENT_CLIPPING", help_heading = "Engine")]
    gradient_clipping: Option<f64>,

    /// Capacity of a bucket in MiB [default: small enough that buckets fill]
    #[arg(long, value_name = "MIB", env = "ZPROBE_BUCKET_CAP_MB", help_heading = "DDP")]
    bucket_cap_mb: Option<f64>,

    /// Look for parameters that a loss does not reach [default: true if a shape leaves some]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        default_missing_value = "true",
        env = "ZPROBE_FIND_UNUSED_PARAMETERS",
        help_heading = "DDP"
    )]
    find_unused_parameters: Option<bool>,

    /// Promise that the graph is the same in every step [default: false]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        default_missing_value = "true",
        env = "ZPROBE_STATIC_GRAPH",
        help_heading = "DDP"
    )]
    static_graph: Option<bool>,

    /// Make gradients views of the buckets [default: false]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        default_missing_value = "true",
        env = "ZPROBE_GRADIENT_AS_BUCKET_VIEW",
        help_heading = "DDP"
    )]
    gradient_as_bucket_view: Option<bool>,

    /// Communication hook [default: none]
    #[arg(long, env = "ZPROBE_COMM_HOOK", help_heading = "DDP")]
    comm_hook: Option<CommHook>,

    /// Free parameters between forward and backward [default: true]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        default_missing_value = "true",
        env = "ZPROBE_RESHARD_AFTER_FORWARD",
        help_heading = "FSDP2"
    )]
    reshard_after_forward: Option<bool>,

    /// How much of the engine is observed: everything, or only the parameters after each step
    /// [default: full]
    #[arg(long, env = "ZPROBE_OBSERVE", help_heading = "Run")]
    observe: Option<Observation>,

    /// Fill memory that torch hands out with NaN, so that what is read before it was written shows
    /// [default: false]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        default_missing_value = "true",
        env = "ZPROBE_POISON_MEMORY",
        help_heading = "Run"
    )]
    poison_memory: Option<bool>,
}

impl Settings {
    /// Puts what was given into `request`.
    pub fn fill(&self, request: &mut SpecRequest) {
        request.offload = self.offload;
        request.allgather_bucket_size = self.allgather_bucket_size;
        request.parameter_groups = self.parameter_groups;
        request.overlap_comm = self.overlap_comm;
        request.contiguous_gradients = self.contiguous_gradients;
        request.reduce_scatter = self.reduce_scatter;
        request.immediate_grad_update = self.immediate_grad_update;
        request.loss_scale = self.loss_scale;
        request.gradient_clipping = self.gradient_clipping;
        request.bucket_cap_mb = self.bucket_cap_mb;
        request.find_unused_parameters = self.find_unused_parameters;
        request.static_graph = self.static_graph;
        request.gradient_as_bucket_view = self.gradient_as_bucket_view;
        request.comm_hook = self.comm_hook;
        request.reshard_after_forward = self.reshard_after_forward;
        request.observe = self.observe;
        request.poison_memory = self.poison_memory;
    }
}

fn loss_scale(text: &str) -> Result<LossScale, String> {
    if text == "dynamic" {
        return Ok(LossScale::DEFAULT);
    }
    match text.parse::<f64>() {
        Ok(scale) if scale > 0.0 && scale.is_finite() => Ok(LossScale::Static { scale }),
        _ => Err("give a positive number, or `dynamic`".to_owned()),
    }
}
