//! Conversions between torch's element types and zprobe's dtypes.

use anyhow::{Result, bail};
use tch::Kind;
use zprobe_model::spec::Dtype;

/// The [`Dtype`] for a tensor kind; an error for a kind that gradients do not have.
pub fn dtype_of(kind: Kind) -> Result<Dtype> {
    Ok(match kind {
        Kind::BFloat16 => Dtype::Bf16,
        Kind::Half => Dtype::Fp16,
        Kind::Float => Dtype::Fp32,
        other => bail!("{other:?} is not a gradient dtype"),
    })
}

/// The tensor kind of a [`Dtype`].
pub fn kind_of(dtype: Dtype) -> Kind {
    match dtype {
        Dtype::Bf16 => Kind::BFloat16,
        Dtype::Fp16 => Kind::Half,
        Dtype::Fp32 => Kind::Float,
    }
}

/// The name of an element type in events and in the agreement on collectives.
pub fn dtype_name(kind: Kind) -> Result<&'static str> {
    Ok(match kind {
        Kind::Int64 => "int64",
        Kind::Double => "fp64",
        other => dtype_of(other)?.name(),
    })
}
