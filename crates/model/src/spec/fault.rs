//! Faults that the native engine can be told to have: their names, the ranks that have them, the
//! settings that a run needs for them, and the findings that they must lead to.

use super::{Dataflow, Dtype, Invalid, Offload, RunSpec, Shape, named_enum};

named_enum! {
    /// A deliberate mistake at one named point of the dataflow (`--inject`).
    ///
    /// Each fault is a mistake that a real engine made or could make; `zprobe list faults` prints
    /// them. A fault that only one rank has is on the last rank.
    pub enum Fault {
        // Hooks and accumulation.
        /// No gradient hook fires on any rank (DeepSpeed issues #7579 and #7595).
        DeadHooks = "dead-hooks",
        /// Every gradient hook is registered twice, and adds its gradient twice.
        HookFiresTwice = "hook-fires-twice",
        /// The first microbatch of each step never reaches the accumulator, on every rank.
        MicrobatchDropped = "microbatch-dropped",
        /// The first microbatch of each step is accumulated twice, on every rank.
        MicrobatchDoubled = "microbatch-doubled",
        /// The first microbatch of a step is accumulated from the buffers of the step before.
        MicrobatchFromPreviousStep = "microbatch-from-previous-step",
        /// The accumulator is not zeroed after the optimizer step.
        AccumulatorNotZeroed = "accumulator-not-zeroed",
        /// Microbatches are added up in bf16, whatever `--grad-accum-dtype` says (DeepSpeed #1800).
        AccumulatedInBf16 = "accumulated-in-bf16",
        /// One element of the last rank's first microbatch is infinite.
        InfinityOnOneRank = "infinity-on-one-rank",

        // Scale.
        /// The loss is not divided by the accumulation steps.
        GaNotScaled = "ga-not-scaled",
        /// The loss is divided by the accumulation steps twice (accelerate #1970).
        GaScaledTwice = "ga-scaled-twice",
        /// Gradients are summed over the ranks, and not divided by their number.
        SummedNotAveraged = "summed-not-averaged",
        /// The last rank does not divide by the number of ranks.
        RankNotDivided = "rank-not-divided",

        // Buckets and reduction.
        /// The reduction runs before the boundary microbatch is accumulated, which is then
        /// accumulated locally (DeepSpeed PR #7985, `DeepSpeedEngine._backward_epilogue`).
        BoundaryLeak = "boundary-leak",
        /// The reduction across ranks is skipped: each rank steps on its own gradients.
        NotAveraged = "not-averaged",
        /// The first bucket of each reduction is not averaged.
        BucketNotAveraged = "bucket-not-averaged",
        /// Every microbatch's backward ends with a flush of the IPG bucket, filled or not.
        EmptyBucketFlush = "empty-bucket-flush",
        /// A bucket takes gradients up to twice its capacity.
        BucketOverfilled = "bucket-overfilled",
        /// A bucket is flushed before its last gradient was copied into it.
        BucketFlushedEarly = "bucket-flushed-early",
        /// The gradients left in the bucket at the boundary are never flushed.
        BucketNeverFlushed = "bucket-never-flushed",
        /// A bucket is taken apart by the parameter list of the bucket before it (DeepSpeed #7780).
        StaleParameterList = "stale-parameter-list",
        /// A bucket's buffer is filled again while its reduction still reads it (DeepSpeed #5606,
        /// #7371).
        BufferOverwritten = "buffer-overwritten",
        /// Averaged gradients are read before the reduction that was launched has ended.
        WaitMissing = "wait-missing",
        /// Gradients cross the ranks in bf16, whatever `--comm-dtype` says (PyTorch #190626).
        ReducedInBf16 = "reduced-in-bf16",
        /// The last bucket waits for a parameter that this backward does not use, and is not
        /// flushed.
        UnusedWaitedFor = "unused-waited-for",
        /// A parameter that is used in two places is put into the bucket for each of them.
        TiedReducedTwice = "tied-reduced-twice",
        /// The last rank leaves out one gradient reduction of the first step, as code does that
        /// branches on facts known to this rank alone.
        CollectiveSkipped = "collective-skipped",
        /// The last rank reduces its first two buckets in the other order.
        CollectivesSwapped = "collectives-swapped",

        // Partitions.
        /// Two slices of the reduced gradient, equally long, are swapped before the optimizer reads
        /// them.
        SlicesSwapped = "slices-swapped",
        /// Each rank reads its partition of the gradient one element too far.
        PartitionOffset = "partition-offset",
        /// The last rank takes the first rank's partition for its own: the first partition is owned
        /// twice, and the last by no rank.
        PartitionOwnedTwice = "partition-owned-twice",
        /// The buffer in which averaged gradients are added up is not set to zero before the first
        /// step.
        BufferNotSet = "buffer-not-set",
        /// The padding behind the last parameter holds what was in memory before.
        PaddingNotZeroed = "padding-not-zeroed",

        // Offload.
        /// Gradients are copied to the host before the last bucket was reduced.
        OffloadCopiedEarly = "offload-copied-early",
        /// The gradients on the host remain those of the first step.
        StaleHostBuffer = "stale-host-buffer",
        /// Gradients are copied to the host by a thread that is not waited for, and that is late
        /// about every other time, at random.
        HostCopyRaces = "host-copy-races",

        // The step.
        /// Each rank decides by itself whether a gradient overflowed (DeepSpeed #7580).
        OverflowNotAgreed = "overflow-not-agreed",
        /// The gradient is not divided by the loss scale.
        LossScaleKept = "loss-scale-kept",
        /// Each rank clips by the norm of its own partition.
        ClippedByLocalNorm = "clipped-by-local-norm",
        /// The gradient is clipped twice.
        ClippedTwice = "clipped-twice",
        /// The global norm counts replicated values once for each rank.
        NormCountsReplicas = "norm-counts-replicas",
        /// The last rank skips its optimizer step.
        StepSkipped = "step-skipped",
        /// The last rank puts its parameters into the all-gather without having updated them: its
        /// partition stays stale on every rank.
        StaleAllGather = "stale-all-gather",
        /// The last rank does not copy the all-gathered parameters back: its model stays stale.
        UpdateNotCopied = "update-not-copied",

        // The run itself.
        /// The last rank reports a digest in band that differs from the buffer it holds.
        DigestCorrupted = "digest-corrupted",
        /// The last rank kills itself (SIGKILL) before the second backward of the first step.
        RankDies = "rank-dies",
        /// The last rank sleeps for ever before the second backward of the first step.
        RankHangs = "rank-hangs",
        /// The last rank writes a line that is no event on its event channel.
        RankRubbish = "rank-rubbish",
    }
}

/// The only root finding that a run with a fault must have, if the fault changes anything.
pub struct Expected {
    /// The fault.
    pub fault: Fault,
    /// Code of the finding.
    pub code: &'static str,
    /// Codes that are accepted too, where the fault equals another one: with a single microbatch,
    /// for example, a doubled microbatch is a wrong scale.
    pub or: &'static [&'static str],
    /// The place that the finding must name.
    pub place: Place,
}

/// A place that a finding must name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Any place, or none.
    Anywhere,
    /// The first microbatch.
    FirstMicrobatch,
    /// The boundary microbatch.
    Boundary,
    /// The second step.
    SecondStep,
    /// The last rank.
    LastRank,
}

impl Fault {
    /// The finding that this fault must lead to. Tests check every run with a fault against it.
    pub fn expected(self) -> Expected {
        use Place::{Anywhere, Boundary, FirstMicrobatch, LastRank, SecondStep};
        let (code, or, place): (_, &[_], _) = match self {
            Self::DeadHooks => ("ZP201", &[], FirstMicrobatch),
            Self::HookFiresTwice => ("ZP202", &[], FirstMicrobatch),
            Self::MicrobatchDropped => ("ZP102", &[], FirstMicrobatch),
            Self::MicrobatchDoubled => ("ZP103", &["ZP105"], FirstMicrobatch),
            Self::MicrobatchFromPreviousStep => ("ZP106", &[], SecondStep),
            Self::AccumulatorNotZeroed => ("ZP106", &[], SecondStep),
            Self::AccumulatedInBf16 => ("ZP504", &[], Anywhere),
            Self::InfinityOnOneRank => ("ZP501", &["ZP503"], Anywhere),
            Self::GaNotScaled => ("ZP105", &[], Anywhere),
            Self::GaScaledTwice => ("ZP105", &[], Anywhere),
            Self::SummedNotAveraged => ("ZP105", &[], Anywhere),
            Self::RankNotDivided => ("ZP103", &["ZP105"], Anywhere),
            Self::BoundaryLeak => ("ZP101", &[], Boundary),
            Self::NotAveraged => ("ZP104", &[], Anywhere),
            Self::BucketNotAveraged => ("ZP104", &[], Anywhere),
            Self::EmptyBucketFlush => ("ZP301", &[], Anywhere),
            Self::BucketOverfilled => ("ZP302", &[], Anywhere),
            Self::BucketFlushedEarly => ("ZP102", &[], Anywhere),
            Self::BucketNeverFlushed => ("ZP102", &["ZP301"], Anywhere),
            Self::StaleParameterList => ("ZP402", &["ZP107", "ZP102"], Anywhere),
            Self::BufferOverwritten => ("ZP402", &["ZP107"], Anywhere),
            Self::WaitMissing => ("ZP104", &["ZP102"], Anywhere),
            Self::ReducedInBf16 => ("ZP504", &[], Anywhere),
            Self::UnusedWaitedFor => ("ZP102", &[], Anywhere),
            Self::TiedReducedTwice => ("ZP105", &[], Anywhere),
            Self::CollectiveSkipped => ("ZP801", &[], Anywhere),
            Self::CollectivesSwapped => ("ZP801", &[], Anywhere),
            Self::SlicesSwapped => ("ZP402", &[], Anywhere),
            Self::PartitionOffset => ("ZP402", &[], Anywhere),
            Self::PartitionOwnedTwice => ("ZP401", &[], Anywhere),
            Self::BufferNotSet => ("ZP501", &[], Anywhere),
            Self::PaddingNotZeroed => ("ZP604", &[], Anywhere),
            Self::OffloadCopiedEarly => ("ZP701", &[], Anywhere),
            Self::StaleHostBuffer => ("ZP701", &[], SecondStep),
            Self::HostCopyRaces => ("ZP905", &[], Anywhere),
            Self::OverflowNotAgreed => ("ZP502", &[], Anywhere),
            Self::LossScaleKept => ("ZP105", &[], Anywhere),
            Self::ClippedByLocalNorm => ("ZP604", &[], Anywhere),
            Self::ClippedTwice => ("ZP105", &[], Anywhere),
            Self::NormCountsReplicas => ("ZP604", &[], Anywhere),
            Self::StepSkipped => ("ZP603", &[], LastRank),
            Self::StaleAllGather => ("ZP602", &[], LastRank),
            Self::UpdateNotCopied => ("ZP602", &[], LastRank),
            Self::DigestCorrupted => ("ZP904", &[], LastRank),
            Self::RankDies => ("ZP901", &[], LastRank),
            Self::RankHangs => ("ZP902", &[], LastRank),
            Self::RankRubbish => ("ZP903", &[], LastRank),
        };
        Expected { fault: self, code, or, place }
    }

    /// True if only the last rank has this fault.
    pub fn is_of_last_rank(self) -> bool {
        matches!(
            self,
            Self::InfinityOnOneRank
                | Self::RankNotDivided
                | Self::CollectiveSkipped
                | Self::CollectivesSwapped
                | Self::PartitionOwnedTwice
                | Self::StepSkipped
                | Self::StaleAllGather
                | Self::UpdateNotCopied
                | Self::DigestCorrupted
                | Self::RankDies
                | Self::RankHangs
                | Self::RankRubbish
        )
    }
}

/// Refuses a fault that has no place in the run. A fault that changes nothing there, as most do
/// with a single rank, is accepted.
pub(super) fn check_fault(spec: &RunSpec) -> Result<(), Invalid> {
    let Some(fault) = spec.inject() else { return Ok(()) };
    let has_buckets = spec.dataflow() == Some(Dataflow::IpgBucket);
    let reduces_at_once = spec.stage >= 2;
    let overlaps = spec.overlap_comm() == Some(true);
    let offloads = spec.offload == Offload::Cpu;
    let has_unused = spec.shapes.iter().any(|shape| shape.leaves_unused());
    let backwards = spec.steps * spec.gradient_accumulation_steps;
    let goes_backward_again = backwards > 1
        || spec.has_shape(Shape::SeveralBackwards)
        || spec.has_shape(Shape::PenaltyBackward);
    // Stage 3 pads to the world size, the others to an even multiple of it.
    let pads = spec.stage > 0 && (spec.stage < 3 || spec.world_size > 1);
    let (place, reason) = match fault {
        Fault::DeadHooks
        | Fault::HookFiresTwice
        | Fault::BucketNotAveraged
        | Fault::BucketFlushedEarly
        | Fault::BucketOverfilled
        | Fault::BucketNeverFlushed
        | Fault::StaleParameterList
        | Fault::CollectivesSwapped => (
            has_buckets,
            "the accumulator dataflow has no hooks and no buckets; add --dataflow ipg-bucket",
        ),
        Fault::EmptyBucketFlush => (
            has_buckets && !reduces_at_once,
            "it is about a backward that reduces nothing; use --dataflow ipg-bucket and --stage 1",
        ),
        Fault::BufferOverwritten => (
            overlaps && spec.contiguous_gradients() == Some(true),
            "no buffer is filled while another is reduced; add --overlap-comm and leave out \
             --contiguous-gradients false",
        ),
        Fault::WaitMissing => {
            (overlaps, "every reduction is waited for at once; add --overlap-comm")
        }
        Fault::UnusedWaitedFor => (
            has_buckets && has_unused,
            "no reduction waits for an unused parameter; use --dataflow ipg-bucket and --shape \
             unused-last",
        ),
        Fault::TiedReducedTwice => (
            has_buckets && spec.has_shape(Shape::Tied),
            "nothing is used in two places; use --dataflow ipg-bucket and --shape tied",
        ),
        Fault::OffloadCopiedEarly | Fault::HostCopyRaces => {
            (offloads, "nothing is copied to the host; add --offload cpu")
        }
        Fault::StaleHostBuffer => (
            offloads && spec.steps > 1,
            "nothing is copied to the host a second time; add --offload cpu and --steps 2",
        ),
        Fault::MicrobatchFromPreviousStep | Fault::AccumulatorNotZeroed => (
            spec.steps > 1,
            "it shows in the step after the first, and there is none; use --steps 2 or more",
        ),
        Fault::RankDies | Fault::RankHangs | Fault::RankRubbish => (
            goes_backward_again,
            "it happens before the second backward, and there is none; use --ga 2 or --steps 2",
        ),
        Fault::BufferNotSet => (
            spec.poison_memory,
            "uninitialised memory holds anything, by chance even the right values; add \
             --poison-memory",
        ),
        Fault::PaddingNotZeroed => {
            (pads, "stage 0 pads nothing, nor does stage 3 on a single rank; use --stage 1")
        }
        Fault::OverflowNotAgreed => (
            spec.dtype == Dtype::Fp16 && spec.has_shape(Shape::InfinityOnOneRank),
            "nothing overflows; use --dtype fp16 and --shape infinity-on-one-rank",
        ),
        Fault::LossScaleKept => {
            (spec.dtype == Dtype::Fp16, "only fp16 has a loss scale; use --dtype fp16")
        }
        Fault::ClippedByLocalNorm | Fault::ClippedTwice => {
            (spec.gradient_clipping > 0.0, "nothing is clipped; add --gradient-clipping 1")
        }
        Fault::StaleAllGather => (spec.stage > 0, "stage 0 gathers nothing; use --stage 1"),
        Fault::UpdateNotCopied => (
            matches!(spec.stage, 1 | 2),
            "stage 0 gathers nothing, and stage 3 only what it uses at once; use --stage 1",
        ),
        _ => return Ok(()),
    };
    if place { Ok(()) } else { Err(Invalid::FaultHasNoPlace { fault, reason }) }
}
