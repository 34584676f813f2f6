//! Renders the trace of a run as Chrome trace events, which Perfetto and `chrome://tracing` open.
//!
//! A slice has a beginning and an end that the trace records. A moment whose end is not recorded is an instant event.
//! Every slice is a complete event (`X`), because Perfetto puts an event `B` after a slice `X` that begins at the same
//! time. Times are whole microseconds, so that rounding cannot let a slice reach beyond the slice around it.

use std::cmp::Reverse;

use serde_json::{Value, json};

use super::machines::Machine;
use crate::timeline::Clocks;
use crate::{Finding, Report};
use zprobe_model::spec::Point;
use zprobe_model::trace::{Event, Phase, Trace};
use zprobe_model::visible::{self, Visible};

/// The tracks of a rank, in the order of their numbers, which begin at 1.
const TRACKS: [&str; 4] = ["steps and microbatches", "buckets", "collectives", "optimizer"];
const STEPS: usize = 1;
const BUCKETS: usize = 2;
const COLLECTIVES: usize = 3;
const OPTIMIZER: usize = 4;

/// Renders the trace of a report as a JSON document with one event in each line.
///
/// # Errors
/// If a number in the report is not finite, which never happens in a report that the crate `zprobe-diagnose` builds.
pub fn trace_events(report: &Report, trace: &Trace) -> anyhow::Result<String> {
    let clocks = Clocks::of(trace);
    let times = || trace.records.iter().map(|record| clocks.time(record));
    let start = times().min().unwrap_or(0);
    let micros = |time: u64| time.saturating_sub(start) / 1000;
    let end = micros(times().max().unwrap_or(0));
    let is_script = trace.spec.script().is_some();
    // Perfetto shows an event of global scope on a track without a name, so the whole run is a process after the ranks.
    let run = trace.spec.world_size;
    let processes = (0..run).map(|rank| Process::new(rank, is_script));
    let mut processes: Vec<Process<'_>> = processes.collect();
    let mut events: Vec<Value> = Vec::new();
    for record in &trace.records {
        let t = micros(clocks.time(record));
        match (&record.event, record.rank) {
            (event, Some(rank)) => {
                if let Some(process) = processes.get_mut(rank) {
                    process.see(t, event);
                }
            }
            (Event::RankExited { rank, .. }, None) => {
                let told = report.ranks.get(*rank);
                if let (Some(process), Some(told)) = (processes.get_mut(*rank), told) {
                    process.ended = Some(t);
                    let name = format!("rank ended: {}", told.ending());
                    events.push(instant(&name, t, *rank, json!({})));
                }
            }
            (Event::TimedOut { .. }, None) => {
                events.push(instant("timed out", t, run, json!({})));
            }
            _ => {}
        }
    }
    events.extend(report.findings.iter().map(|finding| {
        let mut event = found(finding, &processes, end);
        event["args"]["again"] = json!(report.run.command);
        event
    }));
    events.extend(process_names(run, "whole run", -1));
    let machines = Machine::all(report, trace);
    for process in processes {
        let of_rank = |machine: &&Machine| machine.ranks.contains(&process.rank);
        let machine = machines.iter().find(of_rank).filter(|_| machines.len() > 1);
        events.extend(names(process.rank, machine.map(|it| it.name.as_str())));
        events.extend(process.close(end));
    }
    // A slice comes before the slices in it, also if both begin at the same time.
    events.sort_by_key(|event| (event["ts"].as_u64(), Reverse(event["dur"].as_u64())));
    let about = json!({
        "zprobe": report.run.versions.get("zprobe"),
        "engine": report.run.spec.engine(),
        "verdict": report.verdict,
        "again": report.run.command,
        "started_ns": start,
    });
    let (about, events) = Visible::of(&(about, events))?.into_inner();
    let events: Vec<String> = events.iter().map(Value::to_string).collect();
    let events = events.join(",\n");
    let head = format!("{{\"displayTimeUnit\": \"ms\", \"otherData\": {about}, \"traceEvents\": [");
    Ok(visible::escaped(format!("{head}\n{events}\n]}}\n")))
}

/// The events that name the process of a rank and its tracks.
fn names(rank: usize, machine: Option<&str>) -> Vec<Value> {
    let mut names = process_names(rank, &format!("rank {rank}"), rank as i64).to_vec();
    let labels = |machine| metadata("process_labels", rank, 0, json!({"labels": machine}));
    names.extend(machine.map(labels));
    for (track, name) in (1..).zip(TRACKS) {
        let tid = tid(rank, track);
        names.push(metadata("thread_name", rank, tid, json!({"name": name})));
        names.push(metadata("thread_sort_index", rank, tid, json!({"sort_index": track})));
    }
    names
}

fn process_names(pid: usize, name: &str, place: i64) -> [Value; 2] {
    let sort_index = metadata("process_sort_index", pid, 0, json!({"sort_index": place}));
    [metadata("process_name", pid, 0, json!({"name": name})), sort_index]
}

fn metadata(kind: &str, pid: usize, tid: usize, args: Value) -> Value {
    json!({"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args})
}

/// The number of a track of a rank. Perfetto calls a thread with the number of its process the main thread.
fn tid(rank: usize, track: usize) -> usize {
    10 * rank + track
}

/// An event at a time, of the process of a rank or of the whole run.
fn instant(name: &str, t: u64, pid: usize, args: Value) -> Value {
    let tid = tid(pid, STEPS);
    json!({"ph": "i", "s": "p", "name": name, "ts": t, "pid": pid, "tid": tid, "args": args})
}

/// The event of a finding, at the beginning of the step, the microbatch or the bucket flush that the finding is about,
/// or at the end of the run.
fn found(finding: &Finding, processes: &[Process<'_>], end: u64) -> Value {
    let is_it = |event: &Event, bucket: Option<usize>| {
        let (step, microbatch) = event.moment();
        let flush =
            if let Event::BucketFlushed { flush, .. } = event { Some(*flush) } else { None };
        flush == bucket
            && step == finding.step
            && (finding.microbatch.is_none() || microbatch == finding.microbatch)
    };
    let at = |bucket: Option<usize>| {
        let of_rank = processes.iter().filter(|it| finding.rank.is_none_or(|rank| rank == it.rank));
        let moments = of_rank.flat_map(|process| &process.moments);
        moments.filter(|(_, event)| is_it(event, bucket)).map(|(t, _)| *t).min()
    };
    let t = finding.bucket.and_then(|flush| at(Some(flush))).or_else(|| at(None)).unwrap_or(end);
    let name = format!("{} {}", finding.code, finding.name);
    instant(&name, t, finding.rank.unwrap_or(processes.len()), json!(finding))
}

/// The end of a slice.
#[derive(Clone, Copy)]
enum End {
    /// The slice ended at this time.
    At(u64),
    /// The slice was under way at this time, when the rank or the recording ended.
    With(u64),
    /// The trace does not record the end, so the slice becomes an instant event.
    Unknown,
}

/// A phase that has begun and whose end was not seen yet.
#[derive(Clone, Copy)]
struct Open {
    phase: Phase,
    step: usize,
    microbatch: usize,
    from: u64,
}

/// A step whose phases are collected.
struct Step {
    number: usize,
    from: u64,
    /// The time of the last phase of the step so far.
    to: u64,
    args: Value,
    phases: Vec<Value>,
}

/// The events of one rank, while its records are read.
struct Process<'a> {
    rank: usize,
    is_script: bool,
    /// The time of the last record.
    now: u64,
    /// The time at which the process of the rank had ended, if the trace has its end.
    ended: Option<u64>,
    events: Vec<Value>,
    /// The beginnings of phases and the bucket flushes, with their times.
    moments: Vec<(u64, &'a Event)>,
    step: Option<Step>,
    phase: Option<Open>,
    /// The optimizers that are stepping, each called by the optimizer before it.
    optimizers: Vec<Open>,
}

impl<'a> Process<'a> {
    fn new(rank: usize, is_script: bool) -> Self {
        let (events, moments, optimizers) = (vec![], vec![], vec![]);
        let (now, ended, step, phase) = (0, None, None, None);
        Self { rank, is_script, now, ended, events, moments, step, phase, optimizers }
    }

    fn see(&mut self, t: u64, event: &'a Event) {
        // A clock that was set back does not let the time of a rank run backwards.
        let t = t.max(self.now);
        self.now = t;
        self.count(t, event);
        match event {
            Event::PhaseEntered { step, microbatch, phase } => {
                self.moments.push((t, event));
                self.enter(Open { phase: *phase, step: *step, microbatch: *microbatch, from: t });
            }
            Event::StepTaken { .. } => {
                let taken = self.optimizers.pop();
                self.end(taken, End::At(t));
            }
            Event::StepTimed { .. } => {
                self.end_phases_of_run(t);
                if let Some(step) = &mut self.step {
                    step.args = json!(event);
                }
            }
            Event::Finished => {
                self.end_phases_of_run(t);
                self.end_step();
            }
            Event::BucketFlushed { flush, params, .. } => {
                self.moments.push((t, event));
                let mut args = json!(event);
                args["params"] = json!(params.len());
                self.mark(BUCKETS, &format!("flush {flush}"), t, args);
            }
            Event::CollectiveEntered { op, dtype, numel, .. } => {
                let mut args = json!(event);
                args["bytes"] = json!(size(dtype).and_then(|size| numel.checked_mul(size)));
                self.mark(COLLECTIVES, op.name(), t, args);
            }
            Event::Failed { .. } => self.mark(STEPS, "failed", t, json!({})),
            Event::OptimizerCalled { .. } | Event::DigestsGathered { .. } => {
                self.end_phases_of_run(t);
            }
            _ => {
                let ended = self.phase.take_if(|phase| phase.is_ended_by(event));
                self.end(ended, End::At(t));
            }
        }
    }

    /// Adds the numbers that the rank reports to the counters of its process.
    fn count(&mut self, t: u64, event: &Event) {
        let (name, value) = match event {
            Event::Loss { value, .. } => ("loss".to_owned(), *value),
            Event::LossWeighed(weighed) => ("loss".to_owned(), weighed.value),
            Event::GradientNorm { norm, .. } => ("global norm of the gradient".to_owned(), *norm),
            Event::LossScaled { scale, .. } => ("loss scale".to_owned(), Some(*scale)),
            Event::Buffer { point, payload, .. } if *point <= Point::OptimizerInput => {
                (format!("norm of the {}", point.describe()), payload.norm)
            }
            _ => return,
        };
        if let Some(value) = value.filter(|value| value.is_finite()) {
            let (pid, args) = (self.rank, json!({"value": value}));
            self.events.push(json!({"ph": "C", "name": name, "ts": t, "pid": pid, "args": args}));
        }
    }

    /// Begins a phase, which in a run ends the phase before. In a script the optimizer may step inside of a backward,
    /// and no phase begins when a backward is over.
    fn enter(&mut self, open: Open) {
        let Open { phase, step: number, from, .. } = open;
        self.end_phases_of_run(from);
        if phase == Phase::Digests || self.step.as_ref().is_none_or(|step| step.number != number) {
            self.end_step();
        }
        if phase != Phase::Digests {
            let new = || Step { number, from, to: from, args: json!({}), phases: vec![] };
            self.step.get_or_insert_with(new);
        }
        if phase == Phase::OptimizerStep {
            self.optimizers.push(open);
        } else {
            let before = self.phase.replace(open);
            self.end(before, End::Unknown);
        }
    }

    /// Ends the phases that have begun, unless the rank is one of a script.
    fn end_phases_of_run(&mut self, t: u64) {
        if !self.is_script {
            self.end_phases(End::At(t));
        }
    }

    fn end_phases(&mut self, end: End) {
        while let Some(open) = self.optimizers.pop().or_else(|| self.phase.take()) {
            self.end(Some(open), end);
        }
    }

    /// Adds a phase with its end to its step. The exchange of digests comes after the step.
    fn end(&mut self, open: Option<Open>, end: End) {
        let Some(open) = open else { return };
        let event = self.slice(&open, end);
        match &mut self.step {
            Some(step) if open.phase != Phase::Digests => {
                let to = if let End::At(to) | End::With(to) = end { to } else { open.from };
                step.to = step.to.max(to);
                step.phases.push(event);
            }
            _ => self.events.push(event),
        }
    }

    /// Ends a step. The ends of its phases that are still open were not recorded.
    fn end_step(&mut self) {
        self.end_phases(End::Unknown);
        self.add_step(End::At);
    }

    /// Adds a step, which lasts as long as its phases.
    fn add_step(&mut self, end: fn(u64) -> End) {
        if let Some(step) = self.step.take() {
            let name = format!("step {}", step.number);
            self.events.push(self.event(STEPS, &name, step.from, end(step.to), step.args));
            self.events.extend(step.phases);
        }
    }

    /// Ends the recording, and returns all events.
    fn close(mut self, end: u64) -> Vec<Value> {
        let is_under_way = self.phase.is_some() || !self.optimizers.is_empty();
        let end = self.ended.unwrap_or(end).max(self.now);
        self.end_phases(End::With(end));
        self.add_step(if is_under_way { End::With } else { End::At });
        self.events
    }

    fn slice(&self, open: &Open, end: End) -> Value {
        let Open { phase, step, microbatch, from } = *open;
        let (track, name) = match phase {
            Phase::OptimizerStep => (OPTIMIZER, "optimizer step".to_owned()),
            Phase::AllGather | Phase::Digests => (STEPS, phase.to_string()),
            _ => (STEPS, format!("{phase} m{microbatch}")),
        };
        self.event(track, &name, from, end, json!({"step": step, "microbatch": microbatch}))
    }

    /// Adds an instant event to a track.
    fn mark(&mut self, track: usize, name: &str, t: u64, args: Value) {
        self.events.push(self.event(track, name, t, End::Unknown, args));
    }

    fn event(&self, track: usize, name: &str, from: u64, end: End, args: Value) -> Value {
        let (kind, key, value) = match end {
            End::At(to) | End::With(to) => ("X", "dur", json!(to.saturating_sub(from))),
            End::Unknown => ("i", "s", json!("t")),
        };
        let unfinished = if let End::With(_) = end { " (unfinished)" } else { "" };
        let (pid, tid) = (self.rank, tid(self.rank, track));
        let name = format!("{name}{unfinished}");
        json!({"ph": kind, "name": name, "ts": from, key: value, "pid": pid, "tid": tid, "args": args})
    }
}

impl Open {
    /// True if the rank emits the event only after the phase.
    fn is_ended_by(&self, event: &Event) -> bool {
        let is_here = event.moment() == (Some(self.step), Some(self.microbatch));
        is_here
            && match (self.phase, event) {
                (Phase::Forward, Event::Loss { .. } | Event::GraphWalked { .. }) => true,
                (Phase::Backward, Event::BackwardEnded { .. } | Event::HooksFired { .. }) => true,
                (Phase::Backward, Event::LossWeighed(_)) => true,
                (Phase::Backward, Event::Buffer { point, .. }) => {
                    matches!(point, Point::Accumulator | Point::BeforeStep)
                }
                _ => false,
            }
    }
}

/// The size of an element of a dtype, in bytes; `None` for an unknown dtype.
fn size(dtype: &str) -> Option<usize> {
    match dtype {
        "bool" | "uint8" | "int8" => Some(1),
        "bf16" | "fp16" | "int16" => Some(2),
        "fp32" | "int32" => Some(4),
        "fp64" | "int64" => Some(8),
        _ => None,
    }
}
