//! Batch sizes: `train_batch_size = micro batch × gradient accumulation × world size`.

/// The batch sizes of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    /// The number of samples per microbatch and rank.
    pub micro: usize,
    /// The number of microbatches per optimizer step.
    pub accumulation: usize,
}

/// The batch sizes that the file and the flags give; a size that neither gives is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Asked {
    /// The number of samples per optimizer step, over all ranks.
    pub train: Option<usize>,
    /// The number of samples per microbatch and rank.
    pub micro: Option<usize>,
    /// The number of microbatches per optimizer step.
    pub accumulation: Option<usize>,
}

/// The reason why the batch sizes cannot be inferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatchError {
    /// Neither the training batch size nor the microbatch size is known.
    Missing,
    /// The sizes were inferred by integer division, and their product is not the training batch size.
    Mismatch {
        /// The requested number of samples per optimizer step.
        train: usize,
        /// The batch sizes, requested or inferred.
        batch: Batch,
    },
}

impl Asked {
    /// Infers the missing batch sizes by DeepSpeed's divisions, and checks the product:
    /// `DeepSpeedConfig._set_batch_related_parameters` and `_batch_assertion` in `runtime/config.py`. Neither the
    /// requested sizes nor `world_size` may be 0.
    ///
    /// # Errors
    /// Fails if nothing can be inferred, or if the product is not the requested training batch size.
    pub(super) fn infer(self, world_size: usize) -> Result<Batch, BatchError> {
        let (micro, accumulation) = match (self.train, self.micro, self.accumulation) {
            (_, Some(micro), Some(accumulation)) => (micro, accumulation),
            (Some(train), Some(micro), None) => (micro, train / micro / world_size),
            (Some(train), None, Some(accumulation)) => {
                (train / world_size / accumulation, accumulation)
            }
            (Some(train), None, None) => (train / world_size, 1),
            (None, Some(micro), None) => (micro, 1),
            (None, None, _) => return Err(BatchError::Missing),
        };
        let batch = Batch { micro, accumulation };
        match self.train {
            Some(train) if batch.train(world_size) != Some(train) => {
                Err(BatchError::Mismatch { train, batch })
            }
            _ => Ok(batch),
        }
    }

    /// The world size that the three batch sizes imply; `None` unless all three are given and divide evenly.
    pub(super) fn world_size(self) -> Option<usize> {
        let (train, micro, accumulation) = (self.train?, self.micro?, self.accumulation?);
        let per_rank = micro.checked_mul(accumulation)?;
        (train % per_rank == 0).then_some(train / per_rank)
    }
}

impl Batch {
    /// The number of samples per optimizer step, over all ranks; `None` if it overflows.
    fn train(self, world_size: usize) -> Option<usize> {
        self.micro.checked_mul(self.accumulation)?.checked_mul(world_size)
    }
}

#[cfg(test)]
mod tests {
    use proptest::option;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn inferred_sizes_multiply_to_what_was_asked_for(
            train in option::of(1usize..=64),
            micro in option::of(1usize..=8),
            accumulation in option::of(1usize..=8),
            world_size in 1usize..=8,
        ) {
            let asked = Asked { train, micro, accumulation };
            // True for a batch that agrees with all requested sizes.
            let fits = |batch: Batch| {
                micro.is_none_or(|micro| micro == batch.micro)
                    && accumulation.is_none_or(|ga| ga == batch.accumulation)
                    && train.is_none_or(|t| t == batch.micro * batch.accumulation * world_size)
            };
            match asked.infer(world_size) {
                Ok(batch) => {
                    prop_assert!(fits(batch));
                    prop_assert!(batch.micro > 0 && batch.accumulation > 0);
                    prop_assert!(accumulation.is_some() || train.and(micro).is_some()
                        || batch.accumulation == 1);
                }
                Err(BatchError::Missing) => prop_assert!(train.is_none() && micro.is_none()),
                Err(BatchError::Mismatch { .. }) => {
                    // If only the training batch size is known, DeepSpeed assumes ga = 1.
                    let accumulations = match (micro, accumulation) {
                        (None, None) => 1..=1,
                        _ => 1..=64,
                    };
                    for ga in accumulations {
                        for micro in 1..=64 {
                            let batch = Batch { micro, accumulation: ga };
                            prop_assert!(!fits(batch));
                        }
                    }
                }
            }
        }

        #[test]
        fn world_size_is_the_only_one_that_fits(
            micro in 1usize..=8, accumulation in 1usize..=8, train in 1usize..=256,
        ) {
            let asked =
                Asked { train: Some(train), micro: Some(micro), accumulation: Some(accumulation) };
            let fitting = (1..=256).find(|&world_size| asked.infer(world_size).is_ok());
            prop_assert_eq!(asked.world_size(), fitting);
        }
    }
}
