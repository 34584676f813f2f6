//! What a launcher can be asked only if it has a process of its own: this test program, once more.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use zprobe::launch::{Launch, Source};
use zprobe::trace::{Event, Trace};

use crate::harness::{mark_of, processes_of, run_over, spec};
use crate::pooled::pool;

/// Variable: the directory that a launcher works in.
const DIR: &str = "ZPROBE_TEST_LAUNCHER_DIR";

/// Starts one of the ignored tests below in a process of its own.
fn launcher(test: &str, dir: &Path) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", &format!("pool_of_its_own::{test}")])
        .env(DIR, dir)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// The directory to work in; none when somebody runs the ignored tests for themselves.
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
    let (spec, source) = (spec(2, 600), Source::Warm(&pool));
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
    // The pool, the host of the run, and two ranks.
    assert_eq!(processes_of(&mark).len(), 4);
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    wait_for("the end of the pool and its ranks", || processes_of(&mark).is_empty());
}

#[test]
#[ignore = "a launcher for two_hundred_runs_leave_no_descriptor_and_no_process"]
fn runs_two_hundred_times() {
    if own_dir().is_none() {
        return;
    }
    let (pool, _logs) = pool();
    let open = |process: &str| fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
    let warm = pool.pid().to_string();
    let mut before = None;
    for _ in 0..200 {
        let run = run_over(&pool, "well-behaved", &spec(1, 60));
        assert!(run.finished(0));
        let now = (open("self"), open(&warm), children("self"), children(&warm));
        // The first run may open what stays, such as signal handlers.
        assert_eq!(now, *before.get_or_insert(now));
    }
}

#[test]
fn two_hundred_runs_leave_no_descriptor_and_no_process() {
    let dir = tempfile::tempdir().unwrap();
    let mut launcher = launcher("runs_two_hundred_times", dir.path());
    assert!(launcher.wait().unwrap().success());
}

/// Children of a process, dead ones too.
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
