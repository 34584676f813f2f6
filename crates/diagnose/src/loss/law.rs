//! The law by which the elements of a term of the loss are weighted, such as a mean over tokens.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::{MicrobatchTerm, StepTerm};
use crate::bounds;
use zprobe_model::spec::{Dtype, RunSpec, Weighting};
use zprobe_model::trace::{ConstantKind, LossTerm, TermOf};
use zprobe_report::words::{abridged, counted, weight_text};

/// The law that the weights of the elements of a step follow.
#[derive(Clone, Debug, PartialEq)]
pub enum Law {
    /// Every element weighs the same.
    Token,
    /// Every sample weighs the same, and so do the elements in a sample: a mean over samples of means.
    Sample,
    /// Every microbatch weighs the same, and so do the elements in a microbatch: a mean of means.
    Microbatch,
    /// Every rank weighs the same, and so do the elements on a rank: each rank divides by its own count.
    Rank,
    /// The elements of some microbatches weigh this multiple of all other elements.
    But(Odd, f64),
    /// The elements of each microbatch weigh this multiple of those of the first microbatch, on every rank.
    Graded(Vec<f64>),
    /// The script gives elements their own weights.
    Own,
    /// The weights follow none of the other laws.
    None,
}

/// The microbatches whose elements weigh more or less than those of the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Odd {
    /// These microbatches on every rank.
    Microbatches(Vec<usize>),
    /// All microbatches of these ranks.
    Ranks(Vec<usize>),
    /// One microbatch of one rank, as (rank, microbatch).
    One(usize, usize),
}

impl Odd {
    /// Returns the microbatches with these indices in `rows`; `None` if these are neither all microbatches of some
    /// ranks, nor some microbatches of every rank.
    pub fn of(rows: &[MicrobatchTerm<'_>], odd: &[usize]) -> Option<Self> {
        if let [only] = odd[..] {
            return Some(Self::One(rows[only].rank, rows[only].loss.microbatch));
        }
        let which = |place: fn(&MicrobatchTerm<'_>) -> usize| -> Option<Vec<usize>> {
            let members: BTreeSet<usize> = odd.iter().map(|&at| place(&rows[at])).collect();
            let all = rows.iter().filter(|row| members.contains(&place(row))).count();
            (all == odd.len()).then(|| members.into_iter().collect())
        };
        let of_ranks = which(|row| row.rank).map(Self::Ranks);
        of_ranks.or_else(|| which(|row| row.loss.microbatch).map(Self::Microbatches))
    }

    /// Describes the microbatches, such as "microbatch 1 of rank 0".
    pub fn describe(&self) -> String {
        match self {
            Self::Microbatches(which) => format!("{} of every rank", counted("microbatch", which)),
            Self::Ranks(which) => counted("rank", which),
            Self::One(rank, microbatch) => format!("microbatch {microbatch} of rank {rank}"),
        }
    }

    /// Describes the weight of the microbatches: "the loss of rank 1 has 2 times the weight of the others".
    pub fn weighs(&self, times: f64) -> String {
        let times = weight_text(times);
        format!("the loss of {} has {times} times the weight of the others", self.describe())
    }
}

/// The weights of a term's elements in one step.
#[derive(Clone, Debug, PartialEq)]
pub struct ElementWeights {
    /// The law that the weights follow.
    pub law: Law,
    /// True if every sample weighs the same; `None` if samples cannot be told apart.
    pub by_samples: Option<bool>,
    /// True if all microbatches have the same number of elements, so that several laws hold at once.
    pub is_any: bool,
    /// The smallest weight of an element, as a multiple of the mean weight.
    pub least: f64,
    /// The largest weight of an element, as a multiple of the mean weight.
    pub most: f64,
}

/// Reads the law of a term; `None` if the term has no elements.
pub fn read(spec: &RunSpec, term: &StepTerm<'_>) -> Option<ElementWeights> {
    let rows = &term.rows;
    let mean = term.total() / term.elements() as f64;
    let mean =
        if term.of() == TermOf::Parameters { term.total() / rows.len() as f64 } else { mean };
    let least = rows.iter().map(|row| row.term.least / mean).reduce(f64::min)?;
    let most = rows.iter().map(|row| row.term.most / mean).reduce(f64::max)?;
    let slack = slack(spec);
    let counts = || rows.iter().map(|row| row.elements);
    let is_any = counts().min() == counts().max();
    let is_even = |row: &MicrobatchTerm<'_>| alike([row.term.least, row.term.most], slack);
    let even = rows.iter().all(is_even);
    let total = |row: &MicrobatchTerm<'_>| row.total;
    let by_samples = is_of_samples(rows, slack);
    let law = if alike(rows.iter().flat_map(|row| [row.term.least, row.term.most]), slack) {
        Law::Token
    } else if even && alike(rows.iter().map(total), slack) {
        Law::Microbatch
    } else if even
        && alike(by_microbatch(rows, total), slack)
        && is_by(rows, slack, |row| row.loss.microbatch)
    {
        // For this mean of means, the elements of all ranks in one microbatch count as a single microbatch.
        Law::Microbatch
    } else if by_samples == Some(true) {
        Law::Sample
    } else if even
        && (is_by(rows, slack, |row| row.rank) || is_one_by_rank(rows))
        && is_of_ranks(rows, slack)
    {
        Law::Rank
    } else if is_mixed(rows, slack) {
        Law::Own
    } else if let Some((odd, times)) = odd(rows, even, slack) {
        Law::But(odd, times)
    } else if !even || rows.iter().any(|row| row.term.weighted) || has_own_weights(rows) {
        Law::Own
    } else {
        graded(rows, slack).map_or(Law::None, Law::Graded)
    };
    Some(ElementWeights { law, by_samples, is_any, least, most })
}

/// True if the script mixes several losses of one kind, as mixup does: in each microbatch, their weights add up to the
/// same weight.
fn is_mixed(rows: &[MicrobatchTerm<'_>], slack: f64) -> bool {
    let kind = |it: &LossTerm| (it.of, it.name.clone(), it.elements);
    let alike_terms = |row: &MicrobatchTerm<'_>| {
        let of = kind(row.term);
        let totals = row.loss.terms.iter().filter(|it| kind(it) == of).map(|it| it.total);
        totals.collect::<Vec<f64>>()
    };
    let sum = |row: &MicrobatchTerm<'_>| alike_terms(row).into_iter().sum::<f64>();
    rows.iter().all(|row| alike_terms(row).len() > 1)
        && (alike(rows.iter().map(sum), slack)
            || alike(rows.iter().map(|row| sum(row) / row.elements as f64), slack))
}

/// The largest difference of two equal weights, as a share of one of them.
fn slack(spec: &RunSpec) -> f64 {
    match spec.dtype {
        Dtype::Fp32 => bounds::SAME_TOKEN,
        Dtype::Bf16 | Dtype::Fp16 => bounds::SAME_TOKEN_NARROW,
    }
}

/// True if all numbers are equal and none is 0.
fn alike(numbers: impl IntoIterator<Item = f64>, slack: f64) -> bool {
    let numbers: Vec<f64> = numbers.into_iter().collect();
    let Some(first) = numbers.first() else { return false };
    *first != 0.0 && numbers.iter().all(|it| (it / first - 1.0).abs() <= slack)
}

/// Returns the sums over the ranks, by microbatch.
fn by_microbatch(
    rows: &[MicrobatchTerm<'_>],
    number: impl Fn(&MicrobatchTerm<'_>) -> f64,
) -> Vec<f64> {
    sums(rows, |row| row.loss.microbatch, number)
}

/// Returns the sums over the microbatches, by rank.
fn by_rank(rows: &[MicrobatchTerm<'_>], number: impl Fn(&MicrobatchTerm<'_>) -> f64) -> Vec<f64> {
    sums(rows, |row| row.rank, number)
}

fn sums(
    rows: &[MicrobatchTerm<'_>],
    place: impl Fn(&MicrobatchTerm<'_>) -> usize,
    number: impl Fn(&MicrobatchTerm<'_>) -> f64,
) -> Vec<f64> {
    grouped(rows, place, number).into_values().map(|group| group.iter().sum()).collect()
}

/// Groups a number of each microbatch by `place`, which is the rank or the index of the microbatch.
fn grouped(
    rows: &[MicrobatchTerm<'_>],
    place: impl Fn(&MicrobatchTerm<'_>) -> usize,
    number: impl Fn(&MicrobatchTerm<'_>) -> f64,
) -> BTreeMap<usize, Vec<f64>> {
    let mut groups = BTreeMap::<usize, Vec<f64>>::new();
    for row in rows {
        groups.entry(place(row)).or_default().push(number(row));
    }
    groups
}

/// True if the elements of all microbatches in the same `place` weigh the same, and some place has several
/// microbatches.
fn is_by(
    rows: &[MicrobatchTerm<'_>],
    slack: f64,
    place: impl Fn(&MicrobatchTerm<'_>) -> usize,
) -> bool {
    let groups = grouped(rows, place, |row| row.term.most);
    groups.values().any(|group| group.len() > 1)
        && groups.into_values().all(|group| alike(group, slack))
}

/// True if each rank has a single microbatch.
fn is_one_by_rank(rows: &[MicrobatchTerm<'_>]) -> bool {
    let ranks: BTreeSet<usize> = rows.iter().map(|row| row.rank).collect();
    ranks.len() == rows.len()
}

/// True if each rank divided by its own number of elements, or by a number with one more for each sample: the first
/// token of a sample is a label but never a target.
fn is_of_ranks(rows: &[MicrobatchTerm<'_>], slack: f64) -> bool {
    let totals = by_rank(rows, |row| row.total);
    let elements = by_rank(rows, |row| row.elements as f64);
    let samples = by_rank(rows, |row| row.loss.samples.unwrap_or(0) as f64);
    let world = totals.len() as f64;
    let ranks: Vec<_> =
        totals.iter().zip(elements).zip(samples).map(|((it, of), at)| (*it, of, at)).collect();
    // The script may undo the average over the ranks.
    alike(totals, slack) || [1.0, world].into_iter().any(|factor| counts_first(&ranks, factor))
}

/// True if the weights of each rank, given as (sum, elements, samples), result from a division by the number of its
/// elements and samples. The same must hold for all ranks, because a rank that weighs twice as much as the other looks
/// like a division by half as many samples.
fn counts_first(ranks: &[(f64, f64, f64)], factor: f64) -> bool {
    ranks.iter().all(|(total, elements, samples)| {
        let more = factor * elements / total - elements;
        *samples > 0.0 && (more - samples).abs() <= bounds::COUNTABLE
    })
}

/// True if the loss of some microbatch was multiplied by a tensor that differs between microbatches: a weight that
/// the script gives the sample.
fn has_own_weights(rows: &[MicrobatchTerm<'_>]) -> bool {
    let of_row = |row: &MicrobatchTerm<'_>| -> Vec<u64> {
        let tensors = row.term.constants.iter();
        let tensors = tensors.filter(|it| it.kind == ConstantKind::Tensor && !it.divides);
        tensors.map(|it| it.factor.to_bits()).collect()
    };
    let first = rows.first().map(of_row);
    rows.iter().any(|row| Some(of_row(row)) != first)
}

/// Returns the weights of the microbatches as multiples of the first one's, by element or as a whole. `None` if the
/// ranks disagree. A single rank confirms nothing, so that only the weights of a running mean are accepted there.
fn graded(rows: &[MicrobatchTerm<'_>], slack: f64) -> Option<Vec<f64>> {
    let of_element = |row: &MicrobatchTerm<'_>| row.total / row.elements as f64;
    let of_row = |row: &MicrobatchTerm<'_>| row.total;
    let numbers: [&dyn Fn(&MicrobatchTerm<'_>) -> f64; 2] = [&of_element, &of_row];
    numbers.into_iter().find_map(|number| {
        let places = grouped(rows, |row| row.loss.microbatch, number);
        let first = *places.values().next()?.first()?;
        let are_alike = places.values().all(|of_ranks| alike(of_ranks.iter().copied(), slack));
        let is_confirmed = places.values().all(|of_ranks| of_ranks.len() > 1);
        let times: Vec<f64> = places.values().map(|of_ranks| of_ranks[0] / first).collect();
        let is_running_mean = (1_u32..)
            .zip(&times)
            .all(|(count, times)| (times * f64::from(count) - 1.0).abs() <= slack);
        (times.len() > 1 && are_alike && (is_confirmed || is_running_mean)).then_some(times)
    })
}

/// Returns the microbatches that do not follow the law of all others, and the multiple that they weigh.
fn odd(rows: &[MicrobatchTerm<'_>], even: bool, slack: f64) -> Option<(Odd, f64)> {
    let of_element = |row: &MicrobatchTerm<'_>| row.total / row.elements as f64;
    let of_row = |row: &MicrobatchTerm<'_>| row.total;
    let of_sample = |row: &MicrobatchTerm<'_>| row.total / row.loss.samples.unwrap_or(1) as f64;
    let has_samples = rows.iter().all(|row| row.loss.samples.is_some());
    let mut numbers: Vec<Vec<f64>> = Vec::new();
    if even {
        numbers.push(rows.iter().map(of_element).collect());
    }
    numbers.push(rows.iter().map(of_row).collect());
    if has_samples {
        numbers.push(rows.iter().map(of_sample).collect());
    }
    numbers
        .iter()
        .enumerate()
        .find_map(|(at, numbers)| odd_of(rows, numbers, even && at == 0, slack))
}

fn odd_of(
    rows: &[MicrobatchTerm<'_>],
    numbers: &[f64],
    is_by_element: bool,
    slack: f64,
) -> Option<(Odd, f64)> {
    let count = |it: f64| numbers.iter().filter(|other| (*other / it - 1.0).abs() <= slack).count();
    // Of several equally common numbers, that of the row with the fewest multiplications is taken, and then the first.
    let factors = |at: usize| rows[at].term.constants.iter().filter(|it| !it.divides).count();
    let usual = (0..rows.len()).rev().max_by_key(|&at| (count(numbers[at]), Reverse(factors(at))));
    let base = numbers[usual?];
    let is_odd = |it: f64| (it / base - 1.0).abs() > slack;
    let odd: Vec<usize> = (0..rows.len()).filter(|&at| is_odd(numbers[at])).collect();
    let first = *odd.first()?;
    let times = numbers[first] / base;
    if !odd.iter().all(|&at| (numbers[at] / base / times - 1.0).abs() <= slack) {
        return None;
    }
    let usual = rows.len() - odd.len();
    if odd.len() == 1 {
        // Two equal rows and one other row prove nothing, unless the two have different numbers of elements and still
        // weigh the same by element.
        let mut counts: Vec<usize> = rows.iter().map(|row| row.elements).collect();
        counts.sort_unstable();
        counts.dedup();
        let has_as_many = counts.len() == 1 || is_by_element && counts.len() == rows.len();
        return Odd::of(rows, &odd).filter(|_| usual > 2 || has_as_many).map(|odd| (odd, times));
    }
    Odd::of(rows, &odd).filter(|_| usual >= odd.len()).map(|odd| (odd, times))
}

/// True if all elements of each sample share one weight; `None` if that is unknown. Adjacent elements of equal weight
/// are one sample or several.
fn is_of_samples(rows: &[MicrobatchTerm<'_>], slack: f64) -> Option<bool> {
    if rows.iter().any(|row| row.term.runs.is_empty()) {
        return None;
    }
    let samples_are_alike = || {
        let of_sample =
            |row: &MicrobatchTerm<'_>| row.loss.samples.map(|samples| row.total / samples as f64);
        let known: Option<Vec<f64>> = rows.iter().map(of_sample).collect();
        known.is_none_or(|known| alike(known, slack))
    };
    let runs: Vec<&[(usize, f64)]> = rows.iter().map(|row| &row.term.runs[..]).collect();
    Some(share_a_weight(&runs, slack) && samples_are_alike())
}

/// True if all runs of elements of equal weight consist of whole samples, and all samples weigh the same.
fn share_a_weight(rows: &[&[(usize, f64)]], slack: f64) -> bool {
    let runs = || rows.iter().copied().flatten();
    let Some(&(count, weight)) = runs().next() else { return false };
    let fits = |sample: f64, &(count, weight): &(usize, f64)| {
        let samples = count as f64 * weight / sample;
        let whole = samples.round();
        let error = slack * whole;
        error <= bounds::COUNTABLE
            && (samples - whole).abs() <= error
            && (1.0..=count as f64).contains(&whole)
    };
    let mut samples = (1..=count).map(|samples| count as f64 * weight / samples as f64);
    samples.any(|sample| runs().all(|run| fits(sample, run)))
}

impl Law {
    /// True if microbatches have different weights, so that the sum of all weights differs from the sum that each
    /// single microbatch shows.
    pub fn is_uneven(&self) -> bool {
        matches!(self, Self::But(..) | Self::Graded(_))
    }
}

impl ElementWeights {
    /// Returns the name of the unit that weighs the same in the whole step: an element (`noun`), a sample or a
    /// microbatch. `None` if there is no such unit.
    pub fn unit<'a>(&self, noun: &'a str) -> Option<&'a str> {
        match self.law {
            Law::Token => Some(noun),
            Law::Sample => Some("sample"),
            Law::Microbatch => Some("microbatch"),
            Law::Rank | Law::But(..) | Law::Graded(_) | Law::Own | Law::None => None,
        }
    }

    /// True if the weights follow the demanded law.
    pub fn is(&self, demanded: Weighting) -> bool {
        match demanded {
            Weighting::Any => {
                !matches!(self.law, Law::Rank | Law::But(..) | Law::Graded(_) | Law::None)
            }
            Weighting::Token => self.law == Law::Token,
            Weighting::Sample if self.law == Law::Token => self.is_any,
            Weighting::Sample => {
                self.by_samples != Some(false) && self.law != Law::Microbatch || self.is_any
            }
            Weighting::Microbatch => {
                self.law == Law::Microbatch || self.is_any && self.law == Law::Token
            }
        }
    }

    /// Describes the law, for elements with this name.
    pub fn describe(&self, noun: &str) -> String {
        let range =
            format!("{} to {} times the mean", weight_text(self.least), weight_text(self.most));
        match &self.law {
            Law::Token => format!("every {noun} of a step weighs the same"),
            Law::Sample => format!(
                "every sample weighs the same, so that {noun}s weigh {range}: a mean over the means of samples"
            ),
            Law::Microbatch => format!(
                "every microbatch weighs the same, so that {noun}s weigh {range}: a mean of means"
            ),
            Law::Rank => format!(
                "every rank weighs the same, so that {noun}s weigh {range}: each rank divides by its own count"
            ),
            Law::But(odd, times) => {
                format!("{}, so that {noun}s weigh {range}", odd.weighs(*times))
            }
            Law::Graded(times) => format!(
                "the microbatches of a step have {} times the weight of the first, so that {noun}s weigh {range}",
                abridged(&times.iter().copied().map(weight_text).collect::<Vec<_>>()),
            ),
            Law::Own | Law::None => format!("{noun}s weigh {range}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_samples(microbatches: &[&[(usize, f64)]]) -> bool {
        share_a_weight(microbatches, 1e-3)
    }

    #[test]
    fn samples_are_recognised_by_their_lengths_also_where_neighbours_are_equally_long() {
        let (third, fifth) = (0.1 / 3.0, 0.1 / 5.0);
        assert!(by_samples(&[&[(3, third), (5, fifth)], &[(10, fifth), (3, third)]]));
        assert!(by_samples(&[&[(3, third)], &[(5, fifth)]]));
        // The run consists of a sample of 1500 and a sample of 1501 tokens.
        assert!(by_samples(&[&[(3, third)], &[(3001, 0.2 / 3001.0)]]));
    }

    #[test]
    fn a_rank_that_counts_first_tokens_counts_its_own() {
        let counted = |more: [f64; 2], factor: f64| {
            counts_first(
                &[(117.0 / (117.0 + more[0]), 117.0, 8.0), (120.0 / (120.0 + more[1]), 120.0, 8.0)],
                factor,
            )
        };
        assert!(counted([8.0, 8.0], 1.0));
        // These have another number of extra tokens than samples, samples on one rank only, or another factor.
        assert!(!counted([9.0, 8.0], 1.0) && !counted([1.5, 1.5], 1.0));
        assert!(!counted([8.0, 0.0], 1.0) && !counted([8.0, 8.0], 2.0));
    }

    #[test]
    fn a_class_of_each_sample_leaves_no_count_to_a_rank() {
        // One of two ranks weighs twice as much as the other, with 8 samples of one element each.
        assert!(!counts_first(&[(0.5, 8.0, 8.0), (1.0, 8.0, 8.0)], 1.0));
        assert!(!counts_first(&[(2.0 / 3.0, 8.0, 8.0), (4.0 / 3.0, 8.0, 8.0)], 1.0));
    }

    #[test]
    fn weights_of_classes_or_of_unread_runs_are_no_samples() {
        assert!(!by_samples(&[&[(2, 1.0), (1, 0.5), (3, 1.0)]]));
        assert!(!by_samples(&[&[(3, 0.7), (5, 0.3)]]));
        // With this many tokens, some number of samples always fits.
        assert!(!by_samples(&[&[(600, 0.7), (601, 0.31)]]));
    }
}
