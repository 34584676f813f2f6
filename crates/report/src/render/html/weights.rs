//! The panel of contribution weights: a table with a small picture for every buffer, and large pictures of the distinct
//! matrices.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::RANKS_SHOWN;
use super::form::MatrixForm;
use super::labels::{moment, ranks};
use super::picture::{Picture, letters};
use crate::words::{abridged, counted, weight_text};
use crate::{Contribution, Report};
use zprobe_model::trace::Point;

/// The largest number of distinct matrices that are drawn; further matrices are only counted.
const MATRICES_SHOWN: usize = 24;

/// The data of the panel of weights.
pub(super) struct WeightPanel {
    /// The rows of the table, one for each moment, in the order of the journey; steps that were alike share their rows.
    pub moments: Vec<MomentRow>,
    /// The heads of the columns for ranks; empty if ranks are drawn in groups.
    pub heads: Vec<String>,
    /// The distinct matrices that are not as planned; if all are as planned, only the first matrix of the optimizer's
    /// input.
    pub matrices: Vec<DrawnMatrix>,
    /// The number of distinct matrices that are not drawn.
    pub omitted: usize,
    /// The largest bound on the error of a weight, as text; `None` if all weights are exact.
    pub any_tolerance: Option<String>,
}

/// A row of the table: a moment of a step, for all steps in which all moments were alike.
pub(super) struct MomentRow {
    pub steps: String,
    pub what: String,
    pub cells: Vec<Holders>,
    /// True if the journey first departs from the plan at this moment.
    pub is_first: bool,
}

/// Ranks that hold the same weights at a moment.
pub(super) struct Holders {
    pub ranks: String,
    pub held: Vec<Held>,
}

/// A reference to the matrix that a buffer holds at a moment.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Held {
    /// The letter of the matrix; empty if the matrix is not drawn.
    pub letter: String,
    pub as_planned: bool,
    /// The width and the height of the matrix's small picture, in pixels.
    pub size: (usize, usize),
}

/// A distinct matrix that is drawn large.
pub(super) struct DrawnMatrix {
    pub letter: String,
    pub picture: Picture,
    /// The places of the matrix on the journey, one place for each line.
    pub places: Vec<String>,
    /// The largest part that no gradient explains, as text; `None` if the part is within the tolerance.
    pub unexplained: Option<String>,
    /// The number of sets of weights, including this set, that explain the elements; 0 if the weights are certain.
    pub possible: usize,
    pub as_planned: bool,
    /// The point, the step and the rank of each buffer that holds the matrix.
    holders: HashSet<(Point, usize, usize)>,
}

impl WeightPanel {
    pub fn new(report: &Report) -> Self {
        let entries = &report.contributions;
        let forms = forms(entries);
        let mut of_form: HashMap<&MatrixForm, Vec<usize>> = HashMap::new();
        let mut order: Vec<&MatrixForm> = Vec::new();
        for (at, form) in forms.iter().enumerate() {
            of_form
                .entry(form)
                .or_insert_with(|| {
                    order.push(form);
                    Vec::new()
                })
                .push(at);
        }
        // Matrices of the points from the gradient before the step on are drawn first, because they matter most.
        let is_late = |form: &&MatrixForm| {
            of_form[form].iter().any(|&at| entries[at].point >= Point::BeforeStep)
        };
        let mut drawn: Vec<&MatrixForm> = order.iter().copied().filter(|f| !f.as_planned).collect();
        drawn.sort_by_key(|form| !is_late(form));
        if drawn.is_empty() {
            let consumed = |at: &usize| entries[*at].point == Point::OptimizerInput;
            drawn.extend(order.iter().copied().find(|form| of_form[form].iter().any(consumed)));
        }
        let omitted = drawn.len().saturating_sub(MATRICES_SHOWN);
        drawn.truncate(MATRICES_SHOWN);
        let numbers: HashMap<&MatrixForm, usize> =
            drawn.iter().enumerate().map(|(number, form)| (*form, number)).collect();
        let matrix = |(number, form): (usize, &&MatrixForm)| {
            let held: Vec<&Contribution> = of_form[*form].iter().map(|&at| &entries[at]).collect();
            DrawnMatrix::new(report, number, form, &held)
        };
        let matrices: Vec<DrawnMatrix> = drawn.iter().enumerate().map(matrix).collect();
        let tolerance = entries.iter().map(|entry| entry.tolerance).fold(0.0, f64::max);
        Self {
            moments: moments(report, &forms, &numbers, &matrices),
            heads: match report.ranks.len() {
                world_size if world_size <= RANKS_SHOWN => {
                    (0..world_size).map(|rank| format!("rank {rank}")).collect()
                }
                _ => Vec::new(),
            },
            matrices,
            omitted,
            any_tolerance: (tolerance > 0.0).then(|| format!("{tolerance:.1e}")),
        }
    }

    /// The index of a drawn matrix that is not as planned, restricted to this step and this rank if they are given. A
    /// matrix of the optimizer's input comes before matrices of other points.
    pub fn departed(&self, step: Option<usize>, rank: Option<usize>) -> Option<usize> {
        let is_there = |point: Option<Point>| {
            self.matrices.iter().position(|matrix| {
                !matrix.as_planned
                    && matrix.holders.iter().any(|&(p, s, r)| {
                        point.is_none_or(|point| p == point)
                            && step.is_none_or(|step| s == step)
                            && rank.is_none_or(|rank| r == rank)
                    })
            })
        };
        is_there(Some(Point::OptimizerInput)).or_else(|| is_there(None))
    }
}

/// The form of each entry. If several forms differ only in which single rank is special, the name of that rank is left
/// out, so that the forms are equal.
fn forms(entries: &[Contribution]) -> Vec<MatrixForm> {
    let forms: Vec<MatrixForm> = entries.iter().map(MatrixForm::new).collect();
    let nameless: Vec<_> =
        entries.iter().zip(&forms).map(|(entry, form)| form.without_names(entry.rank)).collect();
    let mut named: HashMap<&MatrixForm, HashSet<usize>> = HashMap::new();
    for (rank, form) in nameless.iter().flatten() {
        named.entry(form).or_default().insert(*rank);
    }
    let is_general = |form: &MatrixForm| named[form].len() > 1;
    let general: Vec<bool> =
        nameless.iter().map(|form| form.as_ref().is_some_and(|(_, f)| is_general(f))).collect();
    forms
        .into_iter()
        .zip(nameless)
        .zip(general)
        .map(|((form, nameless), general)| match nameless {
            Some((_, nameless)) if general => nameless,
            _ => form,
        })
        .collect()
}

fn moments(
    report: &Report,
    forms: &[MatrixForm],
    numbers: &HashMap<&MatrixForm, usize>,
    matrices: &[DrawnMatrix],
) -> Vec<MomentRow> {
    let world_size = report.ranks.len();
    type MomentKey = (usize, Point, Option<usize>);
    let mut rows: Vec<(MomentKey, Vec<Vec<Held>>)> = Vec::new();
    let mut index: HashMap<MomentKey, usize> = HashMap::new();
    for (entry, form) in report.contributions.iter().zip(forms) {
        let key = (entry.step, entry.point, entry.microbatch);
        let at = *index.entry(key).or_insert_with(|| {
            rows.push((key, vec![Vec::new(); world_size]));
            rows.len() - 1
        });
        let matrix = numbers.get(form).copied();
        let held = Held {
            letter: matrix.map(letters).unwrap_or_default(),
            as_planned: entry.as_planned,
            size: matrix.map(|at| matrices[at].picture.mini_size()).unwrap_or_default(),
        };
        for rank in entry.ranks() {
            if let Some(cell) = rows[at].1.get_mut(rank).filter(|cell| !cell.contains(&held)) {
                cell.push(held.clone());
            }
        }
    }
    type StepRow = (Point, Option<usize>, Vec<Vec<Held>>);
    let mut by_step: BTreeMap<usize, Vec<StepRow>> = BTreeMap::new();
    for ((step, point, microbatch), cells) in rows {
        by_step.entry(step).or_default().push((point, microbatch, cells));
    }
    let mut alike: Vec<(Vec<usize>, Vec<StepRow>)> = Vec::new();
    for (step, rows) in by_step {
        match alike.iter_mut().find(|(_, known)| *known == rows) {
            Some((steps, _)) => steps.push(step),
            None => alike.push((vec![step], rows)),
        }
    }
    let first = report.first_divergence.as_ref();
    let row = |steps: &[usize], (point, microbatch, cells): StepRow| MomentRow {
        is_first: first.is_some_and(|first| {
            steps.contains(&first.step)
                && (first.point, first.microbatch) == (Some(point), microbatch)
        }),
        steps: numbers_of(steps),
        what: moment(report, point, microbatch),
        cells: holders(cells, world_size),
    };
    let rows = alike.into_iter().flat_map(|(steps, rows)| {
        rows.into_iter().map(|cells| row(&steps, cells)).collect::<Vec<_>>()
    });
    rows.collect()
}

/// Step numbers in words, without the noun: `0 and 1`.
fn numbers_of(list: &[usize]) -> String {
    let text = counted("step", list);
    text.split_once(' ').map_or(String::new(), |(_, numbers)| numbers.to_owned())
}

/// A cell for each rank; if there are many ranks, one cell for all ranks that hold the same.
fn holders(cells: Vec<Vec<Held>>, world_size: usize) -> Vec<Holders> {
    let mut groups: Vec<(Vec<usize>, Vec<Held>)> = Vec::new();
    for (rank, held) in cells.into_iter().enumerate() {
        let known = groups.iter_mut().find(|(_, known)| world_size > RANKS_SHOWN && *known == held);
        match known {
            Some((ranks, _)) => ranks.push(rank),
            None => groups.push((vec![rank], held)),
        }
    }
    let group = |(list, held): (Vec<usize>, _)| Holders { ranks: ranks(&list, world_size), held };
    groups.into_iter().map(group).collect()
}

impl DrawnMatrix {
    fn new(report: &Report, number: usize, form: &MatrixForm, held: &[&Contribution]) -> Self {
        let most = |of: fn(&Contribution) -> f64| held.iter().map(|c| of(c)).fold(0.0, f64::max);
        let (tolerance, residual) = (most(|c| c.tolerance), most(|c| c.residual));
        let looked_back = held.iter().any(|c| c.leftover.iter().any(|row| !row.is_empty()));
        Self {
            letter: letters(number),
            picture: Picture::new(form, looked_back, tolerance),
            places: places(report, held),
            unexplained: (residual > tolerance).then(|| weight_text(residual)),
            possible: form.possible,
            as_planned: form.as_planned,
            holders: held
                .iter()
                .flat_map(|c| c.ranks().map(|rank| (c.point, c.step, rank)))
                .collect(),
        }
    }
}

/// The places of a matrix, one for each point and each part of the model: `optimizer's input: steps 0 and 1, rank 0`.
fn places(report: &Report, held: &[&Contribution]) -> Vec<String> {
    type PlaceKey<'a> = (Point, Option<usize>, Option<&'a [String]>, bool);
    let mut by_moment: BTreeMap<PlaceKey<'_>, BTreeMap<usize, Vec<usize>>> = BTreeMap::new();
    for entry in held {
        let is_part = !entry.elements.is_empty();
        let key = (entry.point, entry.microbatch, entry.params.as_deref(), is_part);
        by_moment.entry(key).or_default().entry(entry.step).or_default().extend(entry.ranks());
    }
    let mut lines = Vec::new();
    for ((point, microbatch, params, is_part), by_step) in by_moment {
        let mut by_ranks: BTreeMap<Vec<usize>, Vec<usize>> = BTreeMap::new();
        for (step, mut holders) in by_step {
            holders.sort_unstable();
            holders.dedup();
            by_ranks.entry(holders).or_default().push(step);
        }
        for (holders, in_steps) in by_ranks {
            let some = if is_part { ", some elements" } else { "" };
            let of =
                params.map_or(String::new(), |params| format!(" ({}{some})", abridged(params)));
            lines.push(format!(
                "{}{of}: {}, {}",
                moment(report, point, microbatch),
                counted("step", &in_steps),
                ranks(&holders, report.ranks.len()),
            ));
        }
    }
    lines
}
