//! Commands that lead to no answer, and the result of `zprobe exec` on them. None of the commands needs
//! torch.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{exec, scripts, zprobe};

const PYTHON: &str = "python3";

#[test]
fn a_command_that_fails_before_it_trains_is_inconclusive_and_keeps_its_output() {
    let run = exec(&[], &[PYTHON, "-c", "print('mine'); raise SystemExit(7)"]);
    assert_eq!((run.code, run.stdout.as_str()), (4, "mine\n"));
    assert!(run.stderr.contains("failed with exit code 7"), "{}", run.stderr);
    assert!(run.stderr.contains("the output above has the cause"), "{}", run.stderr);
    assert!(run.report.is_none());
    let observed = exec(&["--observe"], &[PYTHON, "-c", "raise SystemExit(7)"]);
    assert_eq!(observed.code, 7, "{}", observed.stderr);
}

#[test]
fn a_command_that_never_trains_is_inconclusive_and_the_likely_causes_are_named() {
    let run = exec(&[], &[PYTHON, "-c", "print('done')"]);
    assert_eq!((run.code, run.stdout.as_str()), (4, "done\n"));
    assert!(run.stderr.contains("PYTHONPATH"), "{}", run.stderr);
}

#[test]
fn a_command_that_cannot_be_started_is_a_usage_error_and_leaves_nothing() {
    let run = exec(&[], &["./no-such-program"]);
    assert_eq!(run.code, 2);
    assert!(run.stderr.contains("cannot start ./no-such-program"), "{}", run.stderr);
    assert!(!run.dir.path().join("run").exists());
}

#[test]
fn a_command_that_is_silent_for_too_long_is_inconclusive_and_the_limit_is_named() {
    let run = exec(&["--timeout", "1"], &[PYTHON, "-c", "import time; time.sleep(1000)"]);
    assert_eq!(run.code, 4);
    assert!(run.stderr.contains("--timeout"), "{}", run.stderr);
}

#[test]
fn an_interrupted_command_is_ended_with_all_that_it_started() {
    // The grandchild has a session of its own, and the child ignores the signal that asks for its end.
    let script = "import os, signal, subprocess, sys, time\n\
                  signal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
                  child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'], \
                  start_new_session=True)\n\
                  open('part', 'w').write(str(child.pid))\n\
                  os.rename('part', 'child')\n\
                  time.sleep(1000)";
    let dir = scripts();
    let mut zprobe = zprobe(&dir, &[], &[PYTHON, "-c", script]).spawn().expect("zprobe");
    let child = dir.path().join("child");
    while !child.exists() {
        thread::sleep(Duration::from_millis(10));
    }
    kill(Pid::from_raw(zprobe.id().cast_signed()), Signal::SIGINT).expect("a signal");
    assert_eq!(zprobe.wait().expect("an end").code(), Some(4));
    let child = fs::read_to_string(child).expect("the child's id");
    assert!(!Path::new("/proc").join(child).exists());
}

#[test]
fn a_sitecustomize_of_the_user_is_run_as_without_zprobe() {
    let dir = scripts();
    let own = dir.path().join("own");
    fs::create_dir(&own).expect("a directory");
    fs::write(own.join("sitecustomize.py"), "print('customised')").expect("a file");
    let mut command = zprobe(&dir, &[], &[PYTHON, "-c", "print('done')"]);
    let output = command.env("PYTHONPATH", &own).output().expect("zprobe");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "customised\ndone\n");
}
