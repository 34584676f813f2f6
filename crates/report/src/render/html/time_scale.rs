//! The scale of the timeline: linear in time, except that long idle periods are drawn shortened.

/// The width of the whole timeline, in units of the drawing.
pub(super) const WIDTH: u64 = 50_000;

/// A period in which no rank does anything is drawn shortened if it takes more than this share of the remaining time.
const LONG: f64 = 0.3;

/// The share of the width that each shortened period takes.
const CUT: f64 = 0.03;

/// The scale that maps times to x coordinates.
pub(super) struct TimeScale {
    /// Pairs of a time and its x coordinate, ascending; the scale is linear between two pairs.
    knots: Vec<(u64, u64)>,
    /// The start and the end of each idle period that the timeline draws shortened.
    pub cuts: Vec<(u64, u64)>,
}

impl TimeScale {
    /// Makes the scale for events at these times, which must ascend.
    pub fn new(moments: &[u64]) -> Self {
        let mut gaps: Vec<(u64, u64)> = moments.windows(2).map(|pair| (pair[0], pair[1])).collect();
        gaps.sort_by_key(|(from, to)| std::cmp::Reverse(to - from));
        let mut left = moments.last().copied().unwrap_or(0);
        let mut cuts = Vec::new();
        for (from, to) in gaps {
            if (to - from) as f64 <= LONG * left as f64 {
                break;
            }
            left -= to - from;
            cuts.push((from, to));
        }
        cuts.sort_unstable();
        let room = WIDTH as f64 * (1.0 - CUT * cuts.len() as f64);
        let per_ns = if left > 0 { room / left as f64 } else { 0.0 };
        let mut knots = vec![(0, 0.0)];
        let mut place = 0.0;
        let mut at = 0;
        let last = moments.last().copied().unwrap_or(0);
        for &(from, to) in &cuts {
            place += (from - at) as f64 * per_ns;
            knots.push((from, place));
            place += CUT * WIDTH as f64;
            knots.push((to, place));
            at = to;
        }
        knots.push((last, place + (last - at) as f64 * per_ns));
        let knots = knots.into_iter().map(|(t, x)| (t, x.round() as u64)).collect();
        Self { knots, cuts }
    }

    /// The x coordinate of a time.
    pub fn x(&self, t: u64) -> u64 {
        between(&self.knots, t, |knot| *knot)
    }

    /// The time at an x coordinate.
    pub fn time(&self, x: u64) -> u64 {
        between(&self.knots, x, |(t, x)| (*x, *t))
    }

    /// The pairs of a time and its x coordinate as text, for the script of the page.
    pub fn knots(&self) -> String {
        let pairs: Vec<String> = self.knots.iter().map(|(t, x)| format!("{t} {x}")).collect();
        pairs.join(" ")
    }
}

/// Interpolates linearly between the knots; `pair` returns the x and the y of a knot.
fn between(knots: &[(u64, u64)], value: u64, pair: impl Fn(&(u64, u64)) -> (u64, u64)) -> u64 {
    let after = knots.partition_point(|knot| pair(knot).0 <= value);
    match (after.checked_sub(1).map(|at| pair(&knots[at])), knots.get(after).map(&pair)) {
        (Some((a, from)), Some((b, to))) => {
            from + ((value - a) as f64 / (b - a) as f64 * (to - from) as f64).round() as u64
        }
        (Some((_, last)), None) => last,
        (None, _) => 0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_long_idle_period_takes_little_room() {
        let moments: Vec<u64> = (0..=100).map(|t| t * 10).chain([1_000_000, 1_000_010]).collect();
        let scale = TimeScale::new(&moments);
        assert_eq!(scale.cuts, [(1000, 1_000_000)]);
        assert_eq!(scale.x(1_000_000) - scale.x(1000), 1500);
        assert_eq!(scale.x(1_000_010), WIDTH);
    }

    #[test]
    fn a_recording_without_times_has_one_place() {
        assert_eq!(TimeScale::new(&[0]).x(0), 0);
        assert_eq!(TimeScale::new(&[]).x(7), 0);
    }

    proptest! {
        #[test]
        fn later_is_never_to_the_left(mut moments in proptest::collection::vec(0..u64::MAX, 2..50)) {
            moments.push(0);
            moments.sort_unstable();
            let scale = TimeScale::new(&moments);
            let places: Vec<u64> = moments.iter().map(|t| scale.x(*t)).collect();
            prop_assert!(places.is_sorted());
            prop_assert!(places.iter().all(|x| *x <= WIDTH));
        }
    }
}
