//! Views and copies of parts of flat buffers.

use std::ops::Range;

use anyhow::Result;
use tch::Tensor;

use super::partitioning::Partitioning;

/// A view of a range of a flat buffer.
pub fn narrow(flat: &Tensor, range: Range<usize>) -> Result<Tensor> {
    Ok(flat.f_narrow(0, i64::try_from(range.start)?, i64::try_from(range.len())?)?)
}

/// A copy of a rank's partition of a flat buffer.
pub fn partition_of(partitioning: &Partitioning, flat: &Tensor, rank: usize) -> Result<Tensor> {
    let ranges = partitioning.runs(rank, 0..partitioning.partition_numel());
    let pieces = ranges.map(|range| narrow(flat, range.flat)).collect::<Result<Vec<_>>>()?;
    Ok(Tensor::f_cat(&pieces, 0)?)
}
