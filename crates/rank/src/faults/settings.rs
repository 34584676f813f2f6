//! Faults that are wrong numbers or dtypes.

use zprobe_model::spec::{Dtype, Fault};

use super::Injected;
use crate::engine::settings::NativeSettings;

/// The settings for the engine, with a wrong value if `fault` is a wrong number or dtype.
pub fn settings(fault: Injected, mut sound: NativeSettings) -> NativeSettings {
    match fault {
        Some(Fault::AccumulatedInBf16) => sound.accumulation_dtype = Dtype::Bf16,
        Some(Fault::ReducedInBf16) => sound.wire_dtype = Dtype::Bf16,
        Some(Fault::GaNotScaled) => sound.loss_divisor = 1.0,
        Some(Fault::GaScaledTwice) => sound.loss_divisor *= sound.loss_divisor,
        Some(Fault::SummedNotAveraged | Fault::RankNotDivided | Fault::NotAveraged) => {
            sound.average_divisor = 1.0;
        }
        Some(Fault::PartitionOwnedTwice) => sound.owner = 0,
        Some(Fault::BucketOverfilled) => sound.bucket_room = sound.bucket_room.saturating_mul(2),
        // With a single buffer, new gradients overwrite the bucket that is being reduced.
        Some(Fault::BufferOverwritten) => sound.bucket_buffers = 1,
        _ => {}
    }
    sound
}
