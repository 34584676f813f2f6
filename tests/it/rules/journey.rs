//! The place where the journey departs from the plan, and the correct places before it.

use zprobe_model::trace::Point;
use zprobe_report::{Report, Verdict};

use super::{named, reports};

fn divergence(name: &str) -> (Report, zprobe_report::Divergence) {
    let report = named(name);
    let divergence = report.first_divergence.clone();
    (report, divergence.unwrap_or_else(|| panic!("{name} departs nowhere")))
}

#[test]
fn a_healthy_run_departs_nowhere() {
    for (name, report) in reports() {
        if report.verdict == Verdict::Clean {
            assert_eq!(report.first_divergence, None, "{name}");
            assert!(report.journey.iter().all(|station| station.departed.is_empty()), "{name}");
        }
    }
}

#[test]
fn a_leak_first_shows_where_the_reduction_lacks_the_boundary_microbatch() {
    let (report, divergence) = divergence("boundary-leak");
    assert_eq!((divergence.step, divergence.microbatch), (0, Some(1)));
    assert_eq!(divergence.point, Some(Point::Reduced));
    assert_eq!(divergence.ranks, [0, 1]);
    assert_eq!(divergence.function.as_deref(), Some("crates/rank/src/engine/reduction.rs"));
    let before = &report.journey[..divergence.right_before];
    assert_eq!(before.len(), 1);
    assert_eq!(before[0].point, Point::Accumulator);
}

#[test]
fn hooks_come_before_the_buffers_that_they_fill() {
    let (_, divergence) = divergence("dead-hooks");
    assert_eq!((divergence.step, divergence.microbatch), (0, Some(0)));
    assert_eq!((divergence.point, divergence.right_before), (None, 0));
}

#[test]
fn what_goes_wrong_after_the_step_leaves_all_before_it_right() {
    let (report, divergence) = divergence("stale-all-gather");
    assert_eq!(divergence.point, Some(Point::Parameters));
    let before = &report.journey[..divergence.right_before];
    assert!(before.iter().any(|station| station.point == Point::OptimizerInput));
    assert!(before.iter().all(|station| station.departed.is_empty()));
}
