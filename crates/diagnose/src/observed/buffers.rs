//! The buffers that ranks recorded, in the order of the run.

use std::collections::{BTreeSet, HashMap};

use zprobe_model::trace::{Event, LayoutName, Payload, Point};

/// The recorded buffers of all ranks, with indices by point and step.
#[derive(Debug)]
pub struct Buffers<'a> {
    /// All buffers: moment by moment in recording order, and by rank within a moment.
    pub all: Vec<Buffer<'a>>,
    /// The indices into `all` of the buffers of a (point, step).
    at: HashMap<(Point, usize), Vec<usize>>,
    /// The indices into `all` of the buffers of a (point, step, rank).
    of_rank: HashMap<(Point, usize, usize), Vec<usize>>,
    /// The number of buffers that each rank has recorded so far.
    counts: Vec<usize>,
    /// The steps before which the script changed all gradients on purpose; see `undo_changes`.
    pub changed: BTreeSet<usize>,
}

/// A recorded buffer of one rank.
#[derive(Clone, Copy, Debug)]
pub struct Buffer<'a> {
    /// The rank that recorded the buffer.
    pub rank: usize,
    /// The index of the optimizer step; `None` before the first step.
    pub step: Option<usize>,
    /// The microbatch; `None` for points after the accumulation.
    pub microbatch: Option<usize>,
    /// The point on the gradient's way to the parameters at which the buffer was recorded.
    pub point: Point,
    /// The part of the model that the buffer holds.
    pub layout: LayoutName,
    /// The recorded elements.
    pub payload: &'a Payload,
    /// The index of this buffer among all buffers of its rank.
    ordinal: usize,
}

impl Buffer<'_> {
    /// True if both buffers were recorded at the same moment of the run: they have the same index on their ranks.
    pub fn is_beside(&self, other: &Self) -> bool {
        self.ordinal == other.ordinal
    }
}

impl<'a> Buffers<'a> {
    /// Creates an empty list for this number of ranks.
    pub(super) fn new(ranks: usize) -> Self {
        let (at, of_rank) = (HashMap::new(), HashMap::new());
        Self { all: Vec::new(), at, of_rank, counts: vec![0; ranks], changed: BTreeSet::new() }
    }

    /// Stores an event of a rank, if the event is a buffer.
    pub(super) fn see(&mut self, rank: usize, event: &'a Event) {
        let Event::Buffer { step, microbatch, point, layout, payload } = event else { return };
        let ordinal = self.counts[rank];
        self.counts[rank] += 1;
        self.all.push(Buffer {
            rank,
            step: *step,
            microbatch: *microbatch,
            point: *point,
            layout: *layout,
            payload,
            ordinal,
        });
    }

    /// Sorts the buffers of all ranks into one order, and indexes them. The order of the trace depends on chance, and
    /// the report must not depend on it.
    pub(super) fn sort(&mut self) {
        self.all.sort_by_key(|buffer| (buffer.ordinal, buffer.rank));
        for (place, buffer) in self.all.iter().enumerate() {
            if let Some(step) = buffer.step {
                let of_rank = (buffer.point, step, buffer.rank);
                self.at.entry((buffer.point, step)).or_default().push(place);
                self.of_rank.entry(of_rank).or_default().push(place);
            }
        }
    }

    /// Replaces what the optimizers consumed in these steps by the gradients before the script changed them.
    pub fn undo_changes(&mut self, steps: &BTreeSet<usize>) {
        let is_of = |it: &Buffer<'_>, point| {
            it.point == point && it.step.is_some_and(|step| steps.contains(&step))
        };
        let before: HashMap<_, _> = (self.all.iter().filter(|it| is_of(it, Point::BeforeStep)))
            .map(|it| ((it.step, it.rank, it.layout), it.payload))
            .collect();
        for buffer in self.all.iter_mut().filter(|it| is_of(it, Point::OptimizerInput)) {
            if let Some(payload) = before.get(&(buffer.step, buffer.rank, buffer.layout)) {
                buffer.payload = payload;
            }
        }
        self.changed.extend(steps);
    }

    /// Iterates over the buffers of a point and step, by rank.
    pub fn at(&self, point: Point, step: usize) -> impl Iterator<Item = &Buffer<'a>> {
        self.at.get(&(point, step)).into_iter().flatten().map(|&place| &self.all[place])
    }

    /// Iterates over the recorded buffers of one rank at a point of a step.
    pub fn of_rank(
        &self,
        rank: usize,
        point: Point,
        step: usize,
    ) -> impl Iterator<Item = &Buffer<'a>> {
        let places = self.of_rank.get(&(point, step, rank));
        places.into_iter().flatten().map(|&place| &self.all[place])
    }
}
