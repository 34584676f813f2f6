//! Limits the size of a report.

use super::{Contribution, Report};

/// The largest number of weights in a report. At 15 bytes each, they take three megabytes of indented JSON.
const MOST_NUMBERS: usize = 200_000;

impl Report {
    /// Leaves out entries of `contributions` until the others fit. Entries that are not as planned are kept first;
    /// among equals, entries of the optimizers' input come first, then later points before earlier points.
    #[must_use]
    pub fn within_bounds(mut self) -> Self {
        let last_word = self.run.spec.last_word();
        let mut order: Vec<usize> = (0..self.contributions.len()).collect();
        // The sort is stable: of two entries with equal keys, the earlier entry is kept.
        order.sort_by_key(|&index| {
            let entry = &self.contributions[index];
            (entry.as_planned, entry.point != last_word, std::cmp::Reverse(entry.point))
        });
        let mut stays = vec![true; order.len()];
        let mut numbers = 0;
        for index in order {
            let entry = &self.contributions[index];
            numbers += size(entry);
            stays[index] = numbers <= MOST_NUMBERS;
        }
        let mut stay = stays.iter();
        self.contributions.retain(|_| stay.next().copied().unwrap_or(true));
        self.contributions_left_out += stays.iter().filter(|stays| !**stays).count();
        self
    }
}

/// The number of weights in all matrices of an entry.
fn size(entry: &Contribution) -> usize {
    let lists = [&entry.weights, &entry.expected, &entry.leftover];
    lists.into_iter().flatten().map(Vec::len).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blank::report;
    use zprobe_model::spec::{Point, SpecRequest};

    fn entry(point: Point, as_planned: bool, numbers: usize) -> Contribution {
        Contribution {
            point,
            step: 0,
            microbatch: None,
            rank: 0,
            params: None,
            weights: vec![vec![1.0; numbers]],
            expected: Vec::new(),
            leftover: Vec::new(),
            residual: 0.0,
            tolerance: 0.0,
            covered: 1.0,
            as_planned,
            elements: Vec::new(),
            possible: Vec::new(),
            also: Vec::new(),
        }
    }

    #[test]
    fn what_departs_from_the_plan_stays_and_then_what_optimizers_consumed() {
        let third = MOST_NUMBERS / 3 + 1;
        let entries = [
            entry(Point::Accumulator, true, third),
            entry(Point::Accumulator, false, third),
            entry(Point::OptimizerInput, true, third),
        ];
        let spec = SpecRequest::default().resolve().expect("a valid request");
        let whole = Report { contributions: entries.to_vec(), ..report(spec) };
        let cut = whole.within_bounds();
        assert_eq!(cut.contributions, entries[1..]);
        assert_eq!(cut.contributions_left_out, 1);
        assert_eq!(cut.clone().within_bounds(), cut);
    }
}
