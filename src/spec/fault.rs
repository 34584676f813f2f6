//! The faults that the native engine can be told to have.

use super::named_enum;

named_enum! {
    /// A deliberate slip at one named point of the dataflow (`--inject`).
    ///
    /// Each is a mistake that a real engine made or could make; `zprobe list faults` prints them.
    pub enum Fault {
        /// Reduce before the boundary microbatch is accumulated, then accumulate it locally
        /// (DeepSpeed PR #7985, `DeepSpeedEngine._backward_epilogue`).
        BoundaryLeak = "boundary-leak",
        /// The first microbatch of each step never reaches the accumulator, on every rank.
        MicrobatchDropped = "microbatch-dropped",
        /// The first microbatch of each step is accumulated twice, on every rank.
        MicrobatchDoubled = "microbatch-doubled",
        /// The reduction across ranks is skipped: each rank steps on its own gradients.
        NotAveraged = "not-averaged",
        /// The gradient is divided by the accumulation steps twice.
        GaScaledTwice = "ga-scaled-twice",
        /// The accumulator is not zeroed after the optimizer step.
        AccumulatorNotZeroed = "accumulator-not-zeroed",
        /// One element of the last rank's first microbatch is infinite.
        InfinityOnOneRank = "infinity-on-one-rank",
        /// Two equal slices of the reduced gradient change places before the optimizer reads them.
        SlicesSwapped = "slices-swapped",
        /// No gradient hook fires on any rank (DeepSpeed issues #7579 and #7595).
        DeadHooks = "dead-hooks",
        /// Every microbatch's backward ends with a flush of the IPG bucket, filled or not.
        EmptyBucketFlush = "empty-bucket-flush",
        /// The last rank puts its parameters into the all-gather without having updated them: its
        /// partition stays stale on every rank.
        StaleAllGather = "stale-all-gather",
        /// The last rank does not copy the all-gathered parameters back: its model stays stale.
        UpdateNotCopied = "update-not-copied",
        /// The last rank skips its optimizer step.
        StepSkipped = "step-skipped",
        /// The last rank leaves out one gradient reduction of the first step, as code does that
        /// branches on what this rank alone knows.
        CollectiveSkipped = "collective-skipped",
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
