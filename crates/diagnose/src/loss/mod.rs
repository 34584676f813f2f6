//! The loss of a user's script: the weight that each element of each term of the loss has in the update.
//!
//! The weight of an element in the update is its weight in the loss that goes backward, times the factor of all
//! gradients on their way to the optimizer. [`law`] tells which elements weigh the same, [`scale`] judges the sum of
//! all weights, and [`contract`] tells who divided by which number.

pub mod constants;
pub mod contract;
pub mod counts;
pub mod law;
pub mod scale;
pub mod slip;

use std::collections::{BTreeMap, BTreeSet};

use crate::bounds;
use crate::case::Case;
use zprobe_model::trace::{LossTerm, LossWeighed, TermOf};
use zprobe_report::MicrobatchTokens;

/// One term of the loss in one step: its elements in all microbatches of all ranks.
#[derive(Clone, Debug)]
pub struct StepTerm<'a> {
    /// The index of the optimizer step.
    pub step: usize,
    /// The index of the term in the loss.
    pub number: usize,
    /// The term in each microbatch that has it.
    pub rows: Vec<MicrobatchTerm<'a>>,
    /// The number of microbatches with the term, on the rank that has most of them.
    pub taken: usize,
    /// The number of microbatches with the term in a full accumulation window.
    pub full: usize,
    /// The number of microbatches, with or without the term, in the same turn of an optimizer, on the rank with most
    /// of them.
    pub of_turn: usize,
    /// The sum of the weights in the backward of all terms of this kind, if several lines of the script each have
    /// one; otherwise `None`.
    pub of_all_lines: Option<f64>,
    /// The factor of all gradients on their way from backward to the update; `None` if it was not read.
    pub factor: Option<f64>,
}

/// One term of the loss in one microbatch.
#[derive(Clone, Copy, Debug)]
pub struct MicrobatchTerm<'a> {
    /// The rank of the microbatch.
    pub rank: usize,
    /// The loss of the microbatch.
    pub loss: &'a LossWeighed,
    /// The term in this loss.
    pub term: &'a LossTerm,
    /// The number of elements with a weight.
    pub elements: usize,
    /// The sum of the weights of these elements.
    pub total: f64,
}

/// The key by which the same term is found in other microbatches: the turn of the optimizers, and the kind, name and
/// number of the term.
type TermKey<'a> = (usize, TermOf, &'a str, usize);

/// Iterates over the steps whose losses are examined: all steps of the script, including the first one.
fn steps(case: &Case<'_>) -> impl Iterator<Item = usize> {
    let ended: BTreeSet<usize> = case.observed.script.ended.keys().map(|(step, _)| *step).collect();
    ended.into_iter()
}

/// Returns the terms of the loss in a step. Empty if the loss of some microbatch was not read, or if the step has more
/// microbatches than the run has codes for.
pub fn terms<'a>(case: &Case<'a>, step: usize) -> Vec<StepTerm<'a>> {
    let observed = &case.observed;
    let ga = observed.spec.gradient_accumulation_steps;
    let mut terms: BTreeMap<TermKey<'a>, Vec<MicrobatchTerm<'a>>> = BTreeMap::new();
    let mut taken = 0;
    let mut of_turns: BTreeMap<usize, usize> = BTreeMap::new();
    for (rank, count) in observed.microbatches(step).into_iter().enumerate() {
        let of_rank = observed.script.losses.get(&(step, rank)).into_iter().flatten();
        let is_due =
            |microbatch| !observed.script.set_aside.contains_key(&(step, rank, microbatch));
        let due: Vec<_> = of_rank.filter(|loss| is_due(loss.microbatch)).collect();
        let wanted = (0..count).filter(|microbatch| is_due(*microbatch)).count();
        let of_step = observed.script.ended.get(&(step, rank)).copied().unwrap_or(count);
        if due.len() < wanted || of_step > ga {
            return Vec::new();
        }
        taken = taken.max(wanted);
        for turn in due.iter().map(|loss| loss.turn).collect::<BTreeSet<usize>>() {
            let count = due.iter().filter(|loss| loss.turn == turn).count();
            let most = of_turns.entry(turn).or_default();
            *most = count.max(*most);
        }
        for loss in due {
            let mut seen: BTreeMap<(TermOf, &str), usize> = BTreeMap::new();
            for term in &loss.terms {
                let number = seen.entry((term.of, &term.name)).or_default();
                let key = (loss.turn, term.of, term.name.as_str(), *number);
                *number += 1;
                let (elements, total) = (term.elements, term.total);
                terms.entry(key).or_default().push(MicrobatchTerm {
                    rank,
                    loss,
                    term,
                    elements,
                    total,
                });
            }
        }
    }
    let longest = observed.script.ended.values().copied().fold(ga, usize::max);
    let factors = &case.decoded.factors;
    let of_step = factors.get(&(step, 0)).or_else(|| factors.values().next());
    let factor = of_step.map(|factor| factor.value);
    // Ranks that split the model among them see the same elements.
    let copies = observed.spec.world_size as f64 / observed.replicas() as f64;
    let factor = factor.map(|factor| factor / copies);
    let whole = |mut rows: Vec<MicrobatchTerm<'a>>| {
        without_zeros(&mut rows);
        let own = most_of_a_rank(&rows);
        let full = own.max(longest * own / taken.max(1));
        let turn = rows.first().map_or(0, |row| row.loss.turn);
        let of_turn = of_turns.get(&turn).copied().unwrap_or(own);
        StepTerm { step, number: 0, taken: own, full, of_turn, of_all_lines: None, rows, factor }
    };
    let mut terms: Vec<StepTerm<'a>> =
        terms.into_values().flat_map(|rows| whole(rows).by_line()).collect();
    for (number, term) in terms.iter_mut().enumerate() {
        term.number = number;
    }
    terms
}

/// Removes the elements that the script multiplies by 0, if the script divides by the number of the other elements:
/// such a product is a mask. Otherwise these elements just happen to weigh nothing.
fn without_zeros(rows: &mut [MicrobatchTerm<'_>]) {
    let there = |row: &MicrobatchTerm<'_>| row.term.nonzero.unwrap_or(row.term.elements);
    let is_even = |row: &MicrobatchTerm<'_>| row.term.least == row.term.most;
    let has_zeros = rows.iter().any(|row| row.term.nonzero.is_some());
    if has_zeros && rows.iter().all(is_even) && counts::divides_by(rows, there) {
        for row in rows {
            row.elements = there(row);
            row.total = row.term.least * row.elements as f64;
        }
    }
}

/// Returns the terms of the loss by step, including the steps before the recorded ones.
pub fn by_step<'a>(case: &Case<'a>) -> BTreeMap<usize, Vec<StepTerm<'a>>> {
    steps(case)
        .map(|step| (step, terms(case, step)))
        .filter(|(_, terms)| !terms.is_empty())
        .collect()
}

/// The number of microbatches with the term on the rank that has most of them.
fn most_of_a_rank(rows: &[MicrobatchTerm<'_>]) -> usize {
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    for row in rows {
        *counts.entry(row.rank).or_default() += 1;
    }
    counts.into_values().max().unwrap_or(0)
}

impl<'a> StepTerm<'a> {
    /// Splits the term by the line of the script whose backward it is in, if each line has the same number of
    /// microbatches: separate losses, or branches of one accumulation. Otherwise returns the term itself.
    fn by_line(self) -> Vec<Self> {
        let mut lines: BTreeMap<Option<&str>, Vec<MicrobatchTerm<'a>>> = BTreeMap::new();
        for row in &self.rows {
            lines.entry(row.loss.at.as_deref()).or_default().push(*row);
        }
        let counts: BTreeSet<usize> = lines.values().map(Vec::len).collect();
        if lines.len() < 2 || counts.len() > 1 {
            return vec![self];
        }
        let of_all_lines = Some(self.total());
        let count = lines.len();
        let part = |rows: Vec<MicrobatchTerm<'a>>| {
            let taken = most_of_a_rank(&rows);
            StepTerm {
                rows,
                taken,
                full: self.full.div_ceil(count),
                of_turn: self.of_turn.div_ceil(count),
                of_all_lines,
                ..self.clone()
            }
        };
        lines.into_values().map(part).collect()
    }

    /// The kind of the term's elements.
    pub fn of(&self) -> TermOf {
        self.rows.first().map_or(TermOf::Elements, |row| row.term.of)
    }

    /// The name of one element of the term, for messages.
    pub fn noun(&self) -> &'static str {
        match self.of() {
            TermOf::Tokens => "target token",
            TermOf::Parameters => "element of the parameters",
            TermOf::Elements | TermOf::Hidden => "element",
        }
    }

    /// The name of the term for messages, such as `mse`.
    pub fn name(&self) -> String {
        let name = self.rows.first().map_or("", |row| row.term.name.as_str());
        if self.of() == TermOf::Tokens { "cross entropy".to_owned() } else { name.to_lowercase() }
    }

    /// Returns the line of the script that multiplies or divides only this term; `None` if there is no such line.
    pub fn place(&self) -> Option<&'a str> {
        let constants = self.rows.first()?.term.constants.iter();
        let mut own = constants.filter(|it| !it.whole && it.by.is_none());
        own.find_map(|it| it.at.as_deref())
    }

    /// Names the lines of the script at which the loss of the term goes backward; `None` if they were not seen.
    pub fn backward_lines(&self) -> Option<String> {
        let mut lines: Vec<&str> =
            self.rows.iter().filter_map(|row| row.loss.at.as_deref()).collect();
        lines.sort_unstable();
        lines.dedup();
        (!lines.is_empty()).then(|| format!("backward at {}", lines.join(", ")))
    }

    /// The sum of the weights of all elements in the backward. A penalty on parameters, which has the same elements
    /// in each microbatch, counts one element per microbatch, and a loss that each microbatch has as a whole counts once.
    pub fn total(&self) -> f64 {
        let of_row = |row: &MicrobatchTerm<'_>| match self.of() {
            TermOf::Parameters => row.total / row.elements as f64,
            _ => row.total,
        };
        let times = if self.is_of_window() { self.taken as f64 } else { 1.0 };
        self.rows.iter().map(of_row).sum::<f64>() / times
    }

    /// True if each microbatch has the loss of the whole window, with a gradient only for its own features: the features
    /// of the other microbatches come from an earlier forward, as in GradCache. The gradients of all microbatches then
    /// add up to that of one loss. In features that were gathered from all ranks, the part with a gradient has the
    /// number of the rank, and is the same in each microbatch.
    pub fn is_of_window(&self) -> bool {
        let is_it = |row: &MicrobatchTerm<'_>| {
            let samples = row.loss.samples.map(|samples| samples * self.taken);
            row.term.own_part == Some(row.loss.microbatch)
                && samples.is_some()
                && row.term.shape.first().copied() == samples
        };
        self.taken > 1 && self.rows.iter().all(is_it)
    }

    /// The sum of the weights of all elements in the update; `None` if the factor after the loss is unknown.
    pub fn in_update(&self) -> Option<f64> {
        self.factor.map(|factor| factor * self.total())
    }

    /// True if microbatches differ only in their divisors: the script gives elements no weights of their own, and
    /// multiplies all microbatches by the same numbers.
    pub fn is_divided_alone(&self) -> bool {
        let factor = |row: &MicrobatchTerm<'_>| -> f64 {
            let constants = row.term.constants.iter().filter(|it| !it.divides);
            constants.map(|it| it.factor).product()
        };
        let Some(first) = self.rows.first().map(factor) else { return false };
        self.rows.iter().all(|row| {
            !row.term.weighted && (factor(row) / first - 1.0).abs() <= bounds::SAME_TOKEN
        })
    }

    /// The number of elements in all microbatches.
    pub fn elements(&self) -> usize {
        self.rows.iter().map(|row| row.elements).sum()
    }
}

/// Returns the term that stands for the loss: the first one with target tokens, or else the first one.
pub fn main<'t, 'a>(terms: &'t [StepTerm<'a>]) -> Option<&'t StepTerm<'a>> {
    terms.iter().find(|term| term.of() == TermOf::Tokens).or(terms.first())
}

/// Returns the weights of the elements of the loss by microbatch, for the recorded step in which the weights differ
/// most, and the first one of several such steps.
pub fn table(case: &Case<'_>) -> Vec<MicrobatchTokens> {
    let recorded = case.observed.spec.recorded_steps();
    let all: Vec<Vec<StepTerm<'_>>> = recorded.map(|step| terms(case, step)).collect();
    let spread = |term: &StepTerm<'_>| {
        let weights = || term.rows.iter().flat_map(|row| [row.term.least, row.term.most]);
        weights().fold(f64::MIN, f64::max) / weights().fold(f64::MAX, f64::min)
    };
    let strangest = all.iter().rev().filter_map(|terms| main(terms));
    let strangest = strangest.max_by(|a, b| spread(a).total_cmp(&spread(b)));
    strangest.map_or(Vec::new(), table_of)
}

/// Returns the weights of the elements of a term by microbatch; empty for a term without target tokens.
pub fn table_of(term: &StepTerm<'_>) -> Vec<MicrobatchTokens> {
    if term.of() != TermOf::Tokens {
        return Vec::new();
    }
    let total = term.total();
    let mean = total / term.elements() as f64;
    let row = |row: &MicrobatchTerm<'_>| MicrobatchTokens {
        step: term.step,
        rank: row.rank,
        microbatch: row.loss.microbatch,
        tokens: row.elements,
        least: row.term.least / mean,
        most: row.term.most / mean,
        share: row.total / total,
    };
    term.rows.iter().map(row).collect()
}
