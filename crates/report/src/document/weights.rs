//! The contribution weights as matrices: one row for each source rank, one column for each microbatch.

use std::fmt::Write as _;

use super::headline::steps_taken;
use super::{Block, Fact, Matrix, Section, Table, TableCell, Topic};
use crate::words::{by_rank, counted, earlier_gradient, matrix_text, weight_text};
use crate::{Contribution, Report};
use zprobe_model::trace::Point;

/// The section about the weights at the points that show the effect on the model: the optimizer's input, the update of
/// the master weights, and the update of the parameters.
pub(super) fn section(report: &Report) -> Option<Section<'_>> {
    if steps_taken(report) == 0 {
        return None;
    }
    let mut blocks = Vec::new();
    let fact = |label: &str, text: String| Block::Facts(vec![Fact::new(label, text)]);
    let input = entries(report, Point::OptimizerInput);
    for (point, what) in [
        (Point::OptimizerInput, "the optimizer's input"),
        (Point::MasterWeights, "the update of the master weights"),
        (Point::Parameters, "the update of the model's parameters"),
    ] {
        let entries = entries(report, point);
        if entries.is_empty() {
            continue;
        }
        blocks.push(if entries.iter().all(|entry| entry.as_planned) {
            let residual = entries.iter().map(|entry| entry.residual).fold(0.0, f64::max);
            let all_used = entries.iter().all(|entry| all_used(entry));
            let unused = if all_used { "" } else { " (0 where no gradient is expected)" };
            fact(
                what,
                format!(
                    "every weight is 1{unused}, every leftover 0, on every rank in every step \
                     (residual {residual})"
                ),
            )
        } else if point != Point::OptimizerInput && follows(&entries, &input) {
            fact(what, "the same weights as the optimizer's input".to_owned())
        } else {
            let matrices = grouped(&entries).iter().map(Group::matrix).collect();
            Block::Matrices(what.to_owned(), matrices)
        });
    }
    if report.contributions_left_out > 0 {
        let left_out = report.contributions_left_out;
        let text = format!("{left_out} of these tables, to limit the size of the report");
        blocks.push(fact("left out", text));
    }
    Some(Section::new(Topic::Weights, "Contribution weights (1 is right)", blocks))
}

/// All contributions that were read at a point of the journey.
fn entries(report: &Report, point: Point) -> Vec<&Contribution> {
    report.contributions.iter().filter(|entry| entry.point == point).collect()
}

/// True if a gradient of every microbatch is expected.
fn all_used(entry: &Contribution) -> bool {
    entry.expected.iter().flatten().all(|expected| *expected != 0.0)
}

/// True if each entry has the same weights as some rank's optimizer input in the same step.
fn follows(entries: &[&Contribution], input: &[&Contribution]) -> bool {
    entries.iter().all(|entry| {
        input.iter().any(|input| {
            (input.step, &input.weights, &input.leftover)
                == (entry.step, &entry.weights, &entry.leftover)
        })
    })
}

/// A group of entries with equal weights.
struct Group<'a> {
    /// The first entry of the group.
    entry: &'a Contribution,
    steps: Vec<usize>,
    ranks: Vec<usize>,
    params: Vec<String>,
}

impl Group<'_> {
    fn matrix(&self) -> Matrix {
        let entry = self.entry;
        let mut notes = Vec::new();
        if entry.as_planned {
            let all = if all_used(entry) { "1" } else { "as planned" };
            notes.push(format!("every weight is {all}"));
        } else {
            match earlier_steps(entry) > 0 {
                true if entry.possible.is_empty() => {
                    let first = earlier_gradient(1, 0);
                    notes.push(format!(
                        "{first} is microbatch 0 of the previous step, and its weight should be 0"
                    ));
                }
                true => {
                    notes.push(format!("weights of past steps: {}", matrix_text(&entry.leftover)));
                }
                false => {}
            }
            if !entry.possible.is_empty() {
                let count = entry.possible.len();
                notes.push(format!("ambiguous: {count} sets of weights fit these few elements"));
            }
            if entry.residual > entry.tolerance {
                let residual = weight_text(entry.residual);
                notes.push(format!("unexplained: no gradient explains a part of size {residual}"));
            }
        }
        let is_certain = entry.possible.is_empty();
        let table = (!entry.as_planned && is_certain).then(|| table(entry));
        let words = table.iter().flat_map(in_words).collect();
        Matrix { place: self.place(), table, words, notes }
    }

    /// The steps, ranks and parameters of the group, in words.
    fn place(&self) -> String {
        let mut place =
            format!("{}, {}", counted("step", &self.steps), counted("rank", &self.ranks));
        if !self.params.is_empty() {
            let _ = write!(place, ": {}", self.params.join(", "));
        }
        if !self.entry.elements.is_empty() {
            place.push_str(" (some elements)");
        }
        place
    }
}

/// The entries in groups with equal weights.
fn grouped<'a>(entries: &[&'a Contribution]) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for &entry in entries {
        let known = groups.iter().position(|group| {
            let known = group.entry;
            let nothing_left =
                |entry: &Contribution| entry.leftover.iter().flatten().all(|w| *w == 0.0);
            (&known.weights, &known.expected) == (&entry.weights, &entry.expected)
                && known.as_planned == entry.as_planned
                && known.elements.is_empty() == entry.elements.is_empty()
                && known.possible.is_empty() == entry.possible.is_empty()
                && (known.leftover == entry.leftover || nothing_left(known) && nothing_left(entry))
        });
        let index = known.unwrap_or_else(|| {
            groups.push(Group { entry, steps: vec![], ranks: vec![], params: vec![] });
            groups.len() - 1
        });
        let group = &mut groups[index];
        group.steps.push(entry.step);
        group.ranks.extend(entry.ranks());
        for list in [&mut group.steps, &mut group.ranks] {
            list.sort_unstable();
            list.dedup();
        }
        for param in entry.params.iter().flatten() {
            if !group.params.contains(param) {
                group.params.push(param.clone());
            }
        }
    }
    groups
}

/// The number of earlier steps, counted back to the oldest step whose gradients are still in the buffer.
fn earlier_steps(entry: &Contribution) -> usize {
    let microbatches = entry.weights.first().map_or(1, Vec::len).max(1);
    let steps = entry.leftover.iter().filter_map(|row| {
        let first = row.iter().position(|weight| *weight != 0.0)?;
        Some((row.len() - first).div_ceil(microbatches))
    });
    steps.max().unwrap_or(0)
}

/// The table of the weights of the step's own gradients. Columns for earlier steps come first, if gradients of these
/// steps are in the buffer.
fn table(entry: &Contribution) -> Table {
    let columns = entry.weights.first().map_or(0, Vec::len);
    let earlier = earlier_steps(entry);
    let heads = (1..=earlier)
        .rev()
        .flat_map(|back| (0..columns).map(move |microbatch| earlier_gradient(back, microbatch)));
    let heads = heads.chain((0..columns).map(|m| format!("m{m}")));
    let mut table = Table::new(1, [String::new()].into_iter().chain(heads));
    for (rank, (row, expected)) in entry.weights.iter().zip(&entry.expected).enumerate() {
        let left = entry.leftover.get(rank).map_or(&[][..], Vec::as_slice);
        let left = &left[left.len() - (earlier * columns).min(left.len())..];
        let all = left.iter().map(|weight| (weight, &0.0)).chain(row.iter().zip(expected));
        let cells = all.map(|(weight, expected)| TableCell {
            text: weight_text(*weight),
            is_wrong: (weight - expected).abs() > entry.tolerance,
        });
        table.row([TableCell::from(format!("rank {rank}"))].into_iter().chain(cells));
    }
    table
}

/// The wrong weights of a table, rank by rank: `rank 173: m2 0` means that microbatch 2 of rank 173 has the weight 0.
fn in_words(table: &Table) -> Vec<String> {
    by_rank(table.rows.iter().enumerate().map(|(rank, row)| {
        let cells = row.iter().zip(&table.head);
        let wrong = cells.filter(|(cell, _)| cell.is_wrong);
        let wrong: Vec<String> = wrong.map(|(cell, m)| format!("{m} {}", cell.text)).collect();
        let wrong = if wrong.is_empty() { "as planned".to_owned() } else { wrong.join(", ") };
        (rank, wrong)
    }))
}
