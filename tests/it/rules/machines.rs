//! The line of each machine in the terminal report.

use zprobe_diagnose::diagnose;
use zprobe_model::trace::{AgentLoss, Event, Outcome, Record, Trace};
use zprobe_report::render::machines;

use super::scenarios::request;
use crate::simulator::{Cut, Simulation};

/// A run of two ranks; with `names`, each rank is on a machine of that name.
fn trace(simulation: &Simulation, names: &[&str]) -> Trace {
    let mut trace = simulation.trace();
    for (rank, name) in names.iter().enumerate() {
        let machine = (*name).to_owned();
        tell(
            &mut trace,
            Event::AgentJoined { agent: rank, machine, first_rank: rank, ranks: 1, clock_ns: 0 },
        );
    }
    trace
}

fn tell(trace: &mut Trace, event: Event) {
    trace.records.push(Record { rank: None, event, ..trace.records[0].clone() });
}

fn lines(trace: &Trace) -> Vec<String> {
    let text = machines(&diagnose(trace), trace).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_machine_has_all_its_ranks_in_one_line() {
    let simulation = Simulation::new(request(), Cut::Flat);
    let [alone, verdict] = &lines(&trace(&simulation, &[]))[..] else { panic!("two lines") };
    assert_eq!(alone, "this machine: ranks 0 and 1 on cpu: as planned");
    assert!(verdict.starts_with("clean: "), "{verdict}");
    let shared = lines(&trace(&simulation, &["a", "a"]));
    assert_eq!(shared[0], "a: ranks 0 and 1 on cpu: as planned");
    let apart = lines(&trace(&simulation, &["a", "b\u{1b}[2J"]));
    assert_eq!(apart[0], "a: rank 0 on cpu: as planned");
    assert!(apart[1].ends_with(": rank 1 on cpu: as planned"), "{apart:?}");
    assert!(!apart[1].contains('\u{1b}'), "{apart:?}");
}

#[test]
fn the_machine_whose_ranks_hold_something_else_is_told_from_the_others() {
    let mut simulation = Simulation::new(request(), Cut::Flat);
    simulation.weight = Box::new(|place, right| if place.owner == 1 { 2.0 * right } else { right });
    let said = lines(&trace(&simulation, &["a", "b"]));
    assert_eq!(said[0], "a: rank 0 on cpu: finished");
    assert_eq!(said[1], "b: rank 1 on cpu: not as planned on rank 1");
    assert!(said[2].starts_with("findings: "), "{said:?}");
}

#[test]
fn a_lost_machine_says_what_its_ranks_did_last() {
    let mut trace = trace(&Simulation::new(request(), Cut::Flat), &["a", "b"]);
    trace.records.retain(|it| it.rank != Some(1) || !matches!(it.event, Event::Finished));
    trace.records.retain(|it| !matches!(it.event, Event::RankExited { rank: 1, .. }));
    let why = AgentLoss::Silent;
    tell(&mut trace, Event::AgentLost { agent: 1, machine: "b".to_owned(), why });
    tell(&mut trace, Event::RankExited { rank: 1, outcome: Outcome::Lost });
    let said = lines(&trace);
    assert_eq!(said[0], "a: rank 0 on cpu: finished");
    assert!(said[1].starts_with("b: rank 1 on cpu: rank 1: lost with its machine, "), "{said:?}");
    assert!(said[2].starts_with("crashed: ZP901"), "{said:?}");
}
