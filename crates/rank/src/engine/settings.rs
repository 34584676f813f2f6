//! The numbers and dtypes that a rank computes with.

use zprobe_model::spec::{Dtype, RunSpec};

/// The numbers and dtypes of one rank, which follow from the settings of the run.
#[derive(Clone)]
pub struct Settings {
    /// The rank whose partition this rank holds: itself.
    pub owner: usize,
    /// The divisor of each loss, so that those of a step add up to their mean.
    pub loss_divisor: f64,
    /// The divisor of a sum over the ranks, so that it becomes their mean.
    pub average_divisor: f64,
    /// Dtype in which microbatches are added up.
    pub accumulation_dtype: Dtype,
    /// Dtype in which gradients cross ranks.
    pub wire_dtype: Dtype,
    /// Number of buffers that an IPG bucket fills in turn: two where one is reduced while the other
    /// is filled; zero where gradients stay in place until they are reduced.
    pub bucket_buffers: usize,
    /// Number of elements from which on a bucket takes no further gradient.
    pub bucket_room: usize,
}

impl Settings {
    /// The settings of `rank`.
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
