//! Signals to the launcher: the real `zprobe`, with ranks that sleep forever.

use std::io::{ErrorKind, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use zprobe_model::trace::{Event, Outcome, Trace};

use crate::harness::{fixture, processes_of};

fn zprobe(run_dir: &Path, stdout: Stdio) -> Child {
    Command::new(env!("CARGO_BIN_EXE_zprobe"))
        .args(["run", "--timeout", "600", "--output-format", "concise", "--rank-program"])
        .arg(fixture("rank.py"))
        .arg("--out")
        .arg(run_dir)
        .args(["--", "sleeps"])
        .stdout(stdout)
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn wait_for(what: &str, happened: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !happened() {
        assert!(Instant::now() < deadline, "{what} never happened");
        sleep(Duration::from_millis(10));
    }
}

fn send(signal: Signal, launcher: &Child) {
    kill(Pid::from_raw(launcher.id().cast_signed()), signal).unwrap();
}

fn seen(run_dir: &Path, wanted: impl Fn(&Event) -> bool) -> usize {
    Trace::read(run_dir)
        .map_or(0, |trace| trace.events().filter(|(_, event)| wanted(event)).count())
}

fn wait_for_ranks(run_dir: &Path) {
    wait_for("the start of the ranks", || {
        seen(run_dir, |event| matches!(event, Event::RankReady { .. })) == 2
    });
}

fn nothing_is_left(run_dir: &Path) -> bool {
    let run_id = Trace::read(run_dir).unwrap().records[0].run.clone();
    processes_of(&run_id).is_empty()
}

#[test]
fn an_interrupted_run_is_recorded_to_its_end_and_inconclusive() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let dir = tempfile::tempdir().unwrap();
        let mut launcher = zprobe(dir.path(), Stdio::null());
        wait_for_ranks(dir.path());
        send(signal, &launcher);
        assert_eq!(launcher.wait().unwrap().code(), Some(4));
        assert_eq!(seen(dir.path(), |event| *event == Event::Interrupted), 1);
        for rank in 0..2 {
            let exit = Event::RankExited { rank, outcome: Outcome::Reaped };
            assert_eq!(seen(dir.path(), |event| *event == exit), 1);
        }
        assert!(nothing_is_left(dir.path()));
    }
}

/// Signals are ignored after `nohup`, and in the background of a script.
#[test]
fn a_signal_that_was_ignored_before_the_run_stays_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new("bash");
    command.args([
        "-c",
        r#"trap "" HUP INT TERM; exec "$@""#,
        "bash",
        env!("CARGO_BIN_EXE_zprobe"),
    ]);
    command.args(["run", "--output-format", "concise", "--rank-program"]);
    command.arg(fixture("rank.py")).arg("--out").arg(dir.path());
    // The third rank exists only as a file of this test, which arrives after the signals.
    let script = "ready,meets,finishes";
    command.args(["--", "acts"]);
    command.args((0..3).flat_map(|rank| ["--script".to_owned(), format!("{rank}={script}")]));
    let mut launcher = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for_ranks(dir.path());
    send(Signal::SIGHUP, &launcher);
    send(Signal::SIGINT, &launcher);
    send(Signal::SIGTERM, &launcher);
    std::fs::write(dir.path().join("rank-2.here"), "").unwrap();
    launcher.wait().unwrap();
    assert_eq!(seen(dir.path(), |event| *event == Event::Finished), 2);
    assert_eq!(seen(dir.path(), |event| *event == Event::Interrupted), 0);
}

/// The full standard output, which is never read, keeps zprobe from printing its report.
#[test]
fn a_second_interrupt_ends_zprobe_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (unread, mut full) = std::io::pipe().unwrap();
    fcntl(&full, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    loop {
        match full.write(&[0; 1 << 16]) {
            Ok(_) => {}
            Err(err) if err.kind() == ErrorKind::WouldBlock => break,
            Err(err) => panic!("{err}"),
        }
    }
    fcntl(&full, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    let mut launcher = zprobe(dir.path(), full.into());
    wait_for_ranks(dir.path());
    send(Signal::SIGINT, &launcher);
    wait_for("the report", || dir.path().join("report.json").exists());
    send(Signal::SIGINT, &launcher);
    assert_eq!(launcher.wait().unwrap().signal(), Some(Signal::SIGINT as i32));
    assert!(nothing_is_left(dir.path()));
    drop(unread);
}

#[test]
fn nothing_survives_a_launcher_that_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let mut launcher = zprobe(dir.path(), Stdio::null());
    wait_for_ranks(dir.path());
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    wait_for("the end of the ranks", || nothing_is_left(dir.path()));
}
