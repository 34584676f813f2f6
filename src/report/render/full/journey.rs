//! The journey of the gradient: what was right, up to where it departs from the plan.

use super::text::{Page, table};
use crate::report::words::{abridged, amount, counted};
use crate::report::{Divergence, Report, Station};

/// Most stations that are shown before the one that departs.
const SHOWN: usize = 6;

/// Writes the stations up to the first divergence, and what is known of it.
pub(super) fn journey(page: &mut Page, report: &Report, divergence: &Divergence) {
    let before = &report.journey[..divergence.right_before.min(report.journey.len())];
    let hidden = before.len().saturating_sub(SHOWN);
    if hidden > 0 {
        page.paragraph("", &format!("{} before these, as planned", amount(hidden, "station")));
    }
    let mut rows = table(["step", "microbatch", "at", ""]);
    for station in &before[hidden..] {
        let ranks = amount(station.ranks, "rank");
        rows.add_row(row(
            station.step,
            station.microbatch,
            name(station),
            format!("as planned on {ranks}"),
        ));
    }
    let at = divergence
        .point
        .map_or_else(|| hook_or_bucket(divergence), |point| point.describe().to_owned());
    let departs = format!("DEPARTS on {}", counted("rank", &divergence.ranks));
    rows.add_row(row(divergence.step, divergence.microbatch, at, departs));
    page.table(rows, 4);
    if let Some(params) = &divergence.params {
        page.paragraph("parameters: ", &abridged(params));
    }
    if let Some(function) = &divergence.function {
        page.paragraph("made by: ", function);
    }
}

fn row(step: usize, microbatch: Option<usize>, at: String, what: String) -> [String; 4] {
    let microbatch = microbatch.map(|microbatch| microbatch.to_string()).unwrap_or_default();
    [step.to_string(), microbatch, at, what]
}

fn name(station: &Station) -> String {
    station.point.describe().to_owned()
}

/// Name of the hook or bucket where the journey diverges at no buffer.
fn hook_or_bucket(divergence: &Divergence) -> String {
    match divergence.bucket {
        Some(flush) => format!("flush {flush} of the bucket"),
        None => "gradient hooks".to_owned(),
    }
}
