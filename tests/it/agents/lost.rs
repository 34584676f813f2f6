//! Processes, machines and ranks that are lost in the middle of a run. Every remaining process ends by
//! itself, with a report, and leaves no process running.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::job::{Job, Node, is_gone};

/// A run whose ranks sleep, and the process ids of all ranks.
fn sleeping(flags: &[&str]) -> (Job, Vec<Pid>) {
    let job = Job::start("rank.py sleeps", flags, [&[], &[]]);
    let ranks = job.wait_for_ranks(0, 4);
    assert_eq!(ranks.len(), 4);
    (job, ranks)
}

fn end(job: &mut Job, ranks: &[Pid]) -> Vec<Node> {
    let nodes = job.end();
    for rank in ranks {
        assert!(is_gone(*rank), "{rank} is left");
    }
    nodes
}

#[test]
fn a_process_that_is_killed_is_lost_with_its_ranks() {
    let (mut job, ranks) = sleeping(&[]);
    job.signal(1, Signal::SIGKILL);
    let nodes = end(&mut job, &ranks);
    assert_eq!(nodes[0].code, Some(3));
    let findings = nodes[0].findings();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].contains("ranks 2 and 3: lost: the zprobe process on"), "{findings:?}");
}

#[test]
fn there_is_no_repeat_without_a_process_that_is_lost() {
    let (mut job, ranks) = sleeping(&["--repeat", "3"]);
    job.signal(1, Signal::SIGKILL);
    let nodes = end(&mut job, &ranks);
    assert_eq!(nodes[0].code, Some(3), "{}", nodes[0].stderr);
    assert!(nodes[0].stderr.contains("2 of 3 repeats are not made"), "{}", nodes[0].stderr);
    assert!(!job.has_left(0, "run/repeat-1"));
}

#[test]
fn a_process_that_loses_rank_0s_reports_what_it_knows() {
    let (mut job, ranks) = sleeping(&[]);
    job.signal(0, Signal::SIGKILL);
    let nodes = end(&mut job, &ranks);
    assert_eq!((nodes[0].code, nodes[1].code), (None, Some(3)), "{}", nodes[1].stderr);
    let findings = nodes[1].findings();
    assert!(findings[0].contains("ranks 0 and 1: lost: the zprobe process on"), "{findings:?}");
    assert!(nodes[1].stderr.contains("ranks are in run/agent-1"), "{}", nodes[1].stderr);
}

#[test]
fn a_machine_that_is_silent_is_lost_before_the_ranks_count_as_hung() {
    let (mut job, ranks) = sleeping(&["--timeout", "14"]);
    job.signal(1, Signal::SIGSTOP);
    let nodes_0 = || job.records(0);
    while !nodes_0().iter().any(|it| format!("{:?}", it.event).contains("AgentLost")) {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    job.signal(1, Signal::SIGCONT);
    let nodes = end(&mut job, &ranks);
    assert_eq!((nodes[0].code, nodes[1].code), (Some(3), Some(3)), "{}", nodes[1].stderr);
    let findings = nodes[0].findings();
    assert!(findings[0].contains("is silent, because it is down or out of reach"), "{findings:?}");
}

#[test]
fn a_rank_that_dies_elsewhere_is_named_and_all_exit_alike() {
    let (mut job, ranks) = sleeping(&[]);
    kill(ranks_of(&job, 3), Signal::SIGKILL).unwrap();
    let nodes = end(&mut job, &ranks);
    assert_eq!((nodes[0].code, nodes[1].code), (Some(3), Some(3)));
    let findings = nodes[0].findings();
    assert!(findings[0].starts_with("\"ZP901\" 3: \"killed by SIGKILL"), "{findings:?}");
}

#[test]
fn an_interrupt_of_any_process_ends_the_run() {
    for node in [0, 1] {
        let (mut job, ranks) = sleeping(&[]);
        job.signal(node, Signal::SIGTERM);
        let nodes = end(&mut job, &ranks);
        assert_eq!((nodes[0].code, nodes[1].code), (Some(4), Some(4)), "{}", nodes[1].stderr);
    }
}

/// The process id of a rank.
fn ranks_of(job: &Job, wanted: usize) -> Pid {
    let pid = job.records(0).iter().find_map(|record| match record.event {
        zprobe_model::trace::Event::RankSpawned { rank, pid, .. } if rank == wanted => Some(pid),
        _ => None,
    });
    Pid::from_raw(pid.unwrap().cast_signed())
}
