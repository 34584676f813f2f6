//! The journey of the gradient, up to its first departure from the plan.

use super::{Block, Fact, Section, Table, TextSpan, Topic};
use crate::words::{abridged, amount, counted};
use crate::{Report, Station};

/// The largest number of stations that are shown before the first departure.
const SHOWN: usize = 6;

/// The section about the stations up to the first divergence, with its parameters and the engine's function.
pub(super) fn section(report: &Report) -> Option<Section<'_>> {
    let divergence = report.first_divergence.as_ref()?;
    let before = &report.journey[..divergence.right_before.min(report.journey.len())];
    let hidden = before.len().saturating_sub(SHOWN);
    let mut blocks = Vec::new();
    if hidden > 0 {
        let text = format!("{} before the first row, as planned", amount(hidden, "station"));
        blocks.push(Block::Facts(vec![Fact::new("", text)]));
    }
    let mut rows = Table::new(4, ["step", "microbatch", "at", ""]);
    for station in &before[hidden..] {
        let planned = format!("as planned on {}", amount(station.ranks, "rank"));
        let at = station.point.describe().to_owned();
        rows.row(row(station.step, station.microbatch, at, planned));
    }
    let at = match (divergence.point, divergence.bucket) {
        (Some(point), _) => point.describe().to_owned(),
        (None, Some(flush)) => format!("flush {flush} of the bucket"),
        (None, None) => "gradient hooks".to_owned(),
    };
    let departs = format!("DEPARTS on {}", counted("rank", &divergence.ranks));
    rows.row(row(divergence.step, divergence.microbatch, at, departs));
    if let Some(departs) = rows.rows.last_mut().and_then(|row| row.last_mut()) {
        departs.is_wrong = true;
    }
    blocks.push(Block::Table(rows));
    let params = divergence.params.iter().map(|params| Fact::new("parameters", abridged(params)));
    let function = divergence.function.iter().cloned().map(TextSpan::Code);
    let function = function.map(|function| Fact::each("made by", [function]));
    let facts: Vec<Fact> = params.chain(function).collect();
    if !facts.is_empty() {
        blocks.push(Block::Facts(facts));
    }
    let title = "The journey of the gradient, up to its first departure from the plan";
    Some(Section::new(Topic::Journey, title, blocks))
}

/// The place where the gradients first differ from the plan, in one line: the engine's function that makes the first
/// wrong buffer. For a script, the last right place and the first wrong place are both named, because the script may
/// have changed the buffer in between.
pub(super) fn place(report: &Report) -> Option<String> {
    let divergence = report.first_divergence.as_ref()?;
    let function = divergence.function.clone();
    let Some(point) = divergence.point.filter(|_| report.run.spec.script().is_some()) else {
        return function;
    };
    if let (true, Some(microbatch)) = (divergence.outside_backward, divergence.microbatch) {
        return Some(format!(
            "between the backwards of microbatches {} and {microbatch}: the script or a call of the engine changed \
             accumulated gradients",
            microbatch - 1,
        ));
    }
    let of = |microbatch: Option<usize>| microbatch.map(|it| format!(" of microbatch {it}"));
    let at = format!("the {}{}", point.describe(), of(divergence.microbatch).unwrap_or_default());
    let before = divergence.right_before.checked_sub(1).and_then(|it| report.journey.get(it));
    let Some(Station { microbatch, point, .. }) = before.filter(|it| it.step == divergence.step)
    else {
        return Some(format!("at {at} or before it"));
    };
    let right = format!("the {}{}", point.describe(), of(*microbatch).unwrap_or_default());
    let by = function.map_or_else(|| "the script".to_owned(), |it| format!("{it}, or the script"));
    Some(format!("between {right}, which is right, and {at}: {by}"))
}

fn row(step: usize, microbatch: Option<usize>, at: String, what: String) -> [String; 4] {
    let microbatch = microbatch.map(|microbatch| microbatch.to_string()).unwrap_or_default();
    [step.to_string(), microbatch, at, what]
}
