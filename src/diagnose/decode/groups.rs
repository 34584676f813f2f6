//! Pieces of one buffer, grouped by the weights that they hold.

use std::cell::OnceCell;
use std::rc::Rc;

use super::super::bounds;
use super::hypotheses::Slip;
use super::weights::Weights;
use super::{Reading, largest};
use crate::spec::Usage;

/// Pieces of parameters that are used alike, grouped by the weights that they hold.
pub(super) struct Groups {
    usage: Usage,
    special: bool,
    tolerance: f64,
    planned: Rc<Weights>,
    groups: Vec<Group>,
}

struct Group {
    weights: Rc<Weights>,
    /// The slip that turns the plan's weights into these, if they were found by one.
    slip: Option<Slip>,
    /// True if the weights explain the pieces.
    explained: bool,
    residual: f64,
    params: Vec<usize>,
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

    /// All different weights found so far that explain their pieces.
    pub fn found(&self) -> impl Iterator<Item = &Rc<Weights>> {
        self.groups.iter().filter(|group| group.explained).map(|group| &group.weights)
    }

    /// True if some piece is explained by no weights.
    pub fn has_unexplained(&self) -> bool {
        self.groups.iter().any(|group| !group.explained)
    }

    /// Adds a piece of a parameter with its weights, and the slip by which these were found, if
    /// any.
    pub fn add(&mut self, weights: Rc<Weights>, slip: Option<Slip>, residual: f64, param: usize) {
        // There may be tens of thousands of weights: they are compared only where that decides.
        let explained = residual <= self.tolerance || residual <= self.slack(&weights);
        let slack = OnceCell::new();
        let alike = |other: &Rc<Weights>| {
            Rc::ptr_eq(&weights, other) || {
                let slack = slack.get_or_init(|| self.slack(&weights));
                let mut pairs = weights.columns.iter().zip(&other.columns);
                pairs.all(|(a, b)| (a - b).abs() <= *slack)
            }
        };
        // Windows that no weights explain have nothing in common; one entry stands for all.
        let same = self.groups.iter().position(|group| {
            explained == group.explained && (!explained || alike(&group.weights))
        });
        match same {
            Some(place) => {
                let group = &mut self.groups[place];
                group.residual = group.residual.max(residual);
                group.params.push(param);
            }
            None => {
                self.groups.push(Group { weights, slip, explained, residual, params: vec![param] })
            }
        }
    }

    /// Largest residual that passes as noise beside these weights. A wrong scale (1/3, say) is
    /// rounded in the narrowest dtype on the way, which leaves noise far below the deviation
    /// itself.
    fn slack(&self, weights: &Rc<Weights>) -> f64 {
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
            .map(|mut group| {
                group.params.sort_unstable();
                group.params.dedup();
                let is_plain = ordinary && Rc::ptr_eq(&group.weights, &planned);
                Reading {
                    weights: group.weights,
                    slip: group.slip,
                    is_plain,
                    residual: group.residual,
                    tolerance: self.tolerance,
                    covered,
                    usage: self.usage,
                    params: (!ordinary || group.params.len() == 1)
                        .then(|| group.params.iter().map(|&p| name(p)).collect()),
                }
            })
            .collect()
    }
}
