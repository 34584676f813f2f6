//! Many runs over one process: each is like a cold run, whatever the other runs did.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use zprobe_launch::{HostSource, Hosting, Launch, LaunchError, Pool, PoolFailure, RankProgram};
use zprobe_model::trace::{Event, Outcome, Violation};

use crate::harness::{
    Run, fixture, processes_of, ranks, run_into_timeout, run_over, run_program, spec,
};

/// The time limit for the start of a pool: longer than any loaded machine needs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts `fixtures/ranks/pooled.py`, which executes `loading` before it reports that it is ready.
fn start(loading: &str, dir: &Path, patience: Duration) -> Result<Pool, LaunchError> {
    let program = RankProgram {
        program: fixture("pooled.py"),
        args: vec![loading.into()],
        hosting: Hosting::Forked,
        library_path: vec![],
    };
    Pool::start(&program, dir, patience)
}

/// A working pool, and the directory of its logs.
pub fn pool() -> (Pool, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    (start("loads", dir.path(), PATIENCE).unwrap(), dir)
}

/// The events of each sender, without process ids.
fn said(run: &Run) -> BTreeMap<Option<usize>, Vec<Event>> {
    let mut said = BTreeMap::<_, Vec<_>>::new();
    for (sender, event) in run.trace.events() {
        let mut event = event.clone();
        if let Event::RankSpawned { pid, .. } = &mut event {
            *pid = 0;
        }
        said.entry(sender).or_default().push(event);
    }
    // The launcher may see the ranks start and end in any order.
    said.get_mut(&None).unwrap().sort_by_key(|event| format!("{event:?}"));
    said
}

fn assert_healthy(pool: &Pool, after: &str) {
    let run = run_over(pool, "well-behaved", &spec(2, 60));
    for rank in 0..2 {
        assert_eq!(run.outcome(rank), Outcome::Code(0), "after {after}");
        assert!(run.finished(rank), "after {after}");
    }
}

#[test]
fn a_run_over_a_pool_leaves_the_trace_of_a_cold_one_and_a_pool_that_works() {
    let (pool, dir) = pool();
    for arguments in [
        "well-behaved",
        "dies --rank 1 --others waits-for-peer",
        "exits-7",
        "exits-unfinished",
        "sends-much",
        "lingers --rank 1",
        "leaves-a-detached-grandchild",
        "leaves-a-detached-child",
        "dies-within-a-line",
        "well-behaved --before-fork host-exits-3",
        "well-behaved --after-fork host-lingers",
    ] {
        let cold = run_program(&ranks(&format!("{arguments} --forked")), &spec(2, 60));
        let warm = run_over(&pool, arguments, &spec(2, 60));
        assert_eq!(said(&warm), said(&cold), "{arguments}");
        assert_healthy(&pool, arguments);
    }
    let loaded = std::fs::read_to_string(dir.path().join("pool.stdout.log")).unwrap();
    assert_eq!(loaded, "loaded\n", "it was started once, and said so once");
}

#[test]
fn hung_ranks_and_hosts_are_ended_and_the_pool_goes_on() {
    let (pool, _dir) = pool();
    for behaviour in ["sleeps", "ignores-sigterm", "stops-itself"] {
        let arguments = format!("{behaviour} --rank 1");
        let run = run_into_timeout(&[1], |spec| run_over(&pool, &arguments, spec));
        assert_eq!(run.silent(), Some(&[1][..]), "{behaviour}");
        assert_eq!([run.outcome(0), run.outcome(1)], [Outcome::Code(0), Outcome::Reaped]);
        assert_healthy(&pool, behaviour);
    }
}

#[test]
fn violations_end_their_run_and_no_other() {
    let (pool, _dir) = pool();
    for (arguments, sender, violation) in [
        ("prints-rubbish --rank 1", Some(1), Violation::NotJson),
        ("claims-another-rank --rank 1", Some(1), Violation::WrongSender),
        ("sleeps --after-fork host-prints-rubbish", None, Violation::NotJson),
    ] {
        let run = run_over(&pool, arguments, &spec(2, 60));
        let violations: Vec<_> = run.violations().iter().map(|found| (found.0, found.1)).collect();
        assert_eq!(violations, [(sender, violation)], "{arguments}");
        assert_eq!(run.outcome(1), Outcome::Reaped, "{arguments}");
        assert_healthy(&pool, arguments);
    }
}

#[test]
fn ranks_end_with_a_killed_host_and_the_pool_does_not() {
    let (pool, _dir) = pool();
    let run = run_over(&pool, "sleeps --after-fork host-dies", &spec(2, 60));
    assert_eq!([run.outcome(0), run.outcome(1)], [Outcome::Signal(9); 2]);
    assert_eq!(run.stderr(None), Some("the host's last words"));
    assert_healthy(&pool, "a host that died");
}

#[test]
fn a_rank_sees_the_environment_and_the_descriptors_of_a_cold_run() {
    let (pool, _dir) = pool();
    let seen = |run: &Run| {
        let Event::RankReady { versions, .. } = run.said(1)[0] else { panic!() };
        let mut seen = versions.clone();
        for (name, value) in &mut seen {
            match name.as_str() {
                // The directory, the port, the id and the numbers of descriptors differ; the count of
                // descriptors does not.
                "ZPROBE_RUN" | "ZPROBE_RUN_DIR" | "MASTER_PORT" => value.clear(),
                "ZPROBE_STORE_FD" | "ZPROBE_HOST_FD" | "ZPROBE_EVENT_FDS" | "descriptors" => {
                    *value = value.split(',').count().to_string();
                }
                _ => {}
            }
        }
        seen
    };
    for behaviour in ["reports-all-variables", "reports-environment"] {
        // The script is started by its first line, as the pool is, because that interpreter may change the
        // environment.
        let program = ranks(&format!("{behaviour} --forked"));
        let args = program.args[1..].to_vec();
        let program = RankProgram { program: fixture("rank.py"), args, ..program };
        let cold = run_program(&program, &spec(3, 60));
        for _ in 0..2 {
            let warm = run_over(&pool, behaviour, &spec(3, 60));
            assert_eq!(seen(&warm), seen(&cold), "{behaviour}");
        }
    }
}

/// The error of a run over `pool`.
fn error(pool: &Pool, ranks: usize) -> LaunchError {
    error_of(pool, ranks, "refused")
}

fn error_of(pool: &Pool, ranks: usize, run_id: &str) -> LaunchError {
    let dir = tempfile::tempdir().unwrap();
    let mut spec = spec(2, 60);
    spec.world_size = ranks;
    let source = HostSource::Warm(pool);
    let launch = Launch { run_id, spec: &spec, source, run_dir: dir.path() };
    let error = launch.run(&mut |_| {}).unwrap_err();
    assert!(!dir.path().join("trace.jsonl").exists(), "nothing ran");
    error
}

#[track_caller]
fn assert_failure(error: &LaunchError, expected: &PoolFailure, words: &str) {
    let LaunchError::Pool { failure, .. } = error else { panic!("{error}") };
    assert_eq!(failure, expected, "{error}");
    assert!(error.to_string().contains("pooled.py"), "{error}");
    assert!(error.to_string().contains(words), "{error}");
}

#[test]
fn a_pool_that_died_between_runs_is_an_error_every_time() {
    let (pool, _dir) = pool();
    assert_healthy(&pool, "the start");
    kill(Pid::from_raw(pool.pid().cast_signed()), Signal::SIGKILL).unwrap();
    for _ in 0..2 {
        assert_failure(&error(&pool, 2), &PoolFailure::Killed(9), "ended by signal 9");
    }
}

#[test]
fn a_pool_that_dies_of_a_run_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let pool = start("dies-when-asked", dir.path(), PATIENCE).unwrap();
    assert_failure(&error(&pool, 2), &PoolFailure::Killed(9), "out of memory");
}

#[test]
fn a_pool_that_does_not_become_ready_is_an_error_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let fails = start("fails", &dir.path().join("fails"), PATIENCE).unwrap_err();
    assert_failure(&fails, &PoolFailure::Exited(1), "cannot import torch");
    let patience = Duration::from_millis(200);
    let hangs = start("sleeps", &dir.path().join("sleeps"), patience).unwrap_err();
    assert_failure(&hangs, &PoolFailure::NotReady(patience), "200ms");
    let babbles = start("says-something-else", &dir.path().join("says-something-else"), PATIENCE)
        .unwrap_err();
    assert_failure(&babbles, &PoolFailure::NotReady(PATIENCE), "ready");
    let missing = RankProgram {
        program: "/nowhere/pooled.py".into(),
        args: vec![],
        hosting: Hosting::Forked,
        library_path: vec![],
    };
    let missing = Pool::start(&missing, &dir.path().join("missing"), PATIENCE).unwrap_err();
    assert!(matches!(missing, LaunchError::Spawn { .. }), "{missing}");
}

#[test]
fn a_world_too_large_for_a_pool_is_refused_and_the_largest_is_not() {
    let (pool, _dir) = pool();
    let error = error(&pool, 249);
    assert!(matches!(error, LaunchError::PoolWorld { ranks: 249, most: 248 }), "{error}");
    let mut largest = spec(2, 600);
    largest.world_size = 248;
    let run = run_over(&pool, "well-behaved", &largest);
    assert!((0..248).all(|rank| run.finished(rank)));
}

/// The descriptions of the runs are long because they contain the run's id.
#[test]
fn a_long_description_of_a_run_arrives_whole_and_one_too_long_is_refused() {
    let (pool, dir) = pool();
    let run_dir = dir.path().join("run");
    std::fs::create_dir(&run_dir).unwrap();
    std::fs::write(run_dir.join("arguments"), "well-behaved").unwrap();
    let (run_id, spec) = ("x".repeat(120_000), spec(2, 60));
    let source = HostSource::Warm(&pool);
    let launch = Launch { run_id: &run_id, spec: &spec, source, run_dir: &run_dir };
    let mut finished = 0;
    let _ = launch.run(&mut |it| finished += usize::from(it.event == Event::Finished)).unwrap();
    assert_eq!(finished, 2);
    let error = error_of(&pool, 2, &"x".repeat(140_000));
    assert!(error.to_string().contains("too long"), "{error}");
}

#[test]
fn a_pool_that_is_dropped_leaves_nothing() {
    let (pool, _dir) = pool();
    let mark = crate::harness::mark_of(&pool);
    drop(pool);
    assert_eq!(processes_of(&mark), Vec::<String>::new());
}
