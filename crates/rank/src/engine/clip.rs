//! The global gradient norm, and gradient clipping.
//!
//! The module follows DeepSpeed's `scaled_global_norm` and `unscale_and_clip_grads`
//! (`runtime/zero/stage_1_and_2.py`).

use anyhow::Result;
use tch::{Kind, Tensor};

use super::context::Context;
use crate::collective::Collective;

/// The constant that is added to the norm before the comparison with the limit, as in DeepSpeed.
const EPSILON: f64 = 1e-6;

/// The number of elements that are copied to fp64 at a time, few enough for the CPU cache.
const CHUNK: i64 = 1 << 16;

/// An algorithm for gradient clipping.
pub trait Clip {
    /// Scales down a gradient whose norm over all ranks, `norm`, is too large.
    fn clip(&self, gradient: &mut Tensor, norm: f64) -> Result<()>;
}

/// Clips gradients to this norm; 0 means no clipping.
pub struct MaxNorm(pub f64);

impl Clip for MaxNorm {
    fn clip(&self, gradient: &mut Tensor, norm: f64) -> Result<()> {
        let factor = clipping(norm, self.0);
        if factor != 1.0 {
            let _ = gradient.f_mul_scalar_(factor)?;
        }
        Ok(())
    }
}

/// The L2 norm of the gradient over the partitions of all ranks, in fp64.
pub fn global_norm(context: &Context, partition: &Tensor) -> Result<f64> {
    let mut square = Tensor::f_zeros([1], (Kind::Double, partition.device()))?;
    for chunk in partition.f_split(CHUNK, 0)? {
        square += chunk.to_kind(Kind::Double).square().sum(Kind::Double);
    }
    // The sum of an offloaded gradient is on the host, but collectives need the sum on the rank's device.
    let square = square.to_device(context.device);
    context.groups.norm.run(Collective::AllReduce(&square), "squared gradient norm")?;
    Ok(square.double_value(&[0]).sqrt())
}

/// The factor that reduces a gradient's norm to `limit`, or 1 if the norm is smaller; a limit of 0 means no clipping.
fn clipping(norm: f64, limit: f64) -> f64 {
    if limit <= 0.0 {
        return 1.0;
    }
    let excess = (norm + EPSILON) / limit;
    if excess > 1.0 { 1.0 / excess } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_too_long_is_shortened() {
        assert_eq!(clipping(3.0, 0.0), 1.0);
        assert_eq!(clipping(3.0, 4.0), 1.0);
        assert!((clipping(8.0, 4.0) - 0.5).abs() < 1e-6);
    }
}
