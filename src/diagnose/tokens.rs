//! Weights of target tokens in the update of a user's script: what each weighs in the loss that goes
//! backward, and the law that all of them follow.

use super::Case;
use super::bounds;
use super::observed::Tokens;
use crate::report::MicrobatchTokens;
use crate::report::words::weight_text;
use crate::spec::{Dtype, RunSpec, Weighting};

/// Law that the weights of tokens follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Law {
    /// Every token of a step weighs the same.
    Token,
    /// Every sample of a step weighs the same, and so do the tokens in it: a mean over samples of means.
    Sample,
    /// Every microbatch of a step weighs the same, and so do the tokens in it: a mean of means.
    Microbatch,
    /// None of these.
    None,
}

/// Weights of the target tokens of all recorded steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Weighed<'a> {
    /// The law that all steps follow.
    pub law: Law,
    /// True if every sample of a step weighs the same, whatever else does; none where tokens cannot be told
    /// apart by samples.
    pub by_samples: Option<bool>,
    /// The least weight of a token, as a multiple of the mean in its step.
    pub least: f64,
    /// The largest weight of a token, as a multiple of the mean in its step.
    pub most: f64,
    /// The recorded step that the fields below are about: that in which `total` is farthest from 1.
    pub step: usize,
    /// Sum of the weights of all tokens of the step in the update; none where gradients are clipped, or
    /// the factor behind the loss was not read.
    pub total: Option<f64>,
    /// Sum of the weights of terms without target tokens of the step in the update; none where there is
    /// no such term, or `total` is not known.
    pub others: Option<f64>,
    /// Microbatches of the step, as (rank, tokens).
    pub microbatches: Vec<(usize, Tokens<'a>)>,
}

/// Weighs the tokens of a script; none where some microbatch has no loss with target tokens.
pub fn weigh<'a>(case: &Case<'a>) -> Option<Weighed<'a>> {
    let observed = &case.observed;
    observed.spec.script()?;
    let mut all: Option<Weighed<'a>> = None;
    for step in observed.spec.recorded_steps() {
        let mut rows = Vec::new();
        for (rank, count) in observed.microbatches(step).into_iter().enumerate() {
            let is_due = |microbatch| !observed.set_aside.contains_key(&(step, rank, microbatch));
            let of_rank = observed.tokens.get(&(step, rank)).into_iter().flatten();
            let due: Vec<_> = of_rank.filter(|tokens| is_due(tokens.microbatch)).collect();
            if due.len() < (0..count).filter(|microbatch| is_due(*microbatch)).count() {
                return None;
            }
            rows.extend(due.into_iter().map(|tokens| (rank, *tokens)));
        }
        let weighed = in_step(case, step, rows)?;
        all = Some(match all {
            None => weighed,
            Some(first) => Weighed {
                law: match first.by_samples.zip(weighed.by_samples) {
                    _ if first.law == weighed.law => first.law,
                    Some((true, true)) => Law::Sample,
                    _ => Law::None,
                },
                by_samples: first
                    .by_samples
                    .zip(weighed.by_samples)
                    .map(|(one, other)| one && other),
                least: first.least.min(weighed.least),
                most: first.most.max(weighed.most),
                // The step in which the sum is farthest from that of a mean.
                ..if weighed.strangeness() > first.strangeness() { weighed } else { first }
            },
        });
    }
    all
}

/// Weights of the target tokens of each microbatch, in the step in which they are strangest.
pub fn table(case: &Case<'_>) -> Vec<MicrobatchTokens> {
    let Some(Weighed { step, microbatches, .. }) = weigh(case) else { return Vec::new() };
    let total: f64 = microbatches.iter().map(|(_, it)| it.total).sum();
    let mean = total / microbatches.iter().map(|(_, it)| it.tokens).sum::<usize>() as f64;
    let row = |(rank, it): (usize, Tokens<'_>)| MicrobatchTokens {
        step,
        rank,
        microbatch: it.microbatch,
        tokens: it.tokens,
        least: it.least / mean,
        most: it.most / mean,
        share: it.total / total,
    };
    microbatches.into_iter().map(row).collect()
}

fn in_step<'a>(
    case: &Case<'a>,
    step: usize,
    rows: Vec<(usize, Tokens<'a>)>,
) -> Option<Weighed<'a>> {
    let spec = case.observed.spec;
    let total: f64 = rows.iter().map(|(_, tokens)| tokens.total).sum();
    let count: usize = rows.iter().map(|(_, tokens)| tokens.tokens).sum();
    let mean = total / count as f64;
    let least = rows.iter().map(|(_, tokens)| tokens.least / mean).reduce(f64::min)?;
    let most = rows.iter().map(|(_, tokens)| tokens.most / mean).reduce(f64::max)?;
    let slack = match spec.dtype {
        Dtype::Fp32 => bounds::SAME_TOKEN,
        Dtype::Bf16 | Dtype::Fp16 => bounds::SAME_TOKEN_NARROW,
    };
    let alike = |least: f64, most: f64| least > 0.0 && most - least <= slack * most;
    let totals = || rows.iter().map(|(_, tokens)| tokens.total / total);
    let (smallest, largest) = (totals().reduce(f64::min)?, totals().reduce(f64::max)?);
    let uniform = rows.iter().all(|(_, it)| alike(it.least / mean, it.most / mean));
    let by_samples = is_of_samples(&rows, slack);
    let law = if alike(least, most) {
        Law::Token
    } else if uniform && alike(smallest, largest) {
        Law::Microbatch
    } else if by_samples == Some(true) {
        Law::Sample
    } else {
        Law::None
    };
    // Clipping multiplies with any number, an average and the end of loss scaling with a few: only where
    // it is one of these, the factor says nothing but how gradients are summed.
    let is_plain = |factor: &&f64| {
        let exponent = (*factor * spec.world_size as f64).log2();
        (exponent - exponent.round()).abs() < slack || (*factor - 1.0).abs() < slack
    };
    // Ranks of a group that splits the model see the same tokens.
    let are_replicas = case.observed.replicas() == spec.world_size;
    let factor = case.decoded.factors.get(&(step, 0)).filter(is_plain).filter(|_| are_replicas);
    let others = rows.iter().filter_map(|(_, tokens)| tokens.others).reduce(|sum, it| sum + it);
    Some(Weighed {
        law,
        by_samples,
        least,
        most,
        step,
        total: factor.map(|it| it * total),
        others: factor.zip(others).map(|(factor, others)| factor * others),
        microbatches: rows,
    })
}

/// True if the tokens of each sample share one and the same weight; none where that is not known. Tokens
/// beside each other that weigh the same are one sample or several.
fn is_of_samples(rows: &[(usize, Tokens<'_>)], slack: f64) -> Option<bool> {
    if rows.iter().any(|(_, tokens)| tokens.runs.is_empty()) {
        return None;
    }
    let runs = || rows.iter().flat_map(|(_, tokens)| tokens.runs);
    let &(count, weight) = runs().next()?;
    let fits = |sample: f64, &(count, weight): &(usize, f64)| {
        let samples = count as f64 * weight / sample;
        let whole = samples.round();
        let error = slack * whole;
        error <= bounds::COUNTABLE
            && (samples - whole).abs() <= error
            && (1.0..=count as f64).contains(&whole)
    };
    let samples = (1..=count).map(|samples| count as f64 * weight / samples as f64);
    Some(samples.into_iter().any(|sample| runs().all(|run| fits(sample, run))))
}

impl Weighed<'_> {
    /// True if the weights are what the user demands: the law, and a sum that no slip explains.
    pub fn is(&self, demanded: Weighting, spec: &RunSpec) -> bool {
        let counts = || self.microbatches.iter().map(|(_, it)| it.tokens);
        // Where all microbatches have as many tokens, all laws may hold at once.
        let is_any = self.law == Law::Token && counts().min() == counts().max();
        let law = match demanded {
            Weighting::Any => return true,
            Weighting::Token => self.law == Law::Token,
            Weighting::Sample if self.law == Law::Token => is_any,
            Weighting::Sample => self.by_samples != Some(false),
            Weighting::Microbatch => self.law == Law::Microbatch || is_any,
        };
        law && self.slips(spec).is_empty()
    }

    /// Distance of the sum of all weights from that of a mean.
    fn strangeness(&self) -> f64 {
        self.total.map_or(0.0, |total| total.abs().ln().abs())
    }

    /// The slips that explain the sum of all weights, in words; none if it is that of a mean.
    fn slips(&self, spec: &RunSpec) -> Vec<&'static str> {
        let (ga, world) = (spec.gradient_accumulation_steps as f64, spec.world_size as f64);
        let is = |wanted: f64| {
            self.total.is_some_and(|total| (total / wanted - 1.0).abs() < bounds::SAME_SCALE)
        };
        let of_rank = |rank: usize| self.microbatches.iter().filter(|(it, _)| *it == rank).count();
        let taken = (0..spec.world_size).map(of_rank).max().unwrap_or(0) as f64;
        let known = [
            (
                taken / ga,
                "divided by the accumulation steps although the step has fewer microbatches",
            ),
            (1.0 / ga, "divided by the accumulation steps twice"),
            (ga, "never divided by the accumulation steps"),
            (1.0 / world, "divided by the number of ranks twice"),
            (world, "summed over the ranks and not divided by their number"),
        ];
        let fits = |(wanted, _): &(f64, &str)| !is(1.0) && is(*wanted);
        known.into_iter().filter(fits).map(|(_, slip)| slip).collect()
    }

    /// The law in words.
    pub fn describe(&self) -> String {
        let range =
            format!("{} to {} times the mean", weight_text(self.least), weight_text(self.most));
        match self.law {
            Law::Token => "every target token of a step weighs the same".to_owned(),
            Law::Sample => format!(
                "every sample weighs the same, so that target tokens weigh {range}: a mean over samples \
                 of means"
            ),
            Law::Microbatch => format!(
                "every microbatch weighs the same, so that target tokens weigh {range}: a mean of means"
            ),
            Law::None => format!("target tokens weigh {range}"),
        }
    }

    /// The sum of all weights of a step in words; none where it was not read.
    pub fn sum(&self, spec: &RunSpec) -> Option<String> {
        let text = weight_text(self.total?);
        let slips = self.slips(spec);
        Some(if slips.is_empty() {
            text
        } else {
            format!("{text}, as if the loss were {}", slips.join(", or "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(runs: &[(usize, f64)]) -> Tokens<'_> {
        Tokens {
            microbatch: 0,
            tokens: runs.iter().map(|(count, _)| count).sum(),
            least: 0.0,
            most: 0.0,
            total: 0.0,
            others: None,
            runs,
        }
    }

    fn by_samples(microbatches: &[&[(usize, f64)]]) -> Option<bool> {
        let rows: Vec<_> = microbatches.iter().map(|runs| (0, tokens(runs))).collect();
        is_of_samples(&rows, 1e-3)
    }

    #[test]
    fn samples_are_recognised_by_their_lengths_also_where_neighbours_are_equally_long() {
        let (third, fifth) = (0.1 / 3.0, 0.1 / 5.0);
        assert_eq!(
            by_samples(&[&[(3, third), (5, fifth)], &[(10, fifth), (3, third)]]),
            Some(true)
        );
        assert_eq!(by_samples(&[&[(3, third)], &[(5, fifth)]]), Some(true));
        // Samples of 1500 and 1501 tokens, which were taken for a run.
        assert_eq!(by_samples(&[&[(3, third)], &[(3001, 0.2 / 3001.0)]]), Some(true));
    }

    #[test]
    fn weights_of_classes_or_of_unread_runs_are_no_samples() {
        assert_eq!(by_samples(&[&[(2, 1.0), (1, 0.5), (3, 1.0)]]), Some(false));
        assert_eq!(by_samples(&[&[(3, 0.7), (5, 0.3)]]), Some(false));
        // So many tokens that some number of samples always fits.
        assert_eq!(by_samples(&[&[(600, 0.7), (601, 0.31)]]), Some(false));
        assert_eq!(by_samples(&[&[(3, 0.7)], &[]]), None);
    }
}
