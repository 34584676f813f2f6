//! The global norm of the gradient, and clipping by it.
//!
//! DeepSpeed's `scaled_global_norm` and `unscale_and_clip_grads` (`runtime/zero/stage_1_and_2.py`).

use anyhow::Result;
use tch::{Kind, Tensor};

use super::context::Context;
use crate::collective::Collective;

/// Constant added to the norm before the comparison with the limit, as in DeepSpeed.
const EPSILON: f64 = 1e-6;

/// Number of elements that are copied to fp64 at a time, few enough for a cache.
const CHUNK: i64 = 1 << 16;

/// A way to keep a gradient within a norm.
pub trait Clip {
    /// Shortens a gradient whose norm over all ranks is `norm`, if that is too long.
    fn clip(&self, gradient: &mut Tensor, norm: f64) -> Result<()>;
}

/// Limit of the norm to which gradients are clipped; 0 is no limit.
pub struct Limit(pub f64);

impl Clip for Limit {
    fn clip(&self, gradient: &mut Tensor, norm: f64) -> Result<()> {
        let factor = clipping(norm, self.0);
        if factor != 1.0 {
            let _ = gradient.f_mul_scalar_(factor)?;
        }
        Ok(())
    }
}

/// L2 norm over all ranks' partitions, in fp64.
pub fn global_norm(context: &Context, partition: &Tensor) -> Result<f64> {
    let mut square = Tensor::f_zeros([1], (Kind::Double, partition.device()))?;
    for chunk in partition.f_split(CHUNK, 0)? {
        square += chunk.to_kind(Kind::Double).square().sum(Kind::Double);
    }
    // The sum for an offloaded gradient is on the host.
    let square = square.to_device(context.device);
    context.groups.norm.run(Collective::AllReduce(&square), "squared gradient norm")?;
    Ok(square.double_value(&[0]).sqrt())
}

/// The factor by which a gradient's norm comes down to `limit`; 0 is no limit.
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
