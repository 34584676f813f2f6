//! The sections with tables: norms, target tokens, hooks and bucket flushes.

use super::{Block, Fact, Section, Table, TableCell, Topic};
use crate::words::{runs, weight_text};
use crate::{HookCount, Norms, Report};
use zprobe_model::trace::Point;

/// The largest number of ranks with a column each in the table of norms; more ranks are summarised.
const RANK_COLUMNS: usize = 2;

/// The largest number of rows in the table of target tokens, one for each microbatch.
const MOST_MICROBATCHES: usize = 32;

/// The section with the norms of the gradient, one row for each moment.
pub(super) fn norms(report: &Report) -> Option<Section<'_>> {
    if report.norms.is_empty() {
        return None;
    }
    let world = report.ranks.len();
    let mut header = vec!["step".to_owned(), "after".to_owned()];
    if world <= RANK_COLUMNS {
        header.extend((0..world).map(|rank| format!("rank {rank}")));
    } else {
        header.extend(["rank 0", "smallest", "largest"].map(str::to_owned));
    }
    header.push(String::new());
    let mut table = Table::new(2, header);
    for row in &report.norms {
        let mut cells = vec![row.step.to_string(), moment(report, row)];
        if world <= RANK_COLUMNS {
            cells.extend((0..world).map(|rank| norm_cell(row, rank)));
        } else {
            let sorted = row.sorted();
            let at = |place: Option<&(f64, usize)>| match place {
                Some((norm, rank)) => format!("{norm:.4} (r{rank})"),
                None => "-".to_owned(),
            };
            cells.extend([norm_text(row, 0), at(sorted.first()), at(sorted.last())]);
        }
        // The cell is empty where ranks may hold different values.
        let agreement = row.agree.map_or("", |agree| if agree { "agree" } else { "DIFFER" });
        let agreement =
            TableCell { text: agreement.to_owned(), is_wrong: row.agree == Some(false) };
        table.row(cells.into_iter().map(TableCell::from).chain([agreement]));
    }
    let title = "Norm of the gradient, per rank (difference to rank 0)";
    Some(Section::new(Topic::Norms, title, vec![Block::Table(table)]))
}

/// The section with the weights of target tokens, one row for each microbatch.
pub(super) fn tokens(report: &Report) -> Option<Section<'_>> {
    let first = report.tokens.first()?;
    let header = ["rank", "microbatch", "tokens", "weight per token", "share of total"];
    let mut table = Table::new(2, header.map(str::to_owned).to_vec());
    for row in report.tokens.iter().take(MOST_MICROBATCHES) {
        let (least, most) = (weight_text(row.least), weight_text(row.most));
        let one = if least == most { least } else { format!("{least} to {most}") };
        let cells = [
            row.rank.to_string(),
            row.microbatch.to_string(),
            row.tokens.to_string(),
            one,
            format!("{:.1} %", 100.0 * row.share),
        ];
        table.row(cells.into_iter().map(TableCell::from));
    }
    let others = report.tokens.len().saturating_sub(MOST_MICROBATCHES);
    let more = if others > 0 { format!("; {others} more microbatches") } else { String::new() };
    let title = format!("Target tokens of step {} (the mean weight is 1{more})", first.step);
    Some(Section::new(Topic::Tokens, title, vec![Block::Table(table)]))
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

/// The norm of a rank, with the difference to the norm of rank 0 in percent.
fn norm_cell(row: &Norms, rank: usize) -> String {
    let norm = norm_text(row, rank);
    match row.difference_percent.get(rank) {
        Some(Some(difference)) if rank > 0 => format!("{norm} {difference:+.2}%"),
        _ => norm,
    }
}

/// The section that compares the number of gradient hooks that fired with the nodes of the autograd graph.
pub(super) fn hooks(report: &Report) -> Option<Section<'_>> {
    if report.hooks.counts.is_empty() {
        return None;
    }
    let block = match told(report) {
        Some(text) => Block::Facts(vec![Fact::new("", text)]),
        None => Block::Table(hook_table(report)),
    };
    Some(Section::new(Topic::Hooks, "Gradient hooks", vec![block]))
}

/// The hooks in one sentence, if every backward was the same or hooks were not observed; otherwise `None`.
fn told(report: &Report) -> Option<String> {
    let counts = &report.hooks.counts;
    if !report.hooks.observed {
        let nodes = counts.iter().map(|count| count.accumulate_grad_nodes).max();
        let why = if report.run.spec.dataflow().is_some() {
            "this dataflow has no hooks"
        } else {
            "the engine's hooks were not observed"
        };
        let nodes = nodes.unwrap_or(0);
        return Some(format!("{nodes} AccumulateGrad nodes in the graph of a microbatch; {why}"));
    }
    let all_fired = counts.iter().all(|count| count.silent.is_empty());
    let groups = alike(counts.iter().collect());
    let ([group], true) = (&groups[..], all_fired) else { return None };
    Some(format!(
        "{} AccumulateGrad nodes, {} hooks fired, in each of {} backwards",
        group[0].accumulate_grad_nodes,
        group[0].fired.unwrap_or(0),
        counts.len(),
    ))
}

/// The table of backwards in which a hook did not fire; if all hooks fired, of all backwards.
fn hook_table(report: &Report) -> Table {
    let counts = &report.hooks.counts;
    let silent: Vec<&HookCount> = counts.iter().filter(|count| !count.silent.is_empty()).collect();
    let mut table = Table::new(0, ["AccumulateGrad", "fired", "backwards", "first at"]);
    for group in alike(if silent.is_empty() { counts.iter().collect() } else { silent }) {
        let first = group[0];
        table.row([
            first.accumulate_grad_nodes.to_string(),
            first.fired.map_or("-".to_owned(), |fired| fired.to_string()),
            group.len().to_string(),
            format!("step {}, microbatch {}, rank {}", first.step, first.microbatch, first.rank),
        ]);
    }
    table
}

/// The backwards in groups with equal counts.
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

/// The section with a row for every bucket flush.
pub(super) fn buckets(report: &Report) -> Option<Section<'_>> {
    if report.buckets.is_empty() {
        return None;
    }
    let head = ["step", "flush", "reason", "elements", "capacity", "params", "ranks"];
    let mut table = Table::new(0, head);
    for flush in &report.buckets {
        let all = flush.ranks.len() == report.ranks.len();
        table.row([
            flush.step.to_string(),
            flush.flush.to_string(),
            flush.reason.to_string(),
            flush.elements.to_string(),
            flush.capacity.to_string(),
            flush.params.len().to_string(),
            if all { "all".to_owned() } else { runs(&flush.ranks).join(",") },
        ]);
    }
    Some(Section::new(Topic::Buckets, "Bucket flushes", vec![Block::Table(table)]))
}
