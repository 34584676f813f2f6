//! Pieces of one buffer, grouped by the weights that they hold.

use std::cell::OnceCell;
use std::rc::Rc;

use super::super::bounds;
use super::super::placement::Fragment;
use super::short::Explanation;
use super::weights::Weights;
use super::{Reading, largest};
use zprobe_model::spec::Usage;
use zprobe_report::Elements;

/// A parameter, and the first of its elements and the one after the last if it is about some of them only.
pub(super) type Place = (usize, Option<[usize; 2]>);

/// The place of a piece as a whole.
pub(super) fn whole(piece: &Fragment) -> Place {
    (piece.param, None)
}

/// Pieces of parameters that are used alike, grouped by the weights that they hold.
pub(super) struct Groups {
    usage: Usage,
    special: bool,
    tolerance: f64,
    planned: Rc<Weights>,
    groups: Vec<Group>,
}

struct Group {
    /// The explanation of the first piece.
    read: Explanation,
    /// True if the weights explain the pieces.
    explained: bool,
    residual: f64,
    places: Vec<Place>,
}

impl Groups {
    /// Creates groups without pieces, of one special parameter or of ordinary ones. `planned` are
    /// the weights that the plan expects in them.
    pub fn new(usage: Usage, special: bool, planned: Rc<Weights>, tolerance: f64) -> Self {
        Self { usage, special, tolerance, planned, groups: Vec::new() }
    }

    /// Usage of the parameters.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Weights that the plan expects in the pieces.
    pub fn planned(&self) -> &Rc<Weights> {
        &self.planned
    }

    /// All different weights found so far that explain their pieces, and are no mere possibility.
    pub fn found(&self) -> impl Iterator<Item = &Rc<Weights>> {
        let is_definite = |group: &&Group| group.explained && group.read.possible.is_empty();
        self.groups.iter().filter(is_definite).map(|group| &group.read.weights)
    }

    /// True if some piece is explained by no weights.
    pub fn has_unexplained(&self) -> bool {
        self.groups.iter().any(|group| !group.explained)
    }

    /// True if weights explain what they were read from.
    pub fn explains(&self, read: &Explanation) -> bool {
        read.residual <= self.tolerance || read.residual <= self.slack(&read.weights)
    }

    /// Adds places with what they hold.
    pub fn add(&mut self, read: Explanation, places: impl IntoIterator<Item = Place>) {
        // There may be tens of thousands of weights: they are compared only where that decides.
        let explained = self.explains(&read);
        let slack = OnceCell::new();
        let alike = |other: &Explanation| {
            if read.possible.len() != other.possible.len() {
                return false;
            }
            Rc::ptr_eq(&read.weights, &other.weights) || {
                let slack = slack.get_or_init(|| self.slack(&read.weights));
                let mut pairs = read.weights.columns.iter().zip(&other.weights.columns);
                pairs.all(|(a, b)| (a - b).abs() <= *slack)
            }
        };
        // Windows that no weights explain have nothing in common; one entry stands for all.
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
                self.groups.push(Group { read, explained, residual, places });
            }
        }
    }

    /// Largest residual that passes as noise beside these weights. A wrong scale (1/3, say) is
    /// rounded in the narrowest dtype on the way, which leaves noise far below the deviation
    /// itself.
    pub fn slack(&self, weights: &Rc<Weights>) -> f64 {
        if Rc::ptr_eq(weights, &self.planned) {
            return self.tolerance;
        }
        let pairs = weights.columns.iter().zip(&self.planned.columns);
        let deviation = largest(pairs.map(|(weight, planned)| (weight - planned).abs()));
        self.tolerance.max(bounds::NOISE_BESIDE_DEVIATION * deviation)
    }

    /// Turns each group into a reading. The only group of ordinary parameters, if there are
    /// several, names none of them: it stands for all that no other reading of the buffer names.
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
