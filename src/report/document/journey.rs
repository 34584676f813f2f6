//! The journey of the gradient: what was right, up to where it departs from the plan.

use super::{Block, Fact, Section, Span, Table, Topic};
use crate::report::Report;
use crate::report::words::{abridged, amount, counted};

/// Most stations that are shown before the one that departs.
const SHOWN: usize = 6;

/// The stations up to the first divergence, and what is known of it.
pub(super) fn section(report: &Report) -> Option<Section<'_>> {
    let divergence = report.first_divergence.as_ref()?;
    let before = &report.journey[..divergence.right_before.min(report.journey.len())];
    let hidden = before.len().saturating_sub(SHOWN);
    let mut blocks = Vec::new();
    if hidden > 0 {
        let text = format!("{} before these, as planned", amount(hidden, "station"));
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
    let function = divergence.function.iter().cloned().map(Span::Code);
    let function = function.map(|function| Fact::each("made by", [function]));
    let facts: Vec<Fact> = params.chain(function).collect();
    if !facts.is_empty() {
        blocks.push(Block::Facts(facts));
    }
    let title = "The journey of the gradient, to where it departs from the plan";
    Some(Section::new(Topic::Journey, title, blocks))
}

fn row(step: usize, microbatch: Option<usize>, at: String, what: String) -> [String; 4] {
    let microbatch = microbatch.map(|microbatch| microbatch.to_string()).unwrap_or_default();
    [step.to_string(), microbatch, at, what]
}
