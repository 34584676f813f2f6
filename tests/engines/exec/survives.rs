//! Trainings that end with the same result, whatever happens to the zprobe that observes them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use zprobe_model::trace::{Event, Trace};

use super::observe::files;
use super::{file, python, scripts, text, zprobe};

/// The arguments of the training, which saves a checkpoint at its end.
const TRAINING: &str = "2 ddp.py --accumulate 2 --steps 12 --width 16 --layers 1 --out saved";

/// The words of the training's command.
fn command() -> Vec<String> {
    let (python, ranks) = (python(), file("tests/engines/exec/ranks.py"));
    let words = [text(&python), text(&ranks)].into_iter().chain(TRAINING.split_whitespace());
    words.map(str::to_owned).collect()
}

/// The files of the checkpoint that the training saves without zprobe.
fn plain() -> BTreeMap<String, Vec<u8>> {
    let dir = scripts();
    let [program, arguments @ ..] = &command()[..] else { unreachable!("a program") };
    let mut command = Command::new(program);
    command.args(arguments).current_dir(dir.path());
    command.env("DS_ACCELERATOR", "cpu").env("OMP_NUM_THREADS", "1");
    assert!(command.status().expect("a script").success());
    files(&dir.path().join("saved"))
}

/// Waits until a condition holds, for at most five minutes.
fn wait_until(mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(300);
    while !is_so() {
        assert!(Instant::now() < deadline, "nothing happens any more");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Starts zprobe on the training, and returns zprobe's process once both ranks have joined.
fn observing(dir: &TempDir) -> Child {
    let words = command();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut zprobe = zprobe(dir, &["--observe=12"], &words);
    let child = zprobe.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("zprobe");
    let channels = dir.path().join("run/ranks");
    let joined = |channels: &Path| {
        let names = fs::read_dir(channels).into_iter().flatten().flatten().map(|it| it.path());
        names.filter(|path| path.extension().is_some_and(|it| it == "jsonl")).count()
    };
    wait_until(|| joined(&channels) == 2);
    child
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn a_training_goes_on_when_the_run_directory_is_removed() {
    let dir = scripts();
    let child = observing(&dir);
    fs::remove_dir_all(dir.path().join("run")).expect("a run directory");
    let output = child.wait_with_output().expect("zprobe");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("leave the run directory alone"), "{error}");
    assert!(plain() == files(&dir.path().join("saved")));
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn a_training_goes_on_when_zprobe_is_killed_and_its_trace_can_be_read() {
    let dir = scripts();
    let mut child = observing(&dir);
    let trace = || Trace::read(&dir.path().join("run"));
    wait_until(|| trace().is_ok());
    child.kill().expect("a process");
    child.wait().expect("zprobe");
    assert!(trace().expect("a trace").spec.steps > 0);
    let plain = plain();
    // The training no longer has a parent that waits for its end.
    wait_until(|| plain == files(&dir.path().join("saved")));
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn a_training_goes_on_when_a_rank_can_write_no_more() {
    let dir = scripts();
    let words = command();
    // The limit of 128 KiB lies between the sizes: a rank's records are three times as long, and its
    // checkpoint is a quarter as long.
    let limited = ["bash", "-c", "ulimit -f 128; exec \"$@\"", "bash"].into_iter();
    let words: Vec<&str> = limited.chain(words.iter().map(String::as_str)).collect();
    let output = zprobe(&dir, &["--observe=12"], &words).output().expect("zprobe");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    assert!(plain() == files(&dir.path().join("saved")), "{error}");
    let trace = Trace::read(&dir.path().join("run")).expect("a trace");
    let is_lost = |event: &Event| matches!(event, Event::NotObserved { why, .. } if why.contains("could write no more"));
    assert!(trace.events().any(|(_, event)| is_lost(event)), "{error}");
}
