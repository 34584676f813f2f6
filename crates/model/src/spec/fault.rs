//! The faults that the native engine can be given: their names, the ranks that have them, the settings that a run
//! needs for them, and the findings that they must lead to.

use super::{Dataflow, Dtype, Invalid, Offload, RunSpec, Shape, named_enum};

named_enum! {
    /// A deliberate mistake at one named point of the dataflow (`--inject`).
    ///
    /// Each fault is a mistake that a real engine made or could make; `zprobe list faults` prints all faults. A
    /// fault of a single rank is on the last rank.
    pub enum Fault {
        // Faults of hooks and of the accumulation.
        /// No gradient hook fires on any rank (DeepSpeed issues #7579 and #7595).
        DeadHooks = "dead-hooks",
        /// Every gradient hook is registered twice, so it adds its gradient twice.
        HookFiresTwice = "hook-fires-twice",
        /// The first microbatch of each step never reaches the accumulator, on every rank.
        MicrobatchDropped = "microbatch-dropped",
        /// The first microbatch of each step is accumulated twice, on every rank.
        MicrobatchDoubled = "microbatch-doubled",
        /// The first microbatch of a step is accumulated from the buffers of the previous step.
        MicrobatchFromPreviousStep = "microbatch-from-previous-step",
        /// The accumulator is not zeroed after the optimizer step.
        AccumulatorNotZeroed = "accumulator-not-zeroed",
        /// Microbatches are accumulated in bf16, whatever `--grad-accum-dtype` says (DeepSpeed #1800).
        AccumulatedInBf16 = "accumulated-in-bf16",
        /// One element of the last rank's first microbatch is infinite.
        InfinityOnOneRank = "infinity-on-one-rank",

        // Faults of the scale of gradients.
        /// The loss is not divided by the accumulation steps.
        GaNotScaled = "ga-not-scaled",
        /// The loss is divided by the accumulation steps twice (accelerate #1970).
        GaScaledTwice = "ga-scaled-twice",
        /// Gradients are summed over the ranks, but not divided by the number of ranks.
        SummedNotAveraged = "summed-not-averaged",
        /// The last rank does not divide by the number of ranks.
        RankNotDivided = "rank-not-divided",

        // Faults of buckets and of the reduction.
        /// The reduction runs before the boundary microbatch is accumulated, which is then accumulated locally
        /// (DeepSpeed PR #7985, `DeepSpeedEngine._backward_epilogue`).
        BoundaryLeak = "boundary-leak",
        /// The reduction across ranks is skipped: each rank steps on its own gradients.
        NotAveraged = "not-averaged",
        /// The first bucket of each reduction is not averaged.
        BucketNotAveraged = "bucket-not-averaged",
        /// Every microbatch's backward ends with a flush of the IPG bucket, filled or not.
        EmptyBucketFlush = "empty-bucket-flush",
        /// A bucket takes gradients up to twice its capacity.
        BucketOverfilled = "bucket-overfilled",
        /// A bucket is flushed before its last gradient has been copied into it.
        BucketFlushedEarly = "bucket-flushed-early",
        /// The gradients left in the bucket at the boundary are never flushed.
        BucketNeverFlushed = "bucket-never-flushed",
        /// A bucket is split by the parameter list of the previous bucket (DeepSpeed #7780).
        StaleParameterList = "stale-parameter-list",
        /// A bucket's buffer is filled again while its reduction still reads the buffer (DeepSpeed #5606, #7371).
        BufferOverwritten = "buffer-overwritten",
        /// Averaged gradients are read before the reduction that was started has ended.
        WaitMissing = "wait-missing",
        /// Gradients are communicated in bf16, whatever `--comm-dtype` says (PyTorch #190626).
        ReducedInBf16 = "reduced-in-bf16",
        /// The last bucket waits for a parameter that this backward does not use, so the bucket is not flushed.
        UnusedWaitedFor = "unused-waited-for",
        /// A parameter that is used in two places is put into the bucket once for each place.
        TiedReducedTwice = "tied-reduced-twice",
        /// The last rank skips one gradient reduction of the first step, as code does that branches on facts that
        /// only this rank knows.
        CollectiveSkipped = "collective-skipped",
        /// The last rank reduces its first two buckets in the opposite order.
        CollectivesSwapped = "collectives-swapped",

        // Faults of partitions.
        /// Two slices of equal length in the reduced gradient are swapped before the optimizer reads them.
        SlicesSwapped = "slices-swapped",
        /// Each rank reads its partition of the gradient one element too far along.
        PartitionOffset = "partition-offset",
        /// The last rank uses the first rank's partition as its own, so the first partition is owned twice and the
        /// last by no rank.
        PartitionOwnedTwice = "partition-owned-twice",
        /// The buffer in which averaged gradients are accumulated is not zeroed before the first step.
        BufferNotSet = "buffer-not-set",
        /// The padding after the last parameter holds whatever was in memory before.
        PaddingNotZeroed = "padding-not-zeroed",

        // Faults of the offload.
        /// Gradients are copied to the host before the last bucket has been reduced.
        OffloadCopiedEarly = "offload-copied-early",
        /// The gradients on the host remain those of the first step.
        StaleHostBuffer = "stale-host-buffer",
        /// A thread copies gradients to the host, but nothing waits for the thread, which is late about every other
        /// time, at random.
        HostCopyRaces = "host-copy-races",

        // Faults of the optimizer step.
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
        /// The last rank puts its parameters into the all-gather without updating them, so its partition stays
        /// stale on every rank.
        StaleAllGather = "stale-all-gather",
        /// The last rank does not copy the all-gathered parameters back, so its model stays stale.
        UpdateNotCopied = "update-not-copied",

        // Faults of the run itself.
        /// The last rank sends, in band, a digest that differs from the digest of its buffer.
        DigestCorrupted = "digest-corrupted",
        /// The last rank kills itself (SIGKILL) before the second backward of the first step.
        RankDies = "rank-dies",
        /// The last rank sleeps for ever before the second backward of the first step.
        RankHangs = "rank-hangs",
        /// The last rank writes a line to its event channel that is not an event.
        RankRubbish = "rank-rubbish",
    }
}

/// The finding that must be the only root finding of a run with a fault, if the fault changes anything.
pub struct Expected {
    /// The injected fault.
    pub fault: Fault,
    /// The code of the finding.
    pub code: &'static str,
    /// Other accepted codes, for runs in which the fault has the same effect as another fault: with a single
    /// microbatch, for example, a doubled microbatch is a wrong scale.
    pub or: &'static [&'static str],
    /// The place that the finding must name.
    pub place: Place,
}

/// A place that a finding must name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Any place, or no place.
    Anywhere,
    /// The first microbatch of a step.
    FirstMicrobatch,
    /// The boundary microbatch of a step.
    Boundary,
    /// The second step of the run.
    SecondStep,
    /// The last rank of the run.
    LastRank,
}

impl Fault {
    /// The finding that this fault must lead to; tests check every run with the fault against this finding.
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

/// Refuses a fault that the run has no place for. A fault that changes nothing in the run, as most faults do with a
/// single rank, is accepted.
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
    // Stage 3 pads to a multiple of the world size, stages 1 and 2 to an even multiple of it.
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
            "this fault needs a backward that reduces nothing; use --dataflow ipg-bucket and --stage 1",
        ),
        Fault::BufferOverwritten => (
            overlaps && spec.contiguous_gradients() == Some(true),
            "no buffer is filled while another is reduced; add --overlap-comm and leave out \
             --contiguous-gradients false",
        ),
        Fault::WaitMissing => {
            (overlaps, "the engine waits for every reduction immediately; add --overlap-comm")
        }
        Fault::UnusedWaitedFor => (
            has_buckets && has_unused,
            "no reduction waits for an unused parameter; use --dataflow ipg-bucket and --shape \
             unused-last",
        ),
        Fault::TiedReducedTwice => (
            has_buckets && spec.has_shape(Shape::Tied),
            "no parameter is used in two places; use --dataflow ipg-bucket and --shape tied",
        ),
        Fault::OffloadCopiedEarly | Fault::HostCopyRaces => {
            (offloads, "no gradient is copied to the host; add --offload cpu")
        }
        Fault::StaleHostBuffer => (
            offloads && spec.steps > 1,
            "no gradient is copied to the host a second time; add --offload cpu and --steps 2",
        ),
        Fault::MicrobatchFromPreviousStep | Fault::AccumulatorNotZeroed => (
            spec.steps > 1,
            "this fault shows after the first step, and the run has only one step; use --steps 2 or more",
        ),
        Fault::RankDies | Fault::RankHangs | Fault::RankRubbish => (
            goes_backward_again,
            "this fault happens before the second backward, and the run has only one; use --ga 2 or --steps 2",
        ),
        Fault::BufferNotSet => (
            spec.poison_memory,
            "uninitialised memory may by chance hold the right values; add \
             --poison-memory",
        ),
        Fault::PaddingNotZeroed => {
            (pads, "neither stage 0 nor stage 3 on a single rank has padding; use --stage 1")
        }
        Fault::OverflowNotAgreed => (
            spec.dtype == Dtype::Fp16 && spec.has_shape(Shape::InfinityOnOneRank),
            "no gradient overflows; use --dtype fp16 and --shape infinity-on-one-rank",
        ),
        Fault::LossScaleKept => {
            (spec.dtype == Dtype::Fp16, "only fp16 has a loss scale; use --dtype fp16")
        }
        Fault::ClippedByLocalNorm | Fault::ClippedTwice => {
            (spec.gradient_clipping > 0.0, "no gradient is clipped; add --gradient-clipping 1")
        }
        Fault::StaleAllGather => (spec.stage > 0, "stage 0 has no all-gather; use --stage 1"),
        Fault::UpdateNotCopied => (
            matches!(spec.stage, 1 | 2),
            "stage 0 has no all-gather, and stage 3 gathers parameters only just before their use; use --stage 1",
        ),
        _ => return Ok(()),
    };
    if place { Ok(()) } else { Err(Invalid::FaultHasNoPlace { fault, reason }) }
}
