//! The labels that several panels of the page share.

use crate::Report;
use crate::words::counted;
use zprobe_model::trace::Point;

/// A moment of a step in words: the buffer, and the microbatch after which it was read.
pub(in crate::render) fn moment(
    report: &Report,
    point: Point,
    microbatch: Option<usize>,
) -> String {
    let boundary = report.run.spec.gradient_accumulation_steps.saturating_sub(1);
    match (point, microbatch) {
        (Point::LocalGradient, Some(m)) => format!("{} of microbatch {m}", point.describe()),
        (Point::Accumulator, Some(m)) if m == boundary => {
            format!("{} after microbatch {m} (boundary)", point.describe())
        }
        (Point::Accumulator, Some(m)) => format!("{} after microbatch {m}", point.describe()),
        _ => point.describe().to_owned(),
    }
}

/// Ranks in words: `ranks 0 and 1`, or `all 512 ranks`.
pub(super) fn ranks(ranks: &[usize], world_size: usize) -> String {
    if ranks.len() == world_size && world_size > 3 {
        format!("all {world_size} ranks")
    } else {
        counted("rank", ranks)
    }
}

/// A duration as text, in a unit that fits its size.
pub(super) fn duration(ns: u64) -> String {
    let ns = ns as f64;
    match ns {
        ns if ns >= 1e9 => format!("{:.2} s", ns / 1e9),
        ns if ns >= 1e8 => format!("{:.0} ms", ns / 1e6),
        ns if ns >= 1e6 => format!("{:.1} ms", ns / 1e6),
        ns if ns >= 1e3 => format!("{:.0} µs", ns / 1e3),
        ns => format!("{ns:.0} ns"),
    }
}

/// The ranges of consecutive items that are equal.
pub(super) fn runs<T: PartialEq>(items: &[T]) -> Vec<std::ops::Range<usize>> {
    let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
    for (at, item) in items.iter().enumerate() {
        match runs.last_mut() {
            Some(run) if items[run.start] == *item => run.end = at + 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_the_unit_that_suits_them() {
        let texts = [800, 45_000, 2_300_000, 269_774_984, 60_000_000_000].map(duration);
        assert_eq!(texts, ["800 ns", "45 µs", "2.3 ms", "270 ms", "60.00 s"]);
    }

    #[test]
    fn neighbours_that_are_alike_are_one_run() {
        assert_eq!(runs(&[1, 1, 2, 1]), [0..2, 2..3, 3..4]);
        assert!(runs::<u8>(&[]).is_empty());
    }
}
