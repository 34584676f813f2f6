//! Traces that are damaged or made up: each is either refused or gets a report. A seed makes a failure
//! repeatable.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use fastrand::Rng;
use serde_json::Value;
use zprobe_diagnose::{diagnose, rules};
use zprobe_model::trace::{TRACE_FILE, Trace};
use zprobe_report::render::{html, render};
use zprobe_report::{Form, Verdict};

/// The traces that are damaged, and whose lines are mixed into each other.
const FIXTURES: &[&str] = &[
    "boundary-leak",
    "rank-dies",
    "clean-ipg-bucket",
    "clean-stage-3",
    "collective-skipped",
    "rank-rubbish",
];

/// The number of damaged copies of each fixture.
const ROUNDS: u64 = 60;

/// The limit on the peak memory of this process, in KiB: far above the need of any trace, and far below the
/// numbers in a damaged trace.
const MOST_MEMORY: u64 = 2 << 20;

fn lines(name: &str) -> Vec<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/traces").join(name);
    fs::read_to_string(dir.join(TRACE_FILE)).unwrap().lines().map(str::to_owned).collect()
}

/// A number that programs often handle wrongly.
fn number(rng: &mut Rng) -> Value {
    const ODD: &[u64] =
        &[0, 1, 2, 3, 63, 64, 65_535, 65_536, 1 << 31, 1 << 40, u64::MAX - 1, u64::MAX];
    match rng.u8(..8) {
        0 => Value::from(-1),
        1 => Value::from(1e308),
        2 => Value::from(-0.0),
        _ => Value::from(ODD[rng.usize(..ODD.len())]),
    }
}

/// Changes one value somewhere in a record.
fn twist(value: &mut Value, rng: &mut Rng) {
    match value {
        Value::Object(members) if !members.is_empty() => {
            let at = rng.usize(..members.len());
            let key = members.keys().nth(at).unwrap().clone();
            match rng.u8(..12) {
                0 => drop(members.remove(&key)),
                1 => drop(members.insert(key, Value::Null)),
                _ => twist(members.get_mut(&key).unwrap(), rng),
            }
        }
        Value::Array(items) if !items.is_empty() => {
            let at = rng.usize(..items.len());
            match rng.u8(..12) {
                0 => drop(items.remove(at)),
                1 => items.push(items[at].clone()),
                2 => items.clear(),
                _ => twist(&mut items[at], rng),
            }
        }
        Value::Number(_) => *value = number(rng),
        Value::Bool(truth) => *truth = !*truth,
        Value::String(text) => match rng.u8(..4) {
            0 => text.clear(),
            1 => *text = text.chars().rev().collect(),
            2 => *text = text.chars().take(text.len() / 2).collect(),
            _ => text.push('\u{202e}'),
        },
        other => *other = number(rng),
    }
}

/// A damaged copy of a trace, with lines of another trace.
fn damaged(lines: &[String], others: &[String], rng: &mut Rng) -> Vec<u8> {
    let mut lines = lines.to_vec();
    for _ in 0..rng.usize(1..4) {
        let at = rng.usize(..lines.len());
        match rng.u8(..10) {
            0 => drop(lines.remove(at)),
            1 => lines.insert(at, lines[at].clone()),
            2 => lines.swap(0, at),
            3 => lines.insert(at, others[rng.usize(..others.len())].clone()),
            4 => lines.truncate(at + 1),
            _ => {
                let mut record: Value = serde_json::from_str(&lines[at]).unwrap_or(Value::Null);
                twist(&mut record, rng);
                lines[at] = record.to_string();
            }
        }
    }
    let mut bytes = (lines.join("\n") + "\n").into_bytes();
    if rng.u8(..6) == 0 {
        let at = rng.usize(..bytes.len());
        bytes[at] = rng.u8(..);
    }
    bytes
}

/// Reads, diagnoses and renders a trace; the error is the reason why there is no report.
fn used(dir: &Path) -> Result<(), String> {
    let trace = Trace::read(dir).map_err(|error| error.to_string())?;
    let report = diagnose(&trace);
    for format in Form::ALL {
        render(&report, *format).map_err(|error| format!("{format}: {error}"))?;
    }
    let page = html(&report, &trace, &|code| rules::find(code).map(|rule| rule.doc));
    page.map(drop).map_err(|error| format!("html: {error}"))
}

/// The peak memory of this process so far, in KiB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_damaged_trace_is_refused_or_has_a_report() {
    let dir = tempfile::tempdir().unwrap();
    let rounds = std::env::var("ZPROBE_TEST_DAMAGES").ok().and_then(|it| it.parse().ok());
    let (mut refused, mut reported, mut panicked) = (0, 0, Vec::new());
    for (number, name) in FIXTURES.iter().enumerate() {
        let own = lines(name);
        let others = lines(FIXTURES[(number + 1) % FIXTURES.len()]);
        for seed in 0..rounds.unwrap_or(ROUNDS) {
            let mut rng = Rng::with_seed(seed * 31 + number as u64);
            fs::write(dir.path().join(TRACE_FILE), damaged(&own, &others, &mut rng)).unwrap();
            match catch_unwind(AssertUnwindSafe(|| used(dir.path()))) {
                Ok(Ok(())) => reported += 1,
                Ok(Err(reason)) => {
                    assert!(!reason.is_empty(), "{name}, {seed}");
                    refused += 1;
                }
                Err(_) => panicked.push(format!("{name}, seed {seed}")),
            }
            assert!(peak() < MOST_MEMORY, "{name}, seed {seed}: {} KiB", peak());
        }
    }
    assert!(panicked.is_empty(), "{panicked:#?}");
    assert!(refused > 20 && reported > 20, "{refused} refused, {reported} reported");
}

#[test]
fn a_trace_of_a_script_that_lacks_a_record_of_a_rank_is_not_clean() {
    let dir = tempfile::tempdir().unwrap();
    let whole = lines("script-clean");
    let of_ranks = (0..whole.len()).filter(|&at| !whole[at].contains(r#""rank":null"#));
    for at in of_ranks {
        let mut lines = whole.clone();
        let lost = lines.remove(at);
        fs::write(dir.path().join(TRACE_FILE), lines.join("\n")).unwrap();
        let is_clean =
            Trace::read(dir.path()).is_ok_and(|trace| diagnose(&trace).verdict == Verdict::Clean);
        assert!(!is_clean, "clean without {}", &lost[..lost.len().min(200)]);
    }
}
