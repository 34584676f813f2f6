//! The export of a trace as Chrome trace events: its slices, and its agreement with the format.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::{Value, json};
use zprobe_diagnose::diagnose;
use zprobe_model::trace::{Event, Phase, Record, Trace};
use zprobe_report::render::trace_events;

fn traces() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/traces")
}

fn trace(name: &str) -> Trace {
    Trace::read(&traces().join(name)).unwrap()
}

/// The events of the export of a trace.
fn exported(trace: &Trace) -> Vec<Value> {
    let text = trace_events(&diagnose(trace), trace).unwrap();
    let mut document: Value = serde_json::from_str(&text).unwrap();
    serde_json::from_value(document["traceEvents"].take()).unwrap()
}

/// The slices, the instant events and the counters of a process, one in each line. The process after the ranks is the
/// whole run.
fn lines(events: &[Value], pid: usize) -> String {
    let mut lines = String::new();
    for event in events.iter().filter(|it| it["pid"] == pid && it["ph"] != "M") {
        let Value::Object(members) = event else { panic!("{event}") };
        let short = |key: &str| members.get(key).map_or(String::new(), Value::to_string);
        let keys = ["ph", "s", "tid", "ts", "dur", "name"];
        let value = event["args"].get("value").unwrap_or(&Value::Null);
        let value = if event["ph"] == "C" { format!(" = {value}") } else { String::new() };
        lines += &keys.map(short).join(" ").replace('"', "");
        lines += &(value + "\n");
    }
    lines
}

/// Asserts what the format of Chrome trace events requires of each event, and that slices on a track lie in one another
/// or apart.
fn assert_valid(what: &str, events: &[Value]) {
    let mut named: BTreeSet<(u64, Option<u64>)> = BTreeSet::new();
    let mut used: BTreeSet<(u64, Option<u64>)> = BTreeSet::new();
    let mut tracks: BTreeMap<(u64, u64), Vec<(u64, u64)>> = BTreeMap::new();
    for event in events {
        let number = |key: &str| event[key].as_u64();
        let (pid, name) = (number("pid").unwrap(), event["name"].as_str().unwrap());
        assert!(event["args"].is_object(), "{what}: {event}");
        match event["ph"].as_str().unwrap() {
            "M" if name == "process_name" => assert!(named.insert((pid, None))),
            "M" if name == "thread_name" => assert!(named.insert((pid, number("tid")))),
            "M" => assert!(name.ends_with("_sort_index") || name == "process_labels"),
            "C" => assert!(event["args"]["value"].is_number() && number("ts").is_some(), "{event}"),
            "i" => {
                assert!(number("ts").is_some(), "{what}: {event}");
                let on_track = event["s"] == "t";
                assert!(on_track || event["s"] == "p", "{what}: {event}");
                used.extend([(pid, None), (pid, number("tid").filter(|_| on_track))]);
            }
            "X" => {
                let (from, tid) = (number("ts").unwrap(), number("tid").unwrap());
                used.extend([(pid, None), (pid, Some(tid))]);
                let slice = (from, from + number("dur").unwrap());
                tracks.entry((pid, tid)).or_default().push(slice);
            }
            other => panic!("{what}: {other}"),
        }
    }
    assert!(used.is_subset(&named), "{what}: without a name: {:?}", used.difference(&named));
    for (track, slices) in &tracks {
        // Perfetto keeps a stack of open slices, so this order matters too.
        let mut open: Vec<(u64, u64)> = Vec::new();
        for &(from, to) in slices {
            open.retain(|around| around.1 > from || (around.1 == from && to == from));
            if let Some(around) = open.last() {
                assert!(around.0 <= from && to <= around.1, "{what}: {track:?}: {slices:?}");
            }
            open.push((from, to));
        }
    }
}

#[test]
fn a_phase_in_which_its_rank_ended_is_marked_and_a_finding_is_at_its_microbatch() {
    let events = exported(&trace("rank-hangs"));
    insta::assert_snapshot!([0, 1, 2].map(|process| lines(&events, process)).join("\n"));
}

#[test]
fn a_rank_has_slices_for_its_phases_and_instants_for_its_buckets_and_collectives() {
    insta::assert_snapshot!(lines(&exported(&trace("empty-bucket-flush")), 1));
}

#[test]
fn every_recorded_trace_is_exported_in_the_format() {
    for entry in std::fs::read_dir(traces()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let trace = trace(&name);
        let events = exported(&trace);
        assert_valid(&name, &events);
        let of = |kind: &str| events.iter().filter(|it| it["ph"] == kind).count();
        assert!(of("X") > 0 && of("C") > 0, "{name}");
        let findings = diagnose(&trace).findings.len();
        let told = events.iter().filter(|it| it["args"]["severity"].is_string()).count();
        assert_eq!(told, findings, "{name}");
    }
}

#[test]
fn the_ranks_of_several_machines_are_labelled_and_on_one_clock() {
    let alone = trace("clean-accumulator");
    let mut trace = alone.clone();
    let ahead = 5_000_000_000;
    for record in &mut trace.records {
        let is_of_rank_1 = match record.event {
            Event::RankSpawned { rank, .. } | Event::RankExited { rank, .. } => rank == 1,
            _ => record.rank == Some(1),
        };
        record.t_ns += if is_of_rank_1 { ahead } else { 0 };
    }
    let joined = |agent: usize, clock_ns: u64| {
        let event = serde_json::from_value(json!({
            "type": "agent-joined",
            "agent": agent,
            "machine": format!("host-{agent}"),
            "first_rank": agent,
            "ranks": 1,
            "clock_ns": clock_ns,
        }));
        Record { event: event.unwrap(), rank: None, ..alone.records[0].clone() }
    };
    trace.records.splice(1..1, [joined(0, 0), joined(1, ahead)]);
    let events = exported(&trace);
    assert_valid("machines", &events);
    assert_eq!(lines(&events, 1), lines(&exported(&alone), 1));
    let labels: Vec<&Value> = events.iter().filter(|it| it["name"] == "process_labels").collect();
    assert_eq!(labels.len(), 2);
    assert_eq!(labels[1]["args"]["labels"], "host-1");
}

/// Events in any order, also in orders that no engine produces.
fn any_event() -> impl Strategy<Value = Event> {
    let phases = prop::sample::select(Phase::ALL);
    let at = || (0..2_usize, 0..2_usize);
    prop_oneof![
        8 => (at(), phases).prop_map(|((step, microbatch), phase)| {
            Event::PhaseEntered { step, microbatch, phase }
        }),
        2 => at().prop_map(|(step, microbatch)| Event::BackwardEnded { step, microbatch }),
        3 => (0..2_usize, any::<bool>()).prop_map(|(step, is_last)| Event::StepTaken { step, is_last }),
        1 => (0..2_usize).prop_map(|step| Event::OptimizerCalled { step, microbatches: vec![] }),
        1 => at().prop_map(|(step, microbatch)| Event::Loss { step, microbatch, value: Some(1.0) }),
        1 => Just(Event::Finished),
    ]
}

proptest! {
    #[test]
    fn slices_on_a_track_never_overlap_in_part(
        is_script: bool,
        recorded in prop::collection::vec((0..2_usize, 0..3000_u64, any_event()), 0..60),
    ) {
        let mut trace = trace(if is_script { "script-clean" } else { "clean-accumulator" });
        let first = trace.records[0].clone();
        let report = diagnose(&trace);
        let mut t_ns = first.t_ns;
        trace.records = vec![first.clone()];
        for (rank, later, event) in recorded {
            // Clocks may be set back.
            t_ns = t_ns + later - 500;
            trace.records.push(Record { rank: Some(rank), t_ns, event, ..first.clone() });
        }
        let text = trace_events(&report, &trace).unwrap();
        let mut document: Value = serde_json::from_str(&text).unwrap();
        let events: Vec<Value> = serde_json::from_value(document["traceEvents"].take()).unwrap();
        assert_valid("random", &events);
    }
}
