//! The panel of the timeline: a lane for each rank, with its phases above and its collectives below.
//!
//! All spans of one kind on all ranks are one SVG path, so that the page stays small and quick with hundreds of ranks.
//! The script of the page finds the span under the pointer in the path.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::labels::duration;
use super::time_scale::{TimeScale, WIDTH};
use crate::timeline::{Lane, Timeline};
use zprobe_model::trace::{CollectiveOp, Outcome, Phase};

/// The height of a lane, in units of the drawing.
const LANE: usize = 10;

/// The largest number of spans for which all ranks are drawn; with more spans, some ranks are left out.
const SPANS_DRAWN: usize = 60_000;

/// The data of the panel of the timeline.
pub(super) struct TimelinePanel {
    pub width: u64,
    pub height: usize,
    /// The height of the drawing, in pixels.
    pub pixels: usize,
    /// The paths of the phases: one path for each phase of a step and microbatch, with the spans of all ranks.
    pub phases: Vec<Path>,
    /// The paths of the collectives: one path for each operation, with the calls of all ranks.
    pub collectives: Vec<Path>,
    /// The path of the marks at the ends of ranks that did not finish.
    pub broken: String,
    /// The idle periods that are drawn shortened, with their lengths.
    pub cuts: Vec<Cut>,
    pub knots: String,
    /// The labels of the ranks, next to their lanes.
    pub labels: Vec<Label>,
    /// The ranks that are drawn, as a list for the script; `drawn` is their number, and `of` the number of all ranks.
    pub ranks: String,
    pub drawn: usize,
    pub of: usize,
    pub ticks: Vec<TimeTick>,
    pub legend: Vec<&'static str>,
    /// The time at which the recording began; `length` is its duration.
    pub started: String,
    pub length: String,
    pub totals: Totals,
}

/// A path of all spans with the same look.
pub(super) struct Path {
    pub class: &'static str,
    pub title: String,
    pub d: String,
}

/// A period in which no rank does anything, drawn shortened.
pub(super) struct Cut {
    pub x: u64,
    pub width: u64,
    pub title: String,
}

/// The label of a rank next to its lane.
pub(super) struct Label {
    pub rank: usize,
    /// The y coordinate of the middle of the lane, in pixels.
    pub y: String,
    pub is_broken: bool,
}

/// A tick on the axis of time.
pub(super) struct TimeTick {
    pub percent: usize,
    pub text: String,
}

/// The table of the time in each phase.
pub(super) struct Totals {
    pub heads: Vec<String>,
    pub rows: Vec<(&'static str, Vec<String>)>,
}

impl TimelinePanel {
    /// Makes the drawing of a timeline; `None` for a trace without times or without a record of any rank.
    pub fn new(timeline: &Timeline) -> Option<Self> {
        let all = &timeline.lanes;
        if timeline.length_ns == 0 || all.iter().all(|lane| lane.spans.is_empty()) {
            return None;
        }
        let scale = TimeScale::new(&timeline.moments);
        let chosen = chosen(all);
        let lanes: Vec<(usize, &Lane)> = chosen.iter().map(|&rank| (rank, &all[rank])).collect();
        let lane_pixels = match lanes.len() {
            0..=16 => 28,
            17..=64 => 14,
            65..=200 => 6,
            _ => 3,
        };
        let every = (16 / lane_pixels).max(1);
        let is_broken = |lane: &Lane| !lane.finished;
        let label = |(at, (rank, lane)): (usize, &(usize, &Lane))| Label {
            rank: *rank,
            y: format!("{:.1}", (at as f64 + 0.5) * lane_pixels as f64),
            is_broken: is_broken(lane),
        };
        let tick = |percent: usize| TimeTick {
            percent,
            text: duration(scale.time(WIDTH * percent as u64 / 100)),
        };
        let start = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(timeline.start_ns);
        Some(Self {
            width: WIDTH,
            height: lanes.len() * LANE,
            pixels: lanes.len() * lane_pixels,
            phases: phases(&lanes, &scale),
            collectives: collectives(&lanes, &scale),
            broken: broken(&lanes, &scale),
            cuts: scale.cuts.iter().map(|&(from, to)| Cut::new(&scale, from, to)).collect(),
            knots: scale.knots(),
            labels: lanes.iter().enumerate().step_by(every).map(label).collect(),
            ranks: chosen.iter().map(usize::to_string).collect::<Vec<_>>().join(" "),
            drawn: chosen.len(),
            of: all.len(),
            ticks: [0, 20, 40, 60, 80].map(tick).into(),
            legend: legend(&lanes),
            started: humantime::format_rfc3339_seconds(start).to_string(),
            length: duration(timeline.length_ns),
            totals: totals(all),
        })
    }
}

/// The ranks that are drawn: all ranks, or, if there are too many spans, every n-th rank and the ranks that did not
/// finish.
fn chosen(lanes: &[Lane]) -> Vec<usize> {
    let spans: usize = lanes.iter().map(|lane| lane.spans.len() + lane.calls.len()).sum();
    let every = spans.div_ceil(SPANS_DRAWN).max(1);
    (0..lanes.len()).filter(|&rank| rank % every == 0 || !lanes[rank].finished).collect()
}

/// Adds a horizontal stroke in a lane to the path `d`.
fn stroke(d: &mut String, scale: &TimeScale, at: usize, height: usize, from: u64, to: u64) {
    let (from, to) = (scale.x(from), scale.x(to));
    let _ = write!(d, "M{from} {}h{}", at * LANE + height, (to - from).max(1));
}

fn phases(lanes: &[(usize, &Lane)], scale: &TimeScale) -> Vec<Path> {
    let mut paths: BTreeMap<Option<(usize, usize, Phase)>, String> = BTreeMap::new();
    for (at, (_, lane)) in lanes.iter().enumerate() {
        for span in &lane.spans {
            stroke(paths.entry(span.what).or_default(), scale, at, 3, span.from, span.to);
        }
    }
    let path = |(what, d): (Option<(usize, usize, Phase)>, String)| match what {
        None => Path { class: "start-up", title: "start-up".to_owned(), d },
        Some((step, microbatch, phase)) => Path {
            class: phase.name(),
            title: format!("{phase} of step {step}, microbatch {microbatch}"),
            d,
        },
    };
    paths.into_iter().map(path).collect()
}

fn collectives(lanes: &[(usize, &Lane)], scale: &TimeScale) -> Vec<Path> {
    let mut paths: BTreeMap<CollectiveOp, String> = BTreeMap::new();
    for (at, (_, lane)) in lanes.iter().enumerate() {
        for call in &lane.calls {
            stroke(paths.entry(call.op).or_default(), scale, at, 8, call.from, call.to);
        }
    }
    let path = |(op, d): (CollectiveOp, String)| Path {
        class: "collective",
        title: format!("in a collective: {op}"),
        d,
    };
    paths.into_iter().map(path).collect()
}

fn broken(lanes: &[(usize, &Lane)], scale: &TimeScale) -> String {
    let mut d = String::new();
    for (at, (_, lane)) in lanes.iter().enumerate() {
        let ended = lane.end.filter(|(_, how)| !lane.finished || *how != Outcome::Code(0));
        if let Some((t, _)) = ended {
            let _ = write!(d, "M{} {}v{LANE}", scale.x(t), at * LANE);
        }
    }
    d
}

impl Cut {
    fn new(scale: &TimeScale, from: u64, to: u64) -> Self {
        Self {
            x: scale.x(from),
            width: scale.x(to) - scale.x(from),
            title: format!("{} without any event, drawn shortened", duration(to - from)),
        }
    }
}

/// The phases that occur, in the order of the step, after the start-up.
fn legend(lanes: &[(usize, &Lane)]) -> Vec<&'static str> {
    let spans = || lanes.iter().flat_map(|(_, lane)| &lane.spans);
    let occurs = |phase: &&Phase| spans().any(|span| span.what.is_some_and(|w| w.2 == **phase));
    let phases = Phase::ALL.iter().filter(occurs).map(|phase| phase.name());
    ["start-up"].into_iter().chain(phases).collect()
}

/// The time in each phase and in collectives: for each rank, or, if there are many ranks, the least, the median and the
/// most.
fn totals(lanes: &[Lane]) -> Totals {
    let few = lanes.len() <= super::RANKS_SHOWN;
    let sum = |lane: &Lane, phase: Option<Phase>| -> u64 {
        let of_phase = |span: &&crate::timeline::PhaseSpan| span.what.map(|w| w.2) == phase;
        let times = lane.spans.iter().filter(of_phase).map(|span| span.to - span.from);
        times.fold(0, u64::saturating_add)
    };
    let mut rows = Vec::new();
    let mut row = |name: &'static str, mut times: Vec<u64>| {
        if times.iter().all(|time| *time == 0) {
            return;
        }
        if !few {
            times.sort_unstable();
            times = vec![times[0], times[times.len() / 2], times[times.len() - 1]];
        }
        rows.push((name, times.into_iter().map(duration).collect()));
    };
    row("start-up", lanes.iter().map(|lane| sum(lane, None)).collect());
    for &phase in Phase::ALL {
        row(phase.name(), lanes.iter().map(|lane| sum(lane, Some(phase))).collect());
    }
    let in_calls = |lane: &Lane| {
        lane.calls.iter().map(|call| call.to - call.from).fold(0, u64::saturating_add)
    };
    row("in collectives (part of the above)", lanes.iter().map(in_calls).collect());
    let heads = if few {
        (0..lanes.len()).map(|rank| format!("rank {rank}")).collect()
    } else {
        ["least", "median", "most"].map(str::to_owned).to_vec()
    };
    Totals { heads, rows }
}
