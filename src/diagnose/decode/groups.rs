//! Pieces of one buffer, grouped by the weights that they hold.

use super::{NOISE_SHARE, Reading, largest};
use crate::spec::Usage;

/// Pieces of parameters that are used alike, grouped by what they hold.
pub(super) struct Groups {
    usage: Usage,
    special: bool,
    tolerance: f64,
    planned: Vec<f64>,
    groups: Vec<Group>,
}

struct Group {
    weights: Vec<f64>,
    residual: f64,
    params: Vec<usize>,
}

impl Groups {
    /// No pieces yet: of one special parameter, or of ordinary ones. `planned` is what the plan
    /// expects in them.
    pub fn new(usage: Usage, special: bool, planned: Vec<f64>, tolerance: f64) -> Self {
        Self { usage, special, tolerance, planned, groups: Vec::new() }
    }

    /// How the parameters are used.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// What the plan expects in the pieces.
    pub fn planned(&self) -> &[f64] {
        &self.planned
    }

    /// All different weights so far that explain their pieces.
    pub fn found(&self) -> impl Iterator<Item = &[f64]> {
        let explained = |group: &&Group| group.residual <= self.slack(&group.weights);
        self.groups.iter().filter(explained).map(|group| &group.weights[..])
    }

    /// Whether some piece is explained by no weights.
    pub fn has_unexplained(&self) -> bool {
        self.groups.iter().any(|group| group.residual > self.slack(&group.weights))
    }

    /// Adds a piece of a parameter.
    pub fn add(&mut self, weights: Vec<f64>, residual: f64, param: usize) {
        let slack = self.slack(&weights);
        let explained = residual <= slack;
        let alike = |other: &[f64]| weights.iter().zip(other).all(|(a, b)| (a - b).abs() <= slack);
        // Windows that no weights explain have nothing in common; one entry stands for all.
        let same = self.groups.iter().position(|group| {
            let group_explained = group.residual <= self.slack(&group.weights);
            explained == group_explained && (!explained || alike(&group.weights))
        });
        match same.map(|index| &mut self.groups[index]) {
            Some(group) => {
                group.residual = group.residual.max(residual);
                group.params.push(param);
            }
            None => self.groups.push(Group { weights, residual, params: vec![param] }),
        }
    }

    /// What may pass as noise beside these weights. A wrong scale (1/3, say) is rounded in the
    /// narrowest dtype on the way, which leaves noise far below the deviation itself.
    fn slack(&self, weights: &[f64]) -> f64 {
        let deviation =
            largest(weights.iter().zip(&self.planned).map(|(weight, p)| (weight - p).abs()));
        self.tolerance.max(NOISE_SHARE * deviation)
    }

    /// One reading for each group. The only group of ordinary parameters, if there are several,
    /// names none of them: it stands for all that no other reading of the buffer names.
    pub fn into_readings(self, covered: f64, name: impl Fn(usize) -> String) -> Vec<Reading> {
        let ordinary = self.groups.len() == 1 && !self.special;
        let name = &name;
        self.groups
            .into_iter()
            .map(|mut group| {
                group.params.sort_unstable();
                group.params.dedup();
                Reading {
                    weights: group.weights,
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
