//! The panel that compares gradient hooks with the nodes of the autograd graph, parameter by parameter.

use super::labels::{self, runs};
use crate::{Firings, Report};

/// The largest number of parameters that are all drawn; of more parameters, only those with a wrong number of firings
/// are drawn.
const PARAMS_SHOWN: usize = 60;

/// The data of the panel of gradient hooks.
pub(super) struct HookPanel<'a> {
    /// The heads of the columns: a step and a microbatch, or a range of microbatches that are alike.
    pub columns: Vec<String>,
    pub rows: Vec<HookRow<'a>>,
    /// The number of parameters that are not drawn. If no parameter is drawn, each hook fired once for each gradient.
    pub more_rows: usize,
    /// True if firings of hooks were observed.
    pub fired: bool,
    pub nodes: String,
}

/// A row of the table: one parameter.
pub(super) struct HookRow<'a> {
    pub param: &'a str,
    pub cells: Vec<HookCell>,
}

/// A cell of the table: one parameter in backwards that were alike.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct HookCell {
    pub text: String,
    pub class: &'static str,
    pub title: String,
}

impl<'a> HookPanel<'a> {
    pub fn new(report: &'a Report) -> Option<Self> {
        let hooks = &report.hooks;
        if hooks.firings.is_empty() {
            return None;
        }
        let mut backwards: Vec<((usize, usize), Vec<&Firings>)> = Vec::new();
        for firings in &hooks.firings {
            let key = (firings.step, firings.microbatch);
            match backwards.iter_mut().find(|(known, _)| *known == key) {
                Some((_, held)) => held.push(firings),
                None => backwards.push((key, vec![firings])),
            }
        }
        let world_size = report.ranks.len();
        let columns: Vec<Vec<HookCell>> = backwards
            .iter()
            .map(|(_, held)| {
                (0..hooks.params.len()).map(|param| cell(held, param, world_size)).collect()
            })
            .collect();
        // Consecutive backwards of a step that are alike share a column.
        let groups = runs(
            &backwards.iter().map(|((step, _), _)| *step).zip(columns.iter()).collect::<Vec<_>>(),
        );
        let label = |group: &std::ops::Range<usize>| {
            let ((step, first), (_, last)) = (backwards[group.start].0, backwards[group.end - 1].0);
            match group.len() {
                1 => format!("step {step}, m{first}"),
                _ => format!("step {step}, m{first} to m{last}"),
            }
        };
        let row = |(param, name): (usize, &'a String)| HookRow {
            param: name,
            cells: groups.iter().map(|group| columns[group.start][param].clone()).collect(),
        };
        let mut rows: Vec<HookRow<'_>> = hooks.params.iter().enumerate().map(row).collect();
        let all = rows.len();
        if all > PARAMS_SHOWN {
            rows.retain(|row| row.cells.iter().any(|cell| cell.class == "bad"));
            rows.truncate(PARAMS_SHOWN);
        }
        let mut nodes: Vec<usize> = hooks.counts.iter().map(|c| c.accumulate_grad_nodes).collect();
        nodes.sort_unstable();
        nodes.dedup();
        Some(Self {
            columns: groups.iter().map(label).collect(),
            more_rows: all - rows.len(),
            rows,
            fired: hooks.observed,
            nodes: match nodes[..] {
                [] => "0".to_owned(),
                [only] => only.to_string(),
                [least, .., most] => format!("{least} to {most}"),
            },
        })
    }
}

/// The cell with the firings of one parameter's hook on all ranks.
fn cell(held: &[&Firings], param: usize, world_size: usize) -> HookCell {
    let count =
        |list: &Option<Vec<u32>>| list.as_ref().map(|list| list.get(param).copied().unwrap_or(0));
    let mut seen: Vec<(String, bool, Vec<usize>)> = Vec::new();
    for firings in held {
        let reached = firings.reached.get(param).copied().unwrap_or(false);
        let due = if reached { count(&firings.arrived).unwrap_or(1) } else { 0 };
        let (text, bad) = match (reached, count(&firings.fired)) {
            (false, None | Some(0)) => ("–".to_owned(), false),
            (false, Some(fired)) => (fired.to_string(), false),
            (true, None) => ("node".to_owned(), false),
            (true, Some(fired)) if fired == due => (fired.to_string(), false),
            (true, Some(fired)) => (format!("{fired} of {due}"), true),
        };
        match seen.iter_mut().find(|(known, _, _)| *known == text) {
            Some((_, _, ranks)) => ranks.extend(&firings.ranks),
            None => seen.push((text, bad, firings.ranks.clone())),
        }
    }
    let bad = seen.iter().any(|(_, bad, _)| *bad);
    let said: Vec<String> = seen
        .iter()
        .map(|(text, _, ranks)| format!("{text} on {}", labels::ranks(ranks, world_size)))
        .collect();
    HookCell {
        text: match &seen[..] {
            [] => "–".to_owned(),
            [(only, _, _)] => only.clone(),
            _ => seen.iter().map(|(text, _, _)| text.as_str()).collect::<Vec<_>>().join(" / "),
        },
        class: match &seen[..] {
            _ if bad => "bad",
            [(only, _, _)] if only == "–" => "none",
            _ => "same",
        },
        title: said.join("; "),
    }
}
