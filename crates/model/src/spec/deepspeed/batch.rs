//! Batch sizes: `train_batch_size = micro batch × gradient accumulation × world size`.

use super::Reader;
use crate::spec::{DEFAULT_WORLD_SIZE, SpecRequest};

/// The keys of the three batch sizes, in the order of the fields of [`Asked`].
const KEYS: [&str; 3] =
    ["/train_batch_size", "/train_micro_batch_size_per_gpu", "/gradient_accumulation_steps"];

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

impl Reader<'_> {
    /// Fills the world size, the microbatch size and the gradient accumulation steps.
    pub(super) fn fill_batch(&mut self, request: &mut SpecRequest) {
        // A flag with the value 0 is refused elsewhere; here it would be a divisor.
        if request.world_size == Some(0) {
            return;
        }
        let sizes = KEYS.map(|key| self.whole(key, 1).map(|size| size as usize));
        let given: Vec<&str> = KEYS.into_iter().filter(|key| self.value(key).is_some()).collect();
        let is_auto = KEYS.iter().any(|key| self.is_auto(key));
        let [train, micro, accumulation] = sizes;
        let mut asked = Asked {
            train,
            micro: request.micro_batch_size.or(micro),
            accumulation: request.gradient_accumulation_steps.or(accumulation),
        };
        if let (Some(train), Some(winner)) = (train, winning_flag(request)) {
            asked.train = None;
            self.note(
                &KEYS[..1],
                &format!("{train} is dropped, since {winner} overrides the file"),
            );
        }
        let world_size = request.world_size.or_else(|| self.infer_world_size(asked, &given));
        let world_size =
            *request.world_size.get_or_insert(world_size.unwrap_or(DEFAULT_WORLD_SIZE));
        // The framework that fills in an "auto" makes the value fit the others, so nothing is inferred.
        let inferred = if is_auto { Err(BatchError::Missing) } else { asked.infer(world_size) };
        match inferred {
            Ok(Batch { micro, accumulation }) => {
                asked = Asked { train: None, micro: Some(micro), accumulation: Some(accumulation) };
            }
            Err(BatchError::Mismatch { train, batch }) => {
                self.problem(&given, &mismatch(train, batch, asked, world_size));
            }
            Err(BatchError::Missing) => {
                if !is_auto && given.iter().all(|key| *key == KEYS[2]) {
                    let text = "neither train_batch_size nor train_micro_batch_size_per_gpu is given, and DeepSpeed \
                                needs one of them; add train_micro_batch_size_per_gpu";
                    self.problem(&[], text);
                }
            }
        }
        request.micro_batch_size = asked.micro;
        request.gradient_accumulation_steps = asked.accumulation;
    }

    /// The number of ranks that the file was written for, if its batch sizes imply one.
    fn infer_world_size(&mut self, asked: Asked, given: &[&str]) -> Option<usize> {
        let world_size = asked.world_size()?;
        let (train, micro, ga) = (asked.train?, asked.micro?, asked.accumulation?);
        let fewer = if world_size > DEFAULT_WORLD_SIZE {
            format!(
                "; --nproc-per-node {DEFAULT_WORLD_SIZE} --ga {ga} runs the file with fewer ranks"
            )
        } else {
            String::new()
        };
        let text = format!(
            "{train} = {micro} × {ga} × {world_size}, so the file was written for {world_size} \
             ranks, and runs with that many{fewer}"
        );
        self.note(given, &text);
        Some(world_size)
    }
}

/// The flag, with its value, that conflicts with the file's `train_batch_size`; `None` if no flag does.
fn winning_flag(request: &SpecRequest) -> Option<String> {
    let ga = request.gradient_accumulation_steps.map(|ga| format!("--ga {ga}"));
    ga.or_else(|| request.micro_batch_size.map(|micro| format!("--micro-batch-size {micro}")))
}

/// The message that the batch sizes do not multiply to the training batch size.
fn mismatch(train: usize, batch: Batch, asked: Asked, world_size: usize) -> String {
    let inferred = |asked: Option<usize>| if asked.is_none() { " (inferred)" } else { "" };
    let Batch { micro, accumulation } = batch;
    let all_given = asked.micro.is_some() && asked.accumulation.is_some();
    let advice = match asked.world_size() {
        Some(fitting) => format!("pass --nproc-per-node {fitting}, for which it holds,"),
        None if all_given => "no world size fits: change one of the sizes,".to_owned(),
        None => "change one of the sizes or --nproc-per-node,".to_owned(),
    };
    format!(
        "train_batch_size = micro × ga × world does not hold: {train} ≠ {micro}{} × \
         {accumulation}{} × {world_size}; {advice} or pass --ga {} to ignore train_batch_size",
        inferred(asked.micro),
        inferred(asked.accumulation),
        accumulation.max(1),
    )
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
