//! Tests whose launcher needs a process of its own: the process is another call of this test program.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, raise};
use zprobe_launch::{HostSource, Launch, Stop};
use zprobe_model::trace::{Event, Trace};

use crate::harness::{mark_of, processes_of, run_over, spec};
use crate::pooled::pool;

/// The variable that names the directory in which a launcher works.
const DIR: &str = "ZPROBE_TEST_LAUNCHER_DIR";

/// The file that a launcher writes after success.
const DONE: &str = "done";

/// Starts one of the ignored tests below in a process of its own.
fn launcher(test: &str, dir: &Path) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", &format!("pool_of_its_own::{test}")])
        .env(DIR, dir)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Runs one of the ignored tests to its end, and checks that the test ran: a wrong name would run no test at
/// all.
fn assert_succeeds(test: &str) {
    let dir = tempfile::tempdir().unwrap();
    assert!(launcher(test, dir.path()).wait().unwrap().success(), "{test}");
    assert!(dir.path().join(DONE).exists(), "{test} did not run");
}

/// The directory to work in; `None` if a user runs the ignored tests directly.
fn own_dir() -> Option<PathBuf> {
    env::var_os(DIR).map(PathBuf::from)
}

#[test]
#[ignore = "a launcher for nothing_survives_a_launcher_with_a_pool_that_is_killed"]
fn sleeps_over_a_pool() {
    let Some(dir) = own_dir() else { return };
    let (pool, _logs) = pool();
    fs::write(dir.join("mark"), mark_of(&pool)).unwrap();
    fs::write(dir.join("arguments"), "sleeps").unwrap();
    let (spec, source) = (spec(2, 600), HostSource::Warm(&pool));
    let launch = Launch { run_id: "sleeps", spec: &spec, source, run_dir: &dir };
    let _ = launch.run(&mut |_| {}).unwrap();
}

#[test]
fn nothing_survives_a_launcher_with_a_pool_that_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let mut launcher = launcher("sleeps_over_a_pool", dir.path());
    wait_for("the start of the ranks", || {
        Trace::read(dir.path()).is_ok_and(|trace| {
            trace.events().filter(|(_, event)| matches!(event, Event::RankReady { .. })).count()
                == 2
        })
    });
    let mark = fs::read_to_string(dir.path().join("mark")).unwrap();
    // The processes are the pool, the host of the run, and two ranks.
    assert_eq!(processes_of(&mark).len(), 4);
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    wait_for("the end of the pool and its ranks", || processes_of(&mark).is_empty());
}

#[test]
#[ignore = "a launcher for two_hundred_runs_leave_no_descriptor_and_no_process"]
fn runs_two_hundred_times() {
    let Some(dir) = own_dir() else { return };
    let (pool, _logs) = pool();
    let open = |process: &str| fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
    let warm = pool.pid().to_string();
    let (open_to_pool, mut open_to_launcher) = (open(&warm), None);
    for number in 1..=200 {
        assert!(run_over(&pool, "well-behaved", &spec(1, 60)).finished(0));
        // The first run opens descriptors that stay open: those of signal handlers.
        assert_eq!(open("self"), *open_to_launcher.get_or_insert(open("self")), "run {number}");
        assert_eq!(children("self"), 1, "run {number}");
        // The pool may still be cleaning up after the run.
        wait_for("the end of what the pool had to do with the run", || {
            (open(&warm), children(&warm)) == (open_to_pool, 0)
        });
    }
    fs::write(dir.join(DONE), "").unwrap();
}

#[test]
fn two_hundred_runs_leave_no_descriptor_and_no_process() {
    assert_succeeds("runs_two_hundred_times");
}

#[test]
#[ignore = "a launcher for an_interrupt_ends_the_run_and_not_the_pool"]
fn interrupts_itself() {
    let Some(dir) = own_dir() else { return };
    let (pool, _logs) = pool();
    fs::write(dir.join("arguments"), "sleeps").unwrap();
    let (spec, source) = (spec(1, 600), HostSource::Warm(&pool));
    let launch = Launch { run_id: "interrupted", spec: &spec, source, run_dir: &dir };
    let mut interrupted = false;
    let _ = launch
        .run(&mut |record| match record.event {
            Event::RankReady { .. } => raise(Signal::SIGINT).unwrap(),
            Event::Interrupted => interrupted = true,
            _ => {}
        })
        .unwrap();
    assert!(interrupted);
    assert!(run_over(&pool, "well-behaved", &spec).finished(0));
    fs::write(dir.join(DONE), "").unwrap();
}

#[test]
fn an_interrupt_ends_the_run_and_not_the_pool() {
    assert_succeeds("interrupts_itself");
}

#[test]
#[ignore = "a launcher for an_interrupt_between_two_runs_ends_the_second"]
fn interrupts_itself_between_two_runs() {
    let Some(dir) = own_dir() else { return };
    let experiment = Stop::listen().unwrap();
    raise(Signal::SIGINT).unwrap();
    assert!(experiment.is_wanted());
    let (pool, _logs) = pool();
    fs::write(dir.join("arguments"), "sleeps").unwrap();
    let (spec, source) = (spec(1, 600), HostSource::Warm(&pool));
    let launch = Launch { run_id: "interrupted", spec: &spec, source, run_dir: &dir };
    let mut interrupted = false;
    let _ = launch.run(&mut |record| interrupted |= record.event == Event::Interrupted).unwrap();
    assert!(interrupted);
    drop(experiment);
    assert!(run_over(&pool, "well-behaved", &spec).finished(0));
    fs::write(dir.join(DONE), "").unwrap();
}

#[test]
fn an_interrupt_between_two_runs_ends_the_second() {
    assert_succeeds("interrupts_itself_between_two_runs");
}

/// The number of children of a process, including dead ones.
fn children(process: &str) -> usize {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    threads
        .map(|thread| fs::read_to_string(thread.path().join("children")).unwrap())
        .map(|list| list.split_whitespace().count())
        .sum()
}

fn wait_for(what: &str, happened: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !happened() {
        assert!(Instant::now() < deadline, "{what} never happened");
        sleep(Duration::from_millis(10));
    }
}
