//! Limits and signal settings that zprobe may inherit: the real `zprobe`, started from a shell that sets
//! them. If a limit prevents a run, zprobe names the limit, exits with code 2, and leaves no process.

#![allow(clippy::disallowed_macros, reason = "a skipped test is printed")]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Command, Output};

use zprobe_model::trace::{Event, Outcome, TRACE_FILE, Trace};

use crate::harness::{fixture, processes_of};

/// Runs `zprobe run` into `out` after this shell code, with ranks of `fixtures/ranks/rank.py`.
fn zprobe_after(setting: &str, out: &Path, ranks: &str) -> Output {
    let script = format!(r#"{setting} "$@""#);
    let mut command = Command::new("bash");
    command.args(["-c", &script, "bash", env!("CARGO_BIN_EXE_zprobe")]);
    command.args(["run", "--output-format", "concise", "--timeout", "20", "--rank-program"]);
    command.arg(fixture("rank.py")).arg("--out").arg(out).arg("--");
    command.args(ranks.split_whitespace()).output().unwrap()
}

/// Checks that a run was refused or given up, with all of these words in the message.
#[track_caller]
fn assert_refused(setting: &str, ranks: &str, words: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let output = zprobe_after(setting, &out, ranks);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{setting}: {stderr}");
    for word in words {
        assert!(stderr.contains(word), "{setting}: {stderr}");
    }
    assert!(!out.join("report.json").exists(), "{setting}: nothing is claimed");
    let trace = std::fs::read_to_string(out.join(TRACE_FILE)).unwrap_or_default();
    if let Some((_, rest)) = trace.split_once(r#""run":""#) {
        let id = rest.split('"').next().unwrap();
        assert_eq!(processes_of(id), Vec::<String>::new(), "{setting}: processes are left");
    }
}

#[test]
fn a_limit_on_the_size_of_files_is_named_with_the_file() {
    assert_refused("ulimit -f 16; exec", "sends-much", &["trace.jsonl", "ulimit -f"]);
}

#[test]
fn a_limit_on_open_files_is_named() {
    assert_refused("ulimit -n 14; exec", "sleeps", &["ulimit -n"]);
}

#[test]
fn a_stack_that_is_too_small_for_ranks_is_named() {
    assert_refused("ulimit -s 64; exec", "sleeps", &["64 KiB", "ulimit -s 8192"]);
}

/// Returns true if this user may unshare the network or the mounts, as root of a user namespace.
fn may_unshare(what: &str) -> bool {
    let tried = Command::new("unshare").args([what, "true"]).output();
    let may = tried.is_ok_and(|output| output.status.success());
    if !may {
        eprintln!("skipped: `unshare {what}` is not permitted here");
    }
    may
}

#[test]
fn a_loopback_interface_that_is_down_is_named() {
    if may_unshare("-rn") {
        assert_refused("exec unshare -rn", "sleeps", &["127.0.0.1", "ip link set lo up"]);
    }
}

#[test]
fn a_disk_that_is_full_is_named_with_the_file_and_the_ranks_are_ended() {
    if !may_unshare("-rm") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mount = dir.path().join("full");
    std::fs::create_dir(&mount).unwrap();
    let shell = format!(
        r#"exec unshare -rm bash -c 'mount -t tmpfs -o size=1m tmpfs {} && exec "$@"' bash"#,
        mount.display()
    );
    let output = zprobe_after(&shell, &mount.join("run"), "sends-much");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("trace.jsonl") && stderr.contains("make room"), "{stderr}");
    let place = mount.to_str().unwrap();
    let left = std::fs::read_dir("/proc").unwrap().flatten().filter(|entry| {
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(&format!("ZPROBE_RUN_DIR={place}"))
    });
    assert_eq!(left.count(), 0, "processes are left");
}

#[test]
fn a_run_directory_need_not_be_text() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join(OsStr::from_bytes(b"caf\xe9"));
    let output = zprobe_after("exec", &out, "well-behaved");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "they finished, and said nothing: {stderr}");
    let trace = Trace::read(&out).unwrap();
    let finished = trace.events().filter(|(_, event)| **event == Event::Finished).count();
    assert_eq!((finished, out.join("report.json").exists()), (2, true));
}

#[test]
fn the_end_of_a_rank_is_noticed_where_sigchld_was_blocked_or_ignored() {
    for how in ["block", "ignore"] {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("run");
        zprobe_after(&inheriting(how, "SIGCHLD"), &out, "dies");
        let trace = Trace::read(&out).unwrap();
        let killed =
            |event: &Event| matches!(event, Event::RankExited { outcome: Outcome::Signal(9), .. });
        let timed_out = |event: &Event| matches!(event, Event::TimedOut { .. });
        let count = |wanted: &dyn Fn(&Event) -> bool| {
            trace.events().filter(|(_, event)| wanted(event)).count()
        };
        assert_eq!((count(&killed), count(&timed_out)), (2, 0), "{how}");
    }
}

#[test]
fn ranks_start_with_no_signal_blocked_and_ignore_what_the_user_ignores() {
    let dir = tempfile::tempdir().unwrap();
    for (how, signal, ignored) in [("block", "SIGTERM", 0), ("ignore", "SIGHUP", 1)] {
        let out = dir.path().join(how);
        zprobe_after(&inheriting(how, signal), &out, "reports-signals");
        let trace = Trace::read(&out).unwrap();
        let mut seen = 0;
        for (_, event) in trace.events() {
            let Event::RankReady { versions, .. } = event else { continue };
            seen += 1;
            assert_eq!(versions["SigBlk"], "0", "{how}");
            // Python ignores SIGPIPE and SIGXFSZ by itself.
            let mask = u64::from_str_radix(&versions["SigIgn"], 16).unwrap();
            assert_eq!(mask & 1, ignored, "{how}");
        }
        assert_eq!(seen, 2);
    }
}

/// Shell code that starts the following command with a signal blocked or ignored.
fn inheriting(how: &str, signal: &str) -> String {
    let python = match how {
        "block" => format!("signal.pthread_sigmask(signal.SIG_BLOCK, [signal.{signal}])"),
        _ => format!("signal.signal(signal.{signal}, signal.SIG_IGN)"),
    };
    format!(
        "exec python3 -c 'import os, signal, sys; {python}; os.execv(sys.argv[1], sys.argv[1:])'"
    )
}
