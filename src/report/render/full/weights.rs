//! Contribution weights as matrices: one row a source rank, one column a microbatch.

use std::fmt::Write as _;

use super::super::Report;
use super::text::{Page, table};
use crate::report::Contribution;
use crate::report::words::{by_rank, counted, matrix_text, weight_text};
use crate::trace::Point;

/// Most microbatches and most ranks that are drawn as a matrix.
const MATRIX_COLUMNS: usize = 12;
const MATRIX_ROWS: usize = 16;

/// Writes weights at the points that say what happened to the model: what the optimizer consumed,
/// and what really changed.
pub(super) fn weights(page: &mut Page, report: &Report) {
    let input = entries(report, Point::OptimizerInput);
    for (point, what) in [
        (Point::OptimizerInput, "what the optimizer consumed"),
        (Point::MasterWeights, "the update of the master weights"),
        (Point::Parameters, "the update of the model's parameters"),
    ] {
        let entries = entries(report, point);
        if entries.is_empty() {
            continue;
        }
        if entries.iter().all(|entry| entry.as_planned) {
            let residual = entries.iter().map(|entry| entry.residual).fold(0.0, f64::max);
            let unused = if entries.iter().all(|entry| all_used(entry)) {
                ""
            } else {
                " (0 where none is due)"
            };
            let body = format!(
                "every weight is 1{unused}, every leftover 0, on every rank in every step \
                 (residual {residual})"
            );
            page.paragraph(&format!("{what}: "), &body);
        } else if point != Point::OptimizerInput && follows(&entries, &input) {
            page.paragraph(&format!("{what}: "), "the same weights");
        } else {
            let _ = writeln!(page, "  {what}:");
            for group in grouped(&entries) {
                page.paragraph("in ", &group.place());
                matrix(page, group.entry);
            }
        }
    }
    if report.contributions_left_out > 0 {
        let body = format!(
            "{} of these tables, which the report has no room for",
            report.contributions_left_out
        );
        page.paragraph("left out: ", &body);
    }
}

/// All contributions that were read at a point.
pub(in crate::report::render) fn entries(report: &Report, point: Point) -> Vec<&Contribution> {
    report.contributions.iter().filter(|entry| entry.point == point).collect()
}

/// True if every microbatch should be there.
fn all_used(entry: &Contribution) -> bool {
    entry.expected.iter().flatten().all(|expected| *expected != 0.0)
}

/// True if all entries have the weights of some optimizer's input of the same step.
pub(in crate::report::render) fn follows(
    entries: &[&Contribution],
    input: &[&Contribution],
) -> bool {
    entries.iter().all(|entry| {
        input.iter().any(|input| {
            (input.step, &input.weights, &input.leftover)
                == (entry.step, &entry.weights, &entry.leftover)
        })
    })
}

/// Entries with equal weights.
pub(in crate::report::render) struct Group<'a> {
    /// The first of them.
    pub(in crate::report::render) entry: &'a Contribution,
    steps: Vec<usize>,
    ranks: Vec<usize>,
    params: Vec<String>,
}

impl Group<'_> {
    /// Steps, ranks and parameters, in words.
    pub(in crate::report::render) fn place(&self) -> String {
        let mut place =
            format!("{}, {}", counted("step", &self.steps), counted("rank", &self.ranks));
        if !self.params.is_empty() {
            let _ = write!(place, ": {}", self.params.join(", "));
        }
        place
    }
}

/// Groups of entries with equal weights.
pub(in crate::report::render) fn grouped<'a>(entries: &[&'a Contribution]) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for &entry in entries {
        let known = groups.iter().position(|group| {
            let known = group.entry;
            let nothing_left =
                |entry: &Contribution| entry.leftover.iter().flatten().all(|w| *w == 0.0);
            (&known.weights, &known.expected) == (&entry.weights, &entry.expected)
                && known.as_planned == entry.as_planned
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

fn matrix(page: &mut Page, entry: &Contribution) {
    let ga = entry.weights.first().map_or(0, Vec::len);
    if entry.as_planned {
        let all = if all_used(entry) { "1" } else { "as planned" };
        let _ = writeln!(page, "      every weight is {all}");
        return;
    }
    let mut header = vec![String::new()];
    header.extend((0..ga).map(|m| format!("m{m}")));
    let mut table = table(header);
    for (rank, row) in entry.weights.iter().enumerate() {
        let mut cells = vec![format!("rank {rank}")];
        cells.extend(row.iter().map(|&weight| weight_text(weight)));
        table.add_row(cells);
    }
    let too_many = ga > MATRIX_COLUMNS || entry.weights.len() > MATRIX_ROWS;
    if too_many || page.indented(table, 1).is_none() {
        let rows = entry.weights.iter().zip(&entry.expected).enumerate();
        let wrong = |(rank, (row, expected)): (usize, (&Vec<f64>, &Vec<f64>))| {
            let cells = row.iter().zip(expected).enumerate();
            let wrong: Vec<String> = cells
                .filter(|(_, (weight, expected))| weight != expected)
                .map(|(m, (weight, _))| format!("m{m} {}", weight_text(*weight)))
                .collect();
            let wrong = if wrong.is_empty() { "all right".to_owned() } else { wrong.join(", ") };
            (rank, wrong)
        };
        for line in by_rank(rows.map(wrong)) {
            page.paragraph("  ", &line);
        }
    }
    if entry.leftover.iter().flatten().any(|weight| *weight != 0.0) {
        page.paragraph("    ", &format!("and of earlier steps {}", matrix_text(&entry.leftover)));
    }
    if entry.residual > entry.tolerance {
        let residual = weight_text(entry.residual);
        page.paragraph("    ", &format!("and a part that no gradient explains: {residual}"));
    }
}
