//! Slips that multiply the weights of a whole term, and what they are called.

use super::Row;
use zprobe_model::spec::Scale;

/// A part of a step: the microbatches of a rank, one microbatch of every rank, or one of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// The rank; none for all of them.
    pub rank: Option<usize>,
    /// The microbatch; none for all of them.
    pub microbatch: Option<usize>,
}

impl Part {
    /// True if a microbatch belongs to the part.
    pub fn has(self, row: &Row<'_>) -> bool {
        self.rank.is_none_or(|rank| rank == row.rank)
            && self.microbatch.is_none_or(|microbatch| microbatch == row.loss.microbatch)
    }

    /// The part in words.
    fn describe(self) -> String {
        match (self.rank, self.microbatch) {
            (Some(rank), None) => format!("rank {rank}"),
            (None, Some(microbatch)) => format!("microbatch {microbatch}"),
            (Some(rank), Some(microbatch)) => format!("microbatch {microbatch} of rank {rank}"),
            (None, None) => "the step".to_owned(),
        }
    }
}

/// A slip that multiplies all weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Slip {
    /// Divided by the accumulation steps twice.
    DividedBySteps,
    /// Never divided by the accumulation steps.
    NotDividedBySteps,
    /// Divided by the number of ranks twice.
    DividedByRanks,
    /// Summed over the ranks, and not divided by their number.
    NotDividedByRanks,
    /// Divided by the accumulation steps and by the ranks once more.
    DividedByBoth,
    /// Divided neither by the accumulation steps nor by the ranks.
    NotDividedByEither,
    /// Multiplied with the number of ranks, and divided by the accumulation steps once more.
    RanksForSteps,
    /// Never divided by the accumulation steps, and by the ranks once more.
    StepsForRanks,
    /// Multiplied with a loss scale that was never taken out.
    Scaled,
    /// Divided by the loss scale twice.
    UnscaledTwice,
    /// Divided by the accumulation steps or by the ranks twice, which are as many.
    DividedByOneOfBoth,
    /// Divided by a count over a part of the step.
    Counted(Part),
    /// Averaged over its elements, and divided by a number of them again.
    AveragedAgain,
    /// Divided by a count of more than the elements.
    CountedTooMuch,
    /// In some microbatches of the step alone, or on some ranks, and divided by the number of all.
    InSome,
    /// Divided by another number than that of its microbatches.
    OtherCount(usize),
    /// Divided by a count that leaves out a part of the step.
    LeftOut(Part),
}

impl Slip {
    /// True for a division by a number of elements that are not those of the loss.
    pub fn is_count(self) -> bool {
        matches!(self, Self::Counted(_) | Self::CountedTooMuch | Self::LeftOut(_))
    }

    /// True if the slip is what the user demands.
    pub fn is_meant(self, demanded: Scale) -> bool {
        match demanded {
            Scale::Any => true,
            Scale::Sum => matches!(
                self,
                Self::NotDividedBySteps | Self::NotDividedByRanks | Self::NotDividedByEither
            ),
            Scale::Mean => false,
        }
    }

    /// The slip in words: what happened to the loss.
    pub fn describe(self, steps: usize, ranks: usize) -> String {
        match self {
            Self::DividedBySteps => format!("divided by the accumulation steps ({steps}) twice"),
            Self::NotDividedBySteps => format!("never divided by the accumulation steps ({steps})"),
            Self::DividedByRanks => format!("divided by the number of ranks ({ranks}) twice"),
            Self::NotDividedByRanks => {
                format!("summed over the ranks and not divided by their number ({ranks})")
            }
            Self::DividedByBoth => {
                format!(
                    "divided by the accumulation steps ({steps}) and by the ranks ({ranks}) once too often"
                )
            }
            Self::NotDividedByEither => {
                format!(
                    "divided neither by the accumulation steps ({steps}) nor by the ranks ({ranks})"
                )
            }
            Self::RanksForSteps => format!(
                "not divided by the ranks ({ranks}), and by the accumulation steps ({steps}) twice"
            ),
            Self::StepsForRanks => format!(
                "never divided by the accumulation steps ({steps}), and by the ranks ({ranks}) twice"
            ),
            Self::Scaled => "multiplied by a loss scale that was never taken out".to_owned(),
            Self::UnscaledTwice => "divided by the loss scale twice".to_owned(),
            Self::DividedByOneOfBoth => format!(
                "divided by the accumulation steps or by the number of ranks ({ranks} each) once too often"
            ),
            Self::InSome => {
                "some microbatches or ranks alone have it, and it is divided by the number of all"
                    .to_owned()
            }
            Self::OtherCount(count) => {
                format!("divided by {count}, and {steps} microbatches have it")
            }
            Self::LeftOut(part) => format!(
                "divided by the number of elements of the step without {}, although that goes backward, too",
                part.describe()
            ),
            Self::AveragedAgain => {
                "averaged over its elements, and divided by a number of elements again".to_owned()
            }
            Self::CountedTooMuch => {
                "divided by a count of more than its target tokens, such as padding or the first \
                                     token of each sample"
                    .to_owned()
            }
            Self::Counted(part) => {
                format!(
                    "divided by the elements of {} alone, and not by those of the step",
                    part.describe()
                )
            }
        }
    }
}
