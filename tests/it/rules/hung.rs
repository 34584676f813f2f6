//! The ranks that ZP902 names: ranks that hang, and ranks that wait for them.

use zprobe_diagnose::diagnose;
use zprobe_model::spec::{Engine, Observation, SpecRequest};
use zprobe_model::trace::{CollectiveOp, Event, Frame, Meeting, Record, Trace, Waiting};

use super::scenarios::request;
use crate::simulator::{Cut, Simulation};

/// A run of two ranks that ends with this event, before either rank had finished.
fn ended_by(engine: Engine, observe: Observation, end: Event) -> Trace {
    let mut trace = Simulation::new(request(), Cut::Flat).trace();
    trace.records.retain(|record| {
        matches!(
            record.event,
            Event::RunStarted { .. } | Event::RankReady { .. } | Event::Model { .. }
        )
    });
    let request = SpecRequest { engine: Some(engine), ..SpecRequest::default() };
    trace.spec.settings = request.resolve().expect("a valid request").settings;
    trace.spec.observe = observe;
    trace.records.push(Record { rank: None, event: end, ..trace.records[0].clone() });
    trace
}

fn silent(silent: &[usize]) -> Event {
    Event::TimedOut { silent: silent.to_vec(), timeout_s: 5, waiting: vec![] }
}

/// The message of the only finding; true if its evidence says that the waiting ranks are not known.
fn said(trace: &Trace) -> (String, bool) {
    let report = diagnose(trace);
    let [finding] = &report.findings[..] else { panic!("{:?}", report.findings) };
    assert_eq!(finding.code, "ZP902");
    let is_unknown = finding.evidence.iter().any(|line| line.contains("it is unknown which"));
    (finding.message.clone(), is_unknown)
}

#[test]
fn it_is_not_known_who_waits_where_not_every_collective_is_watched() {
    for (engine, observe, expected) in [
        (Engine::Ddp, Observation::Full, true),
        (Engine::DeepSpeed, Observation::Full, true),
        (Engine::Fsdp2, Observation::Outcome, true),
        (Engine::Native, Observation::Full, false),
    ] {
        let (message, is_unknown) = said(&ended_by(engine, observe, silent(&[0, 1])));
        assert_eq!((&*message, is_unknown), ("ranks 0 and 1 hung: no event for 5 s", expected));
        let (message, is_unknown) = said(&ended_by(engine, observe, silent(&[1])));
        assert_eq!((&*message, is_unknown), ("hung: no event for 5 s", false));
    }
}

#[test]
fn ranks_that_wait_are_no_part_of_what_hangs() {
    let meeting = Meeting::Collective { sequence: 5, op: CollectiveOp::AllReduce };
    let waiting = vec![Waiting { rank: 0, meeting }];
    let end = Event::TimedOut { silent: vec![1], timeout_s: 5, waiting };
    let trace = ended_by(Engine::DeepSpeed, Observation::Full, end);
    let expected = "hung: no event for 5 s; rank 0 waits for it in all-reduce 5";
    assert_eq!(said(&trace), (expected.to_owned(), false));
    assert_eq!(diagnose(&trace).findings[0].rank, Some(1));
}

/// The stack of a rank, the innermost call first; each call is given as a file and a function.
fn stack(rank: usize, calls: &[(&str, &str)]) -> Event {
    let frame = |&(file, function): &(&str, &str)| Frame {
        file: file.to_owned(),
        line: 7,
        function: function.to_owned(),
        is_own: file == "train.py",
    };
    Event::StackTaken { rank, thread: 0, frames: calls.iter().map(frame).collect() }
}

/// A run that ended with these stacks and the silence of both ranks.
fn ended_at(stacks: [&[(&str, &str)]; 2]) -> Trace {
    let mut trace = ended_by(Engine::Ddp, Observation::Full, silent(&[0, 1]));
    for (rank, calls) in stacks.into_iter().enumerate() {
        let event = stack(rank, calls);
        trace.records.push(Record { rank: None, event, ..trace.records[0].clone() });
    }
    trace
}

const REDUCING: [(&str, &str); 3] = [
    ("torch/distributed/distributed_c10d.py", "all_reduce"),
    ("torch/distributed/c10d_logger.py", "wrapper"),
    ("train.py", "average"),
];

#[test]
fn a_stack_says_who_waits_for_whom() {
    let trace = ended_at([&REDUCING, &[("train.py", "load"), ("train.py", "main")]]);
    let expected = "hung: rank 1 is in train.py:7 (load) while rank 0 waits in all_reduce, called from \
                    train.py:7 (average): no event for 5 s";
    assert_eq!(said(&trace), (expected.to_owned(), false));
    assert_eq!(diagnose(&trace).findings[0].rank, Some(1));
}

#[test]
fn ranks_that_all_wait_for_a_compilation_wait_for_a_lock_that_was_left() {
    let waits = [("torch/utils/file_baton.py", "wait"), ("train.py", "main")];
    let compiles = [("subprocess.py", "communicate"), ("train.py", "main")];
    let names_lock = |stacks| said(&ended_at(stacks)).0.contains("~/.cache/torch_extensions");
    assert!(names_lock([&waits, &waits]));
    assert!(!names_lock([&compiles, &waits]));
}

#[test]
fn ranks_that_all_wait_are_named_with_their_places() {
    let backward = [("torch/autograd/graph.py", "_engine_run_backward"), ("train.py", "main")];
    let trace = ended_at([&REDUCING, &backward]);
    let expected = "hung: rank 0 waits in all_reduce, called from train.py:7 (average); rank 1 waits in \
                    backward, called from train.py:7 (main): no event for 5 s";
    assert_eq!(said(&trace), (expected.to_owned(), false));
    let expected = "hung: ranks 0 and 1 wait in all_reduce, called from train.py:7 (average): no event \
                    for 5 s";
    assert_eq!(said(&ended_at([&REDUCING, &REDUCING])).0, expected);
}

#[test]
fn a_trace_that_names_ranks_which_there_are_not_is_read_all_the_same() {
    let waiting = vec![Waiting { rank: 99, meeting: Meeting::Start }];
    let end = Event::TimedOut { silent: vec![1, 77], timeout_s: 5, waiting };
    let trace = ended_by(Engine::DeepSpeed, Observation::Full, end);
    assert_eq!(said(&trace).0, "hung: no event for 5 s");
}
