//! Contribution weights: a table with the matrix of every buffer, and the distinct matrices drawn
//! large.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::RANKS_SHOWN;
use super::form::Form;
use super::labels::{moment, ranks};
use super::picture::{Picture, letters};
use crate::words::{abridged, counted, weight_text};
use crate::{Contribution, Report};
use zprobe_model::trace::Point;

/// Most distinct matrices that are drawn; more are only counted.
const MATRICES_SHOWN: usize = 24;

/// The panel of the weights.
pub(super) struct Weights {
    /// Rows, one a moment, in the order in which they were reached; steps that were alike share
    /// theirs.
    pub moments: Vec<Moment>,
    /// Heads of the ranks' columns; empty where ranks are drawn in groups.
    pub heads: Vec<String>,
    /// The distinct matrices that are not as planned; of a run where all are, the one that the
    /// optimizer consumed first.
    pub matrices: Vec<Matrix>,
    /// Distinct matrices that are not drawn.
    pub omitted: usize,
    /// Largest error of a weight, in words; none where all weights are exact.
    pub any_tolerance: Option<String>,
}

/// A moment of a step, and the steps in which all moments were alike.
pub(super) struct Moment {
    pub steps: String,
    pub what: String,
    pub cells: Vec<Holders>,
    /// True if the journey departs from the plan here for the first time.
    pub is_first: bool,
}

/// Ranks that hold the same at a moment.
pub(super) struct Holders {
    pub ranks: String,
    pub held: Vec<Held>,
}

/// A matrix at a moment.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Held {
    /// Letter of the matrix; empty where it is not drawn.
    pub letter: String,
    pub as_planned: bool,
    /// Width and height of its small picture, in pixels.
    pub size: (usize, usize),
}

/// A distinct matrix.
pub(super) struct Matrix {
    pub letter: String,
    pub picture: Picture,
    /// Places of the matrix on the journey, one a line.
    pub places: Vec<String>,
    /// Largest part that no gradient explains, where that is too much.
    pub unexplained: Option<String>,
    /// Number of sets of weights that explain the elements, of which this is one; else 0.
    pub possible: usize,
    pub as_planned: bool,
    /// Point, step and rank of the buffers.
    holders: HashSet<(Point, usize, usize)>,
}

impl Weights {
    pub fn new(report: &Report) -> Self {
        let entries = &report.contributions;
        let forms = forms(entries);
        let mut of_form: HashMap<&Form, Vec<usize>> = HashMap::new();
        let mut order: Vec<&Form> = Vec::new();
        for (at, form) in forms.iter().enumerate() {
            of_form
                .entry(form)
                .or_insert_with(|| {
                    order.push(form);
                    Vec::new()
                })
                .push(at);
        }
        // What the optimizer consumed matters most, and what it led to.
        let is_late =
            |form: &&Form| of_form[form].iter().any(|&at| entries[at].point >= Point::BeforeStep);
        let mut drawn: Vec<&Form> = order.iter().copied().filter(|f| !f.as_planned).collect();
        drawn.sort_by_key(|form| !is_late(form));
        if drawn.is_empty() {
            let consumed = |at: &usize| entries[*at].point == Point::OptimizerInput;
            drawn.extend(order.iter().copied().find(|form| of_form[form].iter().any(consumed)));
        }
        let omitted = drawn.len().saturating_sub(MATRICES_SHOWN);
        drawn.truncate(MATRICES_SHOWN);
        let numbers: HashMap<&Form, usize> =
            drawn.iter().enumerate().map(|(number, form)| (*form, number)).collect();
        let matrix = |(number, form): (usize, &&Form)| {
            let held: Vec<&Contribution> = of_form[*form].iter().map(|&at| &entries[at]).collect();
            Matrix::new(report, number, form, &held)
        };
        let matrices: Vec<Matrix> = drawn.iter().enumerate().map(matrix).collect();
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

    /// The drawn matrix that is not as planned in this step, on this rank if one is given: what the
    /// optimizer consumed, or else what was read before or after it.
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

/// The form of each entry. Forms that are about one rank among many, and about a different one in
/// other buffers, are the same form without the rank's name.
fn forms(entries: &[Contribution]) -> Vec<Form> {
    let forms: Vec<Form> = entries.iter().map(Form::new).collect();
    let nameless: Vec<_> =
        entries.iter().zip(&forms).map(|(entry, form)| form.without_names(entry.rank)).collect();
    let mut named: HashMap<&Form, HashSet<usize>> = HashMap::new();
    for (rank, form) in nameless.iter().flatten() {
        named.entry(form).or_default().insert(*rank);
    }
    let is_general = |form: &Form| named[form].len() > 1;
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
    forms: &[Form],
    numbers: &HashMap<&Form, usize>,
    matrices: &[Matrix],
) -> Vec<Moment> {
    let world_size = report.ranks.len();
    type Key = (usize, Point, Option<usize>);
    let mut rows: Vec<(Key, Vec<Vec<Held>>)> = Vec::new();
    let mut index: HashMap<Key, usize> = HashMap::new();
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
    type Row = (Point, Option<usize>, Vec<Vec<Held>>);
    let mut by_step: BTreeMap<usize, Vec<Row>> = BTreeMap::new();
    for ((step, point, microbatch), cells) in rows {
        by_step.entry(step).or_default().push((point, microbatch, cells));
    }
    let mut alike: Vec<(Vec<usize>, Vec<Row>)> = Vec::new();
    for (step, rows) in by_step {
        match alike.iter_mut().find(|(_, known)| *known == rows) {
            Some((steps, _)) => steps.push(step),
            None => alike.push((vec![step], rows)),
        }
    }
    let first = report.first_divergence.as_ref();
    let row = |steps: &[usize], (point, microbatch, cells): Row| Moment {
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

/// Numbers in words: `0 and 1`.
fn numbers_of(list: &[usize]) -> String {
    let text = counted("step", list);
    text.split_once(' ').map_or(String::new(), |(_, numbers)| numbers.to_owned())
}

/// A cell for each rank, or, of many ranks, one for all that hold the same.
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

impl Matrix {
    fn new(report: &Report, number: usize, form: &Form, held: &[&Contribution]) -> Self {
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

/// Places of a matrix, `optimizer's input: steps 0 and 1, rank 0`, for each point and each part of
/// the model.
fn places(report: &Report, held: &[&Contribution]) -> Vec<String> {
    type Moment<'a> = (Point, Option<usize>, Option<&'a [String]>, bool);
    let mut by_moment: BTreeMap<Moment<'_>, BTreeMap<usize, Vec<usize>>> = BTreeMap::new();
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
