//! Renders a run as the points and pictures of TensorBoard, as JSON. The Python of the user writes the events file from
//! this JSON, because only TensorBoard's package knows the format.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::html::{classes, colour, moment};
use super::markdown;
use crate::timeline::Clocks;
use crate::words::abridged;
use crate::{Contribution, Norms, Report, Step};
use zprobe_model::spec::Point;
use zprobe_model::trace::{Event, OptimizerStepped, Trace};
use zprobe_model::visible::{self, Visible};

/// The largest number of weight matrices that become pictures. Matrices that are not as planned come first.
const MOST_PICTURES: usize = 256;

/// The setting of an optimizer's parameter group that is the learning rate.
const LEARNING_RATE: &str = "lr";

/// Renders the norms, the losses, the loss scales and the learning rates of a run as scalars, its weight matrices as
/// pictures, and its report as text.
///
/// # Errors
/// If a number in the report is not finite, which never happens in a report that the crate `zprobe-diagnose` builds.
pub fn tensorboard(report: &Report, trace: &Trace) -> anyhow::Result<String> {
    let report = &Visible::of(report)?;
    let times = Times::of(trace);
    let mut scalars: Vec<Value> = Vec::new();
    let mut scalar = |tag: String, step: usize, value: Option<f64>| {
        scalars.extend(value.map(|value| json!([tag, step, times.of_step(step), value])));
    };
    for Norms { step, microbatch, point, norms, .. } in &report.norms {
        let place = place(report, *point, *microbatch);
        for (rank, norm) in norms.iter().enumerate() {
            scalar(format!("norm/{place}/rank {rank}"), *step, *norm);
        }
    }
    for Step { step, loss, gradient_norm, input_norm } in &report.steps {
        scalar("step/loss".to_owned(), *step, *loss);
        scalar("step/gradient norm of the engine".to_owned(), *step, *gradient_norm);
        scalar("step/norm of the optimizer's input".to_owned(), *step, *input_norm);
    }
    for record in &trace.records {
        let Some(rank) = record.rank else { continue };
        match &record.event {
            Event::LossScaled { step, scale, .. } => {
                scalar(format!("loss scale/rank {rank}"), *step, Some(*scale));
            }
            Event::OptimizerStepped(OptimizerStepped {
                step,
                optimizer,
                groups,
                again: false,
                ..
            }) => {
                for (group, settings) in groups.iter().enumerate() {
                    let place = format!("optimizer {optimizer}, group {group}/rank {rank}");
                    let rate = settings.get(LEARNING_RATE).and_then(|rates| rates.first());
                    scalar(format!("learning rate/{place}"), *step, rate.copied());
                }
            }
            _ => {}
        }
    }
    let mut entries: Vec<&Contribution> = report.contributions.iter().collect();
    entries.sort_by_key(|entry| entry.as_planned);
    entries.retain(|entry| entry.weights.iter().any(|row| !row.is_empty()));
    let pictures = entries.into_iter().take(MOST_PICTURES).map(|entry| {
        let of = entry.params.as_deref().map(|params| format!(" of {}", abridged(params)));
        let place = place(report, entry.point, entry.microbatch);
        let tag = format!("weights/{place}{}/rank {}", of.unwrap_or_default(), entry.rank);
        let line = |line: Vec<&str>| line.into_iter().map(colour).collect::<Vec<_>>();
        let cells: Vec<_> = classes(entry).into_iter().map(line).collect();
        json!([tag, entry.step, times.of_step(entry.step), cells])
    });
    let pictures: Vec<Value> = pictures.collect();
    let document = json!({
        "time": times.start,
        "report": markdown::render(report)?,
        "scalars": scalars,
        "pictures": pictures,
    });
    Ok(visible::json(&document)?)
}

/// A moment of a step in words, which differ for each microbatch, because a step has one value of a tag.
fn place(report: &Report, point: Point, microbatch: Option<usize>) -> String {
    let place = moment(report, point, microbatch);
    match microbatch {
        Some(microbatch) if !place.contains("microbatch") => {
            format!("{place}, microbatch {microbatch}")
        }
        _ => place,
    }
}

/// The times of the steps of a run, in seconds since the Unix epoch.
struct Times {
    start: f64,
    ends: BTreeMap<usize, f64>,
}

impl Times {
    fn of(trace: &Trace) -> Self {
        let clocks = Clocks::of(trace);
        let seconds = |ns: u64| ns as f64 / 1e9;
        let start = trace.records.iter().map(|record| clocks.time(record)).min();
        let mut ends = BTreeMap::new();
        for record in &trace.records {
            if let Some(step) = record.event.moment().0 {
                let end = ends.entry(step).or_insert(0.0);
                *end = f64::max(*end, seconds(clocks.time(record)));
            }
        }
        Self { start: seconds(start.unwrap_or(0)), ends }
    }

    /// The time of the last record about a step.
    fn of_step(&self, step: usize) -> f64 {
        self.ends.get(&step).copied().unwrap_or(self.start)
    }
}
