//! Tests with traces of scripts that are made of hand-written events.

use super::told::unbegun;
use super::*;
use crate::spec::{Backend, Device, Dtype, Found, Scale, ScriptOptions, Weighting};
use crate::trace::{Frame, Phase, REST_OF_SCRIPT};

fn entered(phase: Phase, step: usize, microbatch: usize) -> Event {
    Event::PhaseEntered { step, microbatch, phase }
}

fn backward(step: usize, microbatch: usize) -> Event {
    Event::BackwardEnded { step, microbatch }
}

/// Returns the step and the microbatch that the rank with these events never began.
fn of(events: &[Event], microbatches: Option<usize>) -> Option<(usize, usize)> {
    unbegun(events.iter().enumerate(), microbatches).and_then(|it| {
        let (step, microbatch) = it.event().moment();
        step.zip(microbatch)
    })
}

#[test]
fn a_rank_goes_on_behind_a_backward_or_a_step() {
    let begun = || entered(Phase::Backward, 1, 0);
    assert_eq!(of(&[begun()], Some(2)), None);
    assert_eq!(of(&[begun(), backward(1, 0)], Some(2)), Some((1, 1)));
    assert_eq!(of(&[begun(), backward(1, 0)], Some(1)), None);
    assert_eq!(of(&[begun(), backward(1, 0)], None), Some((1, 1)));
    let stepping = || entered(Phase::OptimizerStep, 1, 1);
    assert_eq!(of(&[backward(1, 1), stepping()], Some(2)), None);
    let taken = |is_last| Event::StepTaken { step: 1, is_last };
    assert_eq!(of(&[backward(1, 1), stepping(), taken(true)], Some(2)), Some((2, 0)));
    assert_eq!(of(&[backward(1, 1), stepping(), taken(false)], Some(2)), None);
}

fn joined(world_size: usize) -> Event {
    Event::RankJoined { world_size, kind: Device::Cpu, backend: Backend::Gloo }
}

fn agreed(microbatches: usize) -> Event {
    Event::RanksAgreed { microbatches, reserved: 16, dtype: Dtype::Fp32 }
}

fn ended(step: usize) -> Event {
    Event::StepEnded { step, microbatches: 2 }
}

fn over(code: i32) -> Event {
    Event::CommandEnded { outcome: Some(Outcome::Code(code)) }
}

/// Returns the events of a rank that takes three steps.
fn steps(rank: usize) -> Vec<(Option<usize>, Event)> {
    let start = [joined(2), agreed(2)].into_iter();
    let steps = (0..3).flat_map(|step| {
        [entered(Phase::Backward, step, 0), backward(step, 0), entered(Phase::Backward, step, 1)]
            .into_iter()
            .chain([backward(step, 1), Event::StepTaken { step, is_last: true }, ended(step)])
    });
    start.chain(steps).chain([Event::Finished]).map(|event| (Some(rank), event)).collect()
}

/// Returns the settled trace of a script with these events, each with its rank.
fn settled(
    events: impl IntoIterator<Item = (Option<usize>, Event)>,
) -> Result<Vec<Record>, NoAnswer> {
    let options = ScriptOptions {
        command: vec!["python".to_owned(), "train.py".to_owned()],
        dry: false,
        observe: None,
        weighting: Weighting::Any,
        scale: Scale::Mean,
        reserved: None,
    };
    let spec = Box::new(RunSpec::of_script(options, &Found::nothing(0, 600)));
    let start = Event::RunStarted { spec, zprobe: "0".to_owned() };
    let events = [(None, start)].into_iter().chain(events);
    let record = |(rank, event)| Record { v: 1, run: "r".to_owned(), rank, seq: 0, t_ns: 0, event };
    let mut records = events.map(record).collect();
    settle(&mut records).map(|()| records)
}

fn spec(records: &[Record]) -> &RunSpec {
    let Event::RunStarted { spec, .. } = &records[0].event else { panic!("no start") };
    spec
}

#[test]
fn ranks_say_what_the_specification_is() {
    let both = steps(0).into_iter().chain(steps(1)).chain([(None, over(0))]);
    let records = settled(both).expect("three steps");
    let spec = spec(&records);
    let found = (spec.world_size, spec.steps, spec.gradient_accumulation_steps);
    assert_eq!(found, (2, 3, 2));
    assert!(spec.is_settled());
    let of_rank = records.iter().filter(|it| it.rank == Some(1));
    let numbers: Vec<u64> = of_rank.map(|it| it.seq).collect();
    let events = "6 phases, 6 ends of backwards, 3 optimizer steps, 3 ends of steps, finished";
    assert_eq!(numbers, (0..19).collect::<Vec<u64>>(), "{events}");
    let exits = records.iter().filter(|it| matches!(it.event, Event::RankExited { .. }));
    assert_eq!(exits.count(), 2, "a rank that has finished is let go");
}

#[test]
fn what_was_given_up_is_not_told_and_what_was_begun_is() {
    let mut events = steps(0);
    let unfinished = [entered(Phase::Backward, 3, 0), backward(3, 0)].map(|it| (Some(0), it));
    events.splice(events.len() - 1.., unfinished);
    events.insert(6, (Some(0), Event::WindowGivenUp { step: 0, microbatches: 2 }));
    let one = |(rank, event)| match event {
        Event::RankJoined { .. } => (rank, joined(1)),
        event => (rank, event),
    };
    let records = settled(events.into_iter().map(one)).expect("three steps");
    let begun = |step| {
        let is_it = |it: &&Record| it.event == entered(Phase::Backward, step, 0);
        records.iter().filter(is_it).count()
    };
    assert_eq!([begun(0), begun(1), begun(3)], [0, 1, 1]);
}

#[test]
fn a_rank_that_hangs_is_told_of_where_it_went_on() {
    let mut events = vec![(Some(0), joined(2)), (Some(1), joined(2))];
    events.push((Some(0), entered(Phase::Backward, 0, 0)));
    events.extend([entered(Phase::Backward, 0, 0), backward(0, 0)].map(|it| (Some(1), it)));
    let waiting = Vec::new();
    events.push((None, Event::TimedOut { silent: vec![0, 1], timeout_s: 9, waiting }));
    let records = settled(events).expect("a script that hangs");
    let last = records.iter().rfind(|it| it.rank == Some(1)).map(|it| &it.event);
    assert_eq!(last, Some(&entered(Phase::Forward, 0, 1)));
    assert_eq!(spec(&records).world_size, 2);
}

#[test]
fn the_last_account_of_a_failure_is_told() {
    let failed = |message: &str| Event::Failed { message: message.to_owned() };
    let begun = [joined(1), entered(Phase::Backward, 0, 0), failed("sys.exit(1)"), failed("no")];
    let events = begun.into_iter().map(|event| (Some(0), event)).chain([(None, over(1))]);
    let records = settled(events).expect("a script that failed");
    let told = records.iter().filter(|it| matches!(it.event, Event::Failed { .. }));
    assert_eq!(told.map(|it| &it.event).collect::<Vec<_>>(), [&failed("no")]);
}

#[test]
fn where_there_is_no_specification_the_reason_is_told() {
    let failed = (Some(1), Event::Failed { message: "ValueError: no".to_owned() });
    let frames = vec![Frame {
        file: "train.py".to_owned(),
        line: 5,
        function: "load".to_owned(),
        is_own: true,
    }];
    let stack = (None, Event::StackTaken { rank: 1, thread: 0, frames });
    let reason = settled([failed, stack, (None, over(7))]).expect_err("nobody joined");
    let told = "the command failed with exit code 7 before any process had called backward; rank 1: \
                ValueError: no, at train.py:5 (load)";
    assert_eq!((reason.to_string().as_str(), reason.outcome()), (told, Some(Outcome::Code(7))));
    let killed = |signal| Event::RankExited { rank: 1, outcome: Outcome::Signal(signal) };
    let reason = settled([(None, killed(11)), (None, over(1))]).expect_err("nobody joined");
    let told = "the command failed with exit code 1 before any process had called backward; rank 1: \
                killed by SIGSEGV";
    assert_eq!(reason.to_string(), told);
    let over_by = Event::CommandEnded { outcome: Some(Outcome::Signal(9)) };
    let reason = settled([(None, over_by)]).expect_err("nobody joined");
    let told = "the command was killed by SIGKILL before any process had called backward";
    assert_eq!(reason.to_string(), told);
    let begun = || (Some(0), joined(1));
    assert_eq!(settled([begun()]), Err(NoAnswer::CutOff));
    let no_step = NoAnswer::NoStep { outcome: Some(Outcome::Code(0)) };
    assert_eq!(settled([begun(), (None, over(0))]), Err(no_step));
    let why = "a reason".to_owned();
    let gave_up = Event::NotObserved { what: REST_OF_SCRIPT.to_owned(), why: why.clone() };
    let gave_up = settled([begun(), (Some(0), gave_up), (None, over(0))]);
    assert_eq!(gave_up, Err(NoAnswer::GaveUp { outcome: Some(Outcome::Code(0)), why }));
}
