//! Batch sizes: `train_batch_size = micro batch × gradient accumulation × world size`.

/// Batch sizes of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    /// Samples per microbatch and rank.
    pub micro: usize,
    /// Microbatches per optimizer step.
    pub accumulation: usize,
}

/// Batch sizes as asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Asked {
    /// Samples per optimizer step, over all ranks.
    pub train: Option<usize>,
    /// Samples per microbatch and rank.
    pub micro: Option<usize>,
    /// Microbatches per optimizer step.
    pub accumulation: Option<usize>,
}

/// Reason why batch sizes cannot be inferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatchError {
    /// Neither the training batch nor the microbatch is known.
    Missing,
    /// The sizes inferred by integer division do not multiply to the training batch.
    Mismatch {
        /// Samples per optimizer step, as asked for.
        train: usize,
        /// Batch sizes as asked for or inferred.
        batch: Batch,
    },
}

impl Asked {
    /// Infers what was not asked for, dividing as DeepSpeed does, and checks the product:
    /// `DeepSpeedConfig._set_batch_related_parameters` and `_batch_assertion` in
    /// `runtime/config.py`. Nothing that was asked for may be 0, nor `world_size`.
    ///
    /// # Errors
    /// When nothing can be inferred, or the product is not what was asked for.
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

    /// World size that the three batch sizes imply; none unless all are given and divide evenly.
    pub(super) fn world_size(self) -> Option<usize> {
        let (train, micro, accumulation) = (self.train?, self.micro?, self.accumulation?);
        let per_rank = micro.checked_mul(accumulation)?;
        (train % per_rank == 0).then_some(train / per_rank)
    }
}

impl Batch {
    /// Samples per optimizer step, over all ranks.
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
            // Every batch that agrees with what was asked for.
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
                    // DeepSpeed takes ga = 1 where only the training batch is known.
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
