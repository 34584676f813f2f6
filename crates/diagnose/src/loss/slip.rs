//! The known mistakes (*slips*) that multiply the weights of a whole term of the loss, and their descriptions in
//! messages.

use super::MicrobatchTerm;
use zprobe_model::spec::Scale;

/// A part of a step: all microbatches of a rank, one microbatch of every rank, or one microbatch of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepPart {
    /// The rank; `None` for all ranks.
    pub rank: Option<usize>,
    /// The microbatch; `None` for all microbatches.
    pub microbatch: Option<usize>,
}

impl StepPart {
    /// True if the part includes this microbatch.
    pub fn has(self, row: &MicrobatchTerm<'_>) -> bool {
        self.rank.is_none_or(|rank| rank == row.rank)
            && self.microbatch.is_none_or(|microbatch| microbatch == row.loss.microbatch)
    }

    /// Describes the part, such as "microbatch 1 of rank 0".
    fn describe(self) -> String {
        match (self.rank, self.microbatch) {
            (Some(rank), None) => format!("rank {rank}"),
            (None, Some(microbatch)) => format!("microbatch {microbatch}"),
            (Some(rank), Some(microbatch)) => format!("microbatch {microbatch} of rank {rank}"),
            (None, None) => "the step".to_owned(),
        }
    }
}

/// A mistake that multiplies all weights of a term of the loss by the same factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TermSlip {
    /// The loss is divided by the accumulation steps twice.
    DividedBySteps,
    /// The loss is never divided by the accumulation steps.
    NotDividedBySteps,
    /// The loss is divided by the number of ranks twice.
    DividedByRanks,
    /// The loss is summed over the ranks, and not divided by their number.
    NotDividedByRanks,
    /// The loss is divided by the accumulation steps and by the number of ranks once more than needed.
    DividedByBoth,
    /// The loss is divided neither by the accumulation steps nor by the number of ranks.
    NotDividedByEither,
    /// The loss is multiplied by the number of ranks, and divided by the accumulation steps once more than needed.
    RanksForSteps,
    /// The loss is never divided by the accumulation steps, but by the number of ranks once more than needed.
    StepsForRanks,
    /// The loss is multiplied by a loss scale that was never taken out.
    Scaled,
    /// The loss is divided by the loss scale twice.
    UnscaledTwice,
    /// The loss is divided twice by the accumulation steps or by the number of ranks, which are equal.
    DividedByOneOfBoth,
    /// The loss is never divided by the accumulation steps or by the number of ranks, which are equal.
    NotDividedByOneOfBoth,
    /// The loss is divided by the number of elements of only a part of the step.
    Counted(StepPart),
    /// The loss is averaged over its elements, and divided by a number of elements again.
    AveragedAgain,
    /// The loss is divided by a count that is larger than the number of its elements.
    CountedTooMuch,
    /// Only some microbatches or ranks have the term, but it is divided by the number of all of them.
    InSome,
    /// The term is divided by a number other than that of its microbatches.
    OtherCount(usize),
    /// The loss is divided by a count that leaves out a part of the step.
    LeftOut(StepPart),
}

impl TermSlip {
    /// True for a division by a number of elements other than that of the elements of the loss.
    pub fn is_count(self) -> bool {
        matches!(self, Self::Counted(_) | Self::CountedTooMuch | Self::LeftOut(_))
    }

    /// True for one missing or repeated division by the accumulation steps or the ranks.
    pub fn is_of_one_count(self) -> bool {
        matches!(
            self,
            Self::NotDividedBySteps
                | Self::DividedBySteps
                | Self::NotDividedByRanks
                | Self::DividedByRanks
                | Self::NotDividedByOneOfBoth
                | Self::DividedByOneOfBoth
        )
    }

    /// True if this is no mistake, because the user demands the scale to which it leads.
    pub fn is_meant(self, demanded: Scale) -> bool {
        match demanded {
            Scale::Any => true,
            Scale::Sum => matches!(
                self,
                Self::NotDividedBySteps
                    | Self::NotDividedByRanks
                    | Self::NotDividedByEither
                    | Self::NotDividedByOneOfBoth
            ),
            Scale::Mean => false,
        }
    }

    /// Describes what happened to the loss, for a message.
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
                    "divided twice by both the accumulation steps ({steps}) and the ranks ({ranks})"
                )
            }
            Self::NotDividedByEither => {
                format!(
                    "divided neither by the accumulation steps ({steps}) nor by the ranks ({ranks})"
                )
            }
            Self::RanksForSteps => format!(
                "not divided by the ranks ({ranks}), but divided by the accumulation steps ({steps}) twice"
            ),
            Self::StepsForRanks => format!(
                "never divided by the accumulation steps ({steps}), but divided by the ranks ({ranks}) twice"
            ),
            Self::Scaled => "multiplied by a loss scale that was never divided out".to_owned(),
            Self::UnscaledTwice => "divided by the loss scale twice".to_owned(),
            Self::DividedByOneOfBoth => format!(
                "divided twice by the accumulation steps or by the number of ranks ({ranks} each)"
            ),
            Self::NotDividedByOneOfBoth => format!(
                "never divided by the accumulation steps, or summed over the ranks and not divided by their number \
                 ({ranks} each)"
            ),
            Self::InSome => {
                "only some microbatches or ranks have this term, but it is divided by the number of all"
                    .to_owned()
            }
            Self::OtherCount(count) => {
                let have = if steps == 1 { "microbatch has" } else { "microbatches have" };
                format!("divided by {count}, but {steps} {have} this term")
            }
            Self::LeftOut(part) => format!(
                "divided by the number of elements of the step, but without the elements of {}, which have \
                 gradients too",
                part.describe()
            ),
            Self::AveragedAgain => {
                "averaged over its elements, and then divided by a number of elements again".to_owned()
            }
            Self::CountedTooMuch => {
                "divided by a count that includes more than target tokens, such as padding or the first token of \
                 each sample"
                    .to_owned()
            }
            Self::Counted(part) => {
                format!(
                    "divided by the number of elements of {}, and not of the whole step",
                    part.describe()
                )
            }
        }
    }
}
