//! The numbers and dtypes that a rank computes with.

use zprobe_model::spec::{Dtype, RunSpec};

/// The numbers and dtypes of one rank, which follow from the run's specification.
#[derive(Clone)]
pub struct NativeSettings {
    /// The rank whose partition this rank holds: this rank itself, unless a fault puts another rank in its place.
    pub owner: usize,
    /// The divisor of each loss, which makes the sum over a step's microbatches a mean.
    pub loss_divisor: f64,
    /// The divisor of a sum over the ranks, which makes the sum a mean.
    pub average_divisor: f64,
    /// The dtype in which gradients of microbatches are accumulated.
    pub accumulation_dtype: Dtype,
    /// The dtype in which gradients are communicated between ranks.
    pub wire_dtype: Dtype,
    /// The number of buffers that an IPG bucket fills in turn. With two buffers, one buffer is reduced while the other
    /// is filled. With zero buffers, gradients stay in place until they are reduced.
    pub bucket_buffers: usize,
    /// The number of elements that a bucket accepts.
    pub bucket_room: usize,
}

impl NativeSettings {
    /// The settings of a rank without a fault.
    pub fn new(spec: &RunSpec, rank: usize) -> Self {
        Self {
            owner: rank,
            loss_divisor: spec.gradient_accumulation_steps as f64,
            average_divisor: spec.world_size as f64,
            accumulation_dtype: spec.grad_accum_dtype,
            wire_dtype: spec.narrowest_comm_dtype(),
            bucket_room: spec.reduce_bucket_size,
            bucket_buffers: match (spec.contiguous_gradients(), spec.overlap_comm()) {
                (Some(false), _) => 0,
                (_, Some(true)) => 2,
                _ => 1,
            },
        }
    }
}
