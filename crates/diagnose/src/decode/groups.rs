//! Pieces of one buffer, grouped by the weights that they hold.

use std::cell::OnceCell;
use std::rc::Rc;

use super::short::BestWeights;
use super::weights::ColumnWeights;
use super::{Reading, largest};
use crate::bounds;
use crate::placement::Fragment;
use zprobe_model::spec::Usage;
use zprobe_report::Elements;

/// A parameter, by its index, or a part of its elements: the index of the first one and the end of the range.
pub(super) type PiecePlace = (usize, Option<[usize; 2]>);

/// Returns the place of a piece that covers its parameter as a whole.
pub(super) fn whole(piece: &Fragment) -> PiecePlace {
    (piece.param, None)
}

/// Pieces of parameters with the same usage, grouped by the weights that they hold.
pub(super) struct PieceGroups {
    usage: Usage,
    special: bool,
    tolerance: f64,
    planned: Rc<ColumnWeights>,
    groups: Vec<PieceGroup>,
}

struct PieceGroup {
    /// The weights of the first piece.
    read: BestWeights,
    /// True if the weights explain the pieces.
    explained: bool,
    residual: f64,
    places: Vec<PiecePlace>,
}

impl PieceGroups {
    /// Creates an empty collection, for one special parameter or for all ordinary ones. `planned` are the weights
    /// that the plan expects in the pieces.
    pub fn new(usage: Usage, special: bool, planned: Rc<ColumnWeights>, tolerance: f64) -> Self {
        Self { usage, special, tolerance, planned, groups: Vec::new() }
    }

    /// The usage of the parameters.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// The weights that the plan expects in the pieces.
    pub fn planned(&self) -> &Rc<ColumnWeights> {
        &self.planned
    }

    /// Iterates over the different weights found so far that explain their pieces with certainty.
    pub fn found(&self) -> impl Iterator<Item = &Rc<ColumnWeights>> {
        let is_definite = |group: &&PieceGroup| group.explained && group.read.possible.is_empty();
        self.groups.iter().filter(is_definite).map(|group| &group.read.weights)
    }

    /// True if no weights explain some piece.
    pub fn has_unexplained(&self) -> bool {
        self.groups.iter().any(|group| !group.explained)
    }

    /// True if these weights explain the elements from which they were read, up to rounding.
    pub fn explains(&self, read: &BestWeights) -> bool {
        read.residual <= self.tolerance || read.residual <= self.slack(&read.weights)
    }

    /// Adds pieces at these places, which hold the weights `read`, to a group.
    pub fn add(&mut self, read: BestWeights, places: impl IntoIterator<Item = PiecePlace>) {
        // There may be tens of thousands of weights, so that they are compared only if the comparison decides.
        let explained = self.explains(&read);
        let slack = OnceCell::new();
        let alike = |other: &BestWeights| {
            if read.possible.len() != other.possible.len() {
                return false;
            }
            Rc::ptr_eq(&read.weights, &other.weights) || {
                let slack = slack.get_or_init(|| self.slack(&read.weights));
                let mut pairs = read.weights.columns.iter().zip(&other.weights.columns);
                pairs.all(|(a, b)| (a - b).abs() <= *slack)
            }
        };
        // Windows that no weights explain have nothing in common, and one entry stands for all of them.
        let same = self
            .groups
            .iter()
            .position(|group| explained == group.explained && (!explained || alike(&group.read)));
        match same {
            Some(index) => {
                let group = &mut self.groups[index];
                group.residual = group.residual.max(read.residual);
                group.places.extend(places);
            }
            None => {
                let (residual, places) = (read.residual, places.into_iter().collect());
                self.groups.push(PieceGroup { read, explained, residual, places });
            }
        }
    }

    /// The largest residual that counts as noise next to these weights. A wrong scale (such as 1/3) is rounded in the
    /// narrowest dtype on its way, which leaves noise far below the deviation itself.
    pub fn slack(&self, weights: &Rc<ColumnWeights>) -> f64 {
        if Rc::ptr_eq(weights, &self.planned) {
            return self.tolerance;
        }
        let pairs = weights.columns.iter().zip(&self.planned.columns);
        let deviation = largest(pairs.map(|(weight, planned)| (weight - planned).abs()));
        self.tolerance.max(bounds::NOISE_BESIDE_DEVIATION * deviation)
    }

    /// Turns each group into a reading. If all ordinary parameters are in one group, its reading names no parameters:
    /// it stands for all parameters that no other reading of the buffer names.
    pub fn into_readings(self, covered: f64, name: impl Fn(usize) -> String) -> Vec<Reading> {
        let ordinary = self.groups.len() == 1 && !self.special;
        let name = &name;
        let planned = self.planned;
        self.groups
            .into_iter()
            .map(|group| {
                let mut params: Vec<usize> = group.places.iter().map(|(param, _)| *param).collect();
                params.sort_unstable();
                params.dedup();
                let is_plain = ordinary && Rc::ptr_eq(&group.read.weights, &planned);
                let elements = group.places.iter().filter_map(|(param, range)| {
                    let [first, end] = (*range)?;
                    Some(Elements { param: name(*param), first, end })
                });
                Reading {
                    elements: elements.collect(),
                    weights: group.read.weights,
                    possible: group.read.possible,
                    slip: group.read.slip,
                    is_plain,
                    residual: group.residual,
                    tolerance: self.tolerance,
                    covered,
                    usage: self.usage,
                    params: (!ordinary || params.len() == 1)
                        .then(|| params.iter().map(|&p| name(p)).collect()),
                }
            })
            .collect()
    }
}
