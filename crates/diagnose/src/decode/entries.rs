//! The entries of a report about contributions. In large runs, ranks whose readings agree share an entry.

use std::collections::HashMap;
use std::rc::Rc;

use zprobe_model::spec::Point;
use zprobe_report::Contribution;

use super::hypotheses::WeightSlip;
use super::{Reading, Scene, contribution};
use crate::observed::Buffer;

/// The largest world size at which ranks do not share entries.
const MOST_APART: usize = 64;

/// The entries of a report, in the order in which they were added.
pub struct Entries<'a> {
    scene: &'a Scene<'a>,
    entries: Vec<MergedReading<'a>>,
    /// The indices of entries by moment: point, step and microbatch.
    by_moment: HashMap<(Point, Option<usize>, Option<usize>), Vec<usize>>,
}

struct MergedReading<'a> {
    /// The buffer of the first rank of the entry.
    buffer: Buffer<'a>,
    reading: Reading,
    /// The other ranks with the same reading, as runs of [first, last].
    also: Vec<[usize; 2]>,
}

impl<'a> Entries<'a> {
    /// Creates an empty list.
    pub fn new(scene: &'a Scene<'a>) -> Self {
        Self { scene, entries: Vec::new(), by_moment: HashMap::new() }
    }

    /// Adds the readings of one rank's buffer.
    pub fn add(&mut self, buffer: &Buffer<'a>, readings: Vec<Reading>) {
        let merges = self.scene.observed.spec.world_size > MOST_APART;
        // The only reading of a buffer need not name its parameters if it is as planned.
        let only = readings.len() == 1;
        let moment = (buffer.point, buffer.step, buffer.microbatch);
        for mut reading in readings {
            if merges && only && reading.is_plain {
                reading.params = None;
            }
            let of_moment = self.by_moment.entry(moment).or_default();
            let entries = &mut self.entries;
            let same = of_moment.iter().copied().find(|&index| {
                let known = &entries[index];
                known.buffer.rank != buffer.rank && is_like(&known.reading, &reading)
            });
            match same.filter(|_| merges) {
                Some(index) => entries[index].take(buffer.rank, &reading),
                None => {
                    of_moment.push(entries.len());
                    entries.push(MergedReading { buffer: *buffer, reading, also: Vec::new() });
                }
            }
        }
    }

    /// Returns the entries as contributions of the report.
    pub fn into_contributions(self) -> Vec<Contribution> {
        let scene = self.scene;
        let trainable = scene.plan.params().iter().filter(|param| param.trainable).count();
        let entry = |mut entry: MergedReading<'_>| {
            let named = entry.reading.params.as_ref().map_or(0, Vec::len);
            if !entry.also.is_empty() && named == trainable {
                entry.reading.params = None;
            }
            Contribution { also: entry.also, ..contribution(scene, &entry.buffer, entry.reading) }
        };
        self.entries.into_iter().map(entry).collect()
    }
}

impl MergedReading<'_> {
    fn take(&mut self, rank: usize, reading: &Reading) {
        self.reading.residual = self.reading.residual.max(reading.residual);
        self.reading.covered = self.reading.covered.min(reading.covered);
        // A rank names the parameters that it holds a part of, or `None` for all of them.
        self.reading.params = match (self.reading.params.take(), &reading.params) {
            (Some(mut params), Some(others)) => {
                let new: Vec<String> =
                    others.iter().filter(|it| !params.contains(it)).cloned().collect();
                params.extend(new);
                Some(params)
            }
            _ => None,
        };
        match self.also.last_mut() {
            Some([_, last]) if *last == rank => {}
            Some([_, last]) if *last + 1 == rank => *last = rank,
            _ => self.also.push([rank, rank]),
        }
    }
}

/// True if the readings of two ranks agree.
fn is_like(one: &Reading, other: &Reading) -> bool {
    let explained = |it: &Reading| it.residual <= it.tolerance;
    // The same slip leaves different weights on each rank if a rank's own gradients have other factors.
    let slipped = |it: &Reading| matches!(it.slip, Some(WeightSlip::Microbatches { .. }));
    one.tolerance.to_bits() == other.tolerance.to_bits()
        && one.usage == other.usage
        && explained(one) == explained(other)
        && (Rc::ptr_eq(&one.weights, &other.weights)
            || slipped(one) && one.slip == other.slip
            || one.weights.columns == other.weights.columns)
}
