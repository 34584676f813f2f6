//! The facts side by side: norms, hooks, bucket flushes.

use super::super::Report;
use super::text::{Page, table};
use crate::report::words::runs;
use crate::report::{Flush, HookCount, Norms};
use crate::trace::Point;

/// Most ranks that have a column each in the norm table; more are summarised.
const RANK_COLUMNS: usize = 2;

pub(super) fn norm_table(page: &mut Page, report: &Report) {
    let world = report.ranks.len();
    let mut header = vec!["step".to_owned(), "after".to_owned()];
    if world <= RANK_COLUMNS {
        header.extend((0..world).map(|rank| format!("rank {rank}")));
    } else {
        header.extend(["rank 0", "smallest", "largest"].map(str::to_owned));
    }
    header.push(String::new());
    let mut table = table(header);
    for row in &report.norms {
        let mut cells = vec![row.step.to_string(), moment(report, row)];
        if world <= RANK_COLUMNS {
            cells.extend((0..world).map(|rank| norm_cell(row, rank)));
        } else {
            let by_norm = |&a: &usize, &b: &usize| {
                let norm = |rank: usize| row.norms[rank].unwrap_or(f64::NAN);
                norm(a).total_cmp(&norm(b))
            };
            // Only ranks that came this far.
            let there = || (0..world).filter(|&rank| row.norms[rank].is_some());
            let smallest = there().min_by(by_norm).unwrap_or(0);
            let largest = there().max_by(by_norm).unwrap_or(0);
            cells.push(norm_text(row, 0));
            cells.push(format!("{} (r{smallest})", norm_text(row, smallest)));
            cells.push(format!("{} (r{largest})", norm_text(row, largest)));
        }
        cells.push(agreement(row).to_owned());
        table.add_row(cells);
    }
    page.table(table, 2);
}

fn moment(report: &Report, row: &Norms) -> String {
    let boundary = report.run.spec.gradient_accumulation_steps - 1;
    match (row.point, row.microbatch) {
        (Point::Accumulator, Some(m)) if m == boundary => format!("microbatch {m} (boundary)"),
        (Point::Accumulator, Some(m)) => format!("microbatch {m}"),
        (Point::Reduced, _) => "reduction".to_owned(),
        (Point::BeforeStep, _) => "BEFORE the step".to_owned(),
        (point, _) => point.to_string(),
    }
}

fn norm_text(row: &Norms, rank: usize) -> String {
    row.norms[rank].map_or("-".to_owned(), |norm| format!("{norm:.4}"))
}

/// The norm, and its difference to that of rank 0.
fn norm_cell(row: &Norms, rank: usize) -> String {
    let norm = norm_text(row, rank);
    match row.difference_percent.get(rank) {
        Some(Some(difference)) if rank > 0 => format!("{norm} {difference:+.2}%"),
        _ => norm,
    }
}

/// Words on whether ranks agree where they must; empty where they need not.
fn agreement(row: &Norms) -> &'static str {
    match row.agree {
        None => "",
        Some(true) => "agree",
        Some(false) => "DIFFER",
    }
}

pub(super) fn hooks(page: &mut Page, report: &Report) {
    if !report.hooks.observed {
        let nodes = report.hooks.counts.iter().map(|count| count.accumulate_grad_nodes).max();
        page.paragraph(
            "",
            &format!(
                "{} AccumulateGrad nodes in the graph of a microbatch; {}",
                nodes.unwrap_or(0),
                if report.run.spec.dataflow().is_some() {
                    "this dataflow has no hooks"
                } else {
                    "the engine's hooks were not observed"
                },
            ),
        );
        return;
    }
    let counts = &report.hooks.counts;
    let silent: Vec<&HookCount> = counts.iter().filter(|count| !count.silent.is_empty()).collect();
    let groups = alike(if silent.is_empty() { counts.iter().collect() } else { silent.clone() });
    if let ([group], true) = (&*groups, silent.is_empty()) {
        let first = group[0];
        page.paragraph(
            "",
            &format!(
                "{} AccumulateGrad nodes, {} hooks fired, in each of {} backwards",
                first.accumulate_grad_nodes,
                first.fired.unwrap_or(0),
                counts.len(),
            ),
        );
        return;
    }
    let mut table = table(["AccumulateGrad", "fired", "backwards", "first at"]);
    for group in groups {
        let first = group[0];
        table.add_row([
            first.accumulate_grad_nodes.to_string(),
            first.fired.map_or("-".to_owned(), |fired| fired.to_string()),
            group.len().to_string(),
            format!("step {}, microbatch {}, rank {}", first.step, first.microbatch, first.rank),
        ]);
    }
    page.table(table, 0);
}

/// Groups of backwards with equal counts.
fn alike(counts: Vec<&HookCount>) -> Vec<Vec<&HookCount>> {
    let mut groups: Vec<Vec<&HookCount>> = Vec::new();
    for count in counts {
        let key = |count: &HookCount| (count.accumulate_grad_nodes, count.fired);
        match groups.iter_mut().find(|group| key(group[0]) == key(count)) {
            Some(group) => group.push(count),
            None => groups.push(vec![count]),
        }
    }
    groups
}

pub(super) fn bucket_table(page: &mut Page, flushes: &[Flush], world_size: usize) {
    let mut table = table(["step", "flush", "why", "elements", "of", "params", "ranks"]);
    for flush in flushes {
        let all = flush.ranks.len() == world_size;
        table.add_row([
            flush.step.to_string(),
            flush.flush.to_string(),
            flush.reason.to_string(),
            flush.elements.to_string(),
            flush.capacity.to_string(),
            flush.params.len().to_string(),
            if all { "all".to_owned() } else { runs(&flush.ranks).join(",") },
        ]);
    }
    page.table(table, 0);
}
