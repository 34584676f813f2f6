//! The faults that the native engine can be told to have.

use super::named_enum;

named_enum! {
    /// A deliberate slip at one named point of the dataflow (`--inject`).
    ///
    /// Each is a mistake that a real engine made or could make; `zprobe list faults` prints them.
    /// "The last rank" has the faults that only one rank has.
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
        /// Reduce before the boundary microbatch is accumulated, then accumulate it locally
        /// (DeepSpeed PR #7985, `DeepSpeedEngine._backward_epilogue`).
        BoundaryLeak = "boundary-leak",
        /// The reduction across ranks is skipped: each rank steps on its own gradients.
        NotAveraged = "not-averaged",
        /// The first bucket of each reduction is not averaged.
        BucketNotAveraged = "bucket-not-averaged",
        /// Every microbatch's backward ends with a flush of the IPG bucket, filled or not.
        EmptyBucketFlush = "empty-bucket-flush",
        /// A bucket is flushed before its last gradient was copied into it.
        BucketFlushedEarly = "bucket-flushed-early",
        /// What is left in the bucket at the boundary is never flushed.
        BucketNeverFlushed = "bucket-never-flushed",
        /// A bucket is taken apart by the list of parameters of the bucket before (DeepSpeed #7780).
        StaleParameterList = "stale-parameter-list",
        /// A bucket's buffer is filled again while its reduction still reads it (DeepSpeed #5606,
        /// #7371).
        BufferOverwritten = "buffer-overwritten",
        /// Averaged gradients are read before the reduction that was launched has ended.
        WaitMissing = "wait-missing",
        /// Gradients cross the ranks in bf16, whatever `--comm-dtype` says (PyTorch #190626).
        ReducedInBf16 = "reduced-in-bf16",
        /// The last bucket waits for a parameter that this backward does not use, and stays.
        UnusedWaitedFor = "unused-waited-for",
        /// A parameter that is used in two places is put into the bucket for each of them.
        TiedReducedTwice = "tied-reduced-twice",
        /// The last rank leaves out one gradient reduction of the first step, as code does that
        /// branches on what this rank alone knows.
        CollectiveSkipped = "collective-skipped",
        /// The last rank reduces its first two buckets in the other order.
        CollectivesSwapped = "collectives-swapped",

        // Partitions.
        /// Two equal slices of the reduced gradient change places before the optimizer reads them.
        SlicesSwapped = "slices-swapped",
        /// Each rank reads its partition of the gradient one element too far.
        PartitionOffset = "partition-offset",
        /// The last rank takes the first one's partition for its own: that is owned twice, and the
        /// last one by nobody.
        PartitionOwnedTwice = "partition-owned-twice",
        /// The buffer in which averaged gradients are added up is not set to zero before the first
        /// step.
        BufferNotSet = "buffer-not-set",
        /// The padding behind the last parameter holds what was in memory before.
        PaddingNotZeroed = "padding-not-zeroed",

        // Offload.
        /// Gradients are copied to the host before the last bucket was reduced.
        OffloadCopiedEarly = "offload-copied-early",
        /// The host's gradients are those of the first step for ever.
        StaleHostBuffer = "stale-host-buffer",
        /// Gradients are copied to the host by a thread that nobody waits for, and that is late every
        /// other time, by chance.
        HostCopyRaces = "host-copy-races",

        // The step.
        /// Each rank decides by itself whether a gradient overflowed (DeepSpeed #7580).
        OverflowNotAgreed = "overflow-not-agreed",
        /// The loss scale is not taken out of the gradient.
        LossScaleKept = "loss-scale-kept",
        /// Each rank clips by the norm of its own partition.
        ClippedByLocalNorm = "clipped-by-local-norm",
        /// The gradient is clipped twice.
        ClippedTwice = "clipped-twice",
        /// The global norm counts what is replicated once for each rank.
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

impl Fault {
    /// Whether only the last rank has it.
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
