//! Signals to the launcher, to ranks and to the processes between them, at any moment of a run.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::calls::{Ended, Running, no_panic_in};
use super::{Campaign, Case, Survival, fixtures};

/// The campaign of runs of the native engine in which one process gets a signal.
pub const CAMPAIGN: Campaign = Campaign {
    name: "signals",
    faults: "signals to launcher, pool, host and ranks at any moment of a run",
    full: 200,
    short: 10,
    try_case,
};

/// The kinds of runs: the arguments of `zprobe run`, and the number of traces that the run leaves.
const RUNS: &[(&[&str], usize)] = &[
    (&["--ga", "2"], 1),
    (&["--ga", "2", "--nproc-per-node", "3"], 1),
    (&["--ga", "2", "--repeat", "2"], 2),
    (&["--stage", "3", "--ga", "2", "--nproc-per-node", "3", "--repeat", "3"], 3),
];

/// The number of kinds of runs without a pool; they come first in [`RUNS`].
const COLD: usize = 2;

/// A number slightly above the records of any run of [`RUNS`].
const RECORDS: usize = 160;

/// The process, or the group of processes, that gets a signal.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Target {
    Launcher,
    /// The launcher and the other processes of its process group, as with Ctrl-C.
    Group,
    /// One of the other processes of the run.
    Other,
}

/// The signals that a target gets.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sent {
    Once(Signal),
    /// A signal that is sent twice, without a pause.
    Twice(Signal),
    /// SIGSTOP, and SIGCONT a moment later.
    Paused,
    /// SIGSTOP without SIGCONT.
    Stopped,
}

/// All pairs of a target and the signals that the target gets.
const SIGNALS: &[(Target, Sent)] = &[
    (Target::Launcher, Sent::Once(Signal::SIGINT)),
    (Target::Other, Sent::Once(Signal::SIGKILL)),
    (Target::Launcher, Sent::Once(Signal::SIGTERM)),
    (Target::Other, Sent::Once(Signal::SIGTERM)),
    (Target::Launcher, Sent::Once(Signal::SIGKILL)),
    (Target::Other, Sent::Once(Signal::SIGSEGV)),
    (Target::Launcher, Sent::Once(Signal::SIGHUP)),
    (Target::Other, Sent::Stopped),
    (Target::Launcher, Sent::Once(Signal::SIGQUIT)),
    (Target::Other, Sent::Once(Signal::SIGINT)),
    (Target::Group, Sent::Once(Signal::SIGINT)),
    (Target::Other, Sent::Once(Signal::SIGHUP)),
    (Target::Launcher, Sent::Twice(Signal::SIGINT)),
    (Target::Other, Sent::Paused),
    (Target::Launcher, Sent::Once(Signal::SIGUSR1)),
    (Target::Other, Sent::Once(Signal::SIGUSR2)),
    (Target::Launcher, Sent::Paused),
    (Target::Other, Sent::Once(Signal::SIGPIPE)),
    (Target::Launcher, Sent::Once(Signal::SIGPIPE)),
    (Target::Other, Sent::Once(Signal::SIGCHLD)),
    (Target::Launcher, Sent::Once(Signal::SIGCHLD)),
    (Target::Other, Sent::Once(Signal::SIGABRT)),
    (Target::Launcher, Sent::Twice(Signal::SIGTERM)),
    (Target::Other, Sent::Once(Signal::SIGQUIT)),
    (Target::Launcher, Sent::Once(Signal::SIGWINCH)),
    (Target::Group, Sent::Once(Signal::SIGHUP)),
];

fn try_case(case: &mut Case) -> Result<Survival> {
    let (target, sent) = SIGNALS[case.number % SIGNALS.len()];
    // zprobe gives up a stopped pool, too, but only after minutes.
    let runs = if sent == Sent::Stopped { &RUNS[..COLD] } else { RUNS };
    let (words, traces) = *case.one_of(runs);
    // A rank that is stopped for good is soon given up; all other runs have more time than they need on any
    // machine.
    let timeout = if sent == Sent::Stopped { "2" } else { "100" };
    let call = case.zprobe(["run", "--out", "run", "--timeout", timeout])?.with_ranks().args(words);
    let records = case.rng.usize(..RECORDS);
    let then = Duration::from_micros(case.rng.u64(..3000));
    let running = call.start()?;
    let launcher = running.pid();
    // Half of the cases wait for a number of processes, often before the first record, while libraries are
    // loaded.
    if case.rng.bool() {
        wait_for_records(case, &running, records);
    } else {
        wait_for_processes(case, &running, case.rng.clone().usize(1..5));
    }
    thread::sleep(then);
    send(case, target, sent, launcher)?;
    let ended = running.ended()?;
    judge(case, target, sent, &ended, traces)
        .with_context(|| format!("{sent:?} to {target:?}, run {}", words.join(" ")))?;
    Ok(Survival::Survived)
}

/// Sends the signals. A process that has ended gets nothing.
fn send(case: &mut Case, target: Target, sent: Sent, launcher: Pid) -> Result<()> {
    let mut others = case.processes();
    others.retain(|pid| *pid != launcher);
    if sent == Sent::Stopped {
        // A launcher waits until a forked process has started its program, however long the process is
        // stopped.
        others.retain(|pid| program(*pid) != program(launcher));
    }
    let pid = match target {
        Target::Launcher | Target::Group => launcher,
        Target::Other if others.is_empty() => return Ok(()),
        Target::Other => *case.one_of(&others),
    };
    let send = |signal| {
        let outcome = if target == Target::Group { killpg(pid, signal) } else { kill(pid, signal) };
        match outcome {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("cannot send {signal} to {pid}")),
        }
    };
    match sent {
        Sent::Once(signal) => send(signal),
        Sent::Twice(signal) => send(signal).and_then(|()| send(signal)),
        Sent::Stopped => send(Signal::SIGSTOP),
        Sent::Paused => {
            send(Signal::SIGSTOP)?;
            thread::sleep(Duration::from_millis(50));
            send(Signal::SIGCONT)
        }
    }
}

/// The path of the program that a process runs; `None` if the process has ended.
fn program(pid: Pid) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// Checks that a run may end like this, and has left all that it must leave.
fn judge(case: &Case, target: Target, sent: Sent, ended: &Ended, traces: usize) -> Result<()> {
    case.nothing_is_left()?;
    ended.no_panic()?;
    no_panic_in(&case.dir)?;
    let deadly: &[Signal] = match (target, sent) {
        (Target::Other, _) | (_, Sent::Paused | Sent::Stopped) => &[],
        (_, Sent::Once(signal) | Sent::Twice(signal)) => &[signal],
    };
    let code = match ended.status.signal() {
        Some(signal) => {
            let expected = deadly.iter().any(|it| *it as i32 == signal);
            ensure!(expected, "the launcher was ended by signal {signal}");
            None
        }
        None => Some(ended.code_of(&[0, 2, 3, 4])?),
    };
    let harmless = [Signal::SIGCHLD, Signal::SIGWINCH];
    let harmless = matches!(sent, Sent::Once(signal) if harmless.contains(&signal));
    ensure!(
        code == Some(0) || !(harmless || sent == Sent::Paused),
        "a signal that ends no program has ended the launcher: {}",
        ended.stderr.trim_end(),
    );
    if code == Some(0) {
        ensure!(finished(case)? == traces, "exit code 0 although not every rank finished");
    }
    readable(case, code)
}

/// The number of traces of the run in which every rank finished.
fn finished(case: &Case) -> Result<usize> {
    let mut count = 0;
    for dir in trace_dirs(case) {
        let text = fs::read_to_string(dir.join(fixtures::TRACE)).context("cannot read a trace")?;
        let ranks = text.matches(r#""type":"rank-spawned""#).count();
        count += usize::from(ranks > 0 && text.matches(r#""type":"finished""#).count() == ranks);
    }
    Ok(count)
}

/// Checks that `zprobe show` reads the traces and has the same exit code as the run, and that `report.json`
/// follows its schema.
fn readable(case: &Case, code: Option<i64>) -> Result<()> {
    let run = case.dir.join("run");
    let whole = trace_dirs(case).iter().all(|dir| {
        // A file is a trace once its first line is complete.
        fs::read(dir.join(fixtures::TRACE)).is_ok_and(|text| text.contains(&b'\n'))
    });
    if whole && !trace_dirs(case).is_empty() {
        let again = case.zprobe(["diagnose", "run"])?.ended()?.code_of(&[0, 3, 4])?;
        ensure!(
            code.is_none_or(|code| code == again || code == 2),
            "the run had exit code {code:?}, and `zprobe show` has {again}"
        );
    }
    let report = run.join("report.json");
    if report.exists() {
        // `zprobe compare` reads a report as strictly as its schema.
        let call = case.zprobe(["compare", "run/report.json", "run/report.json", "--exit-zero"])?;
        call.ended()?.code_of(&[0])?;
    }
    Ok(())
}

/// The directories of the run that hold a trace.
fn trace_dirs(case: &Case) -> Vec<PathBuf> {
    let run = case.dir.join("run");
    let inner = fs::read_dir(&run).into_iter().flatten().flatten().map(|entry| entry.path());
    let dirs = inner.chain([run]);
    dirs.filter(|dir| dir.join(fixtures::TRACE).is_file()).collect()
}

/// Waits until the run has written this number of records, or has ended.
fn wait_for_records(case: &Case, running: &Running, records: usize) {
    until(running, || {
        let lines = |dir: &PathBuf| {
            let text = fs::read(dir.join(fixtures::TRACE)).unwrap_or_default();
            text.iter().filter(|byte| **byte == b'\n').count()
        };
        trace_dirs(case).iter().map(lines).sum::<usize>() >= records
    });
}

/// Waits until the run has this number of processes, or has ended.
fn wait_for_processes(case: &Case, running: &Running, count: usize) {
    until(running, || case.processes().len() >= count);
}

/// Waits until a condition holds, or until the run has ended.
fn until(running: &Running, is_so: impl Fn() -> bool) {
    while !is_so() && !has_ended(running.pid()) {
        thread::sleep(Duration::from_micros(500));
    }
}

/// Returns true if a child process has ended, even if it has not been waited for.
fn has_ended(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
}
