//! Scripts that crash or hang: the findings on them, and the places that the findings name.

use zprobe_model::trace::Frame;
use zprobe_report::{Finding, Verdict};

use super::{Run, exec, file, full, python, scripts, text, train};

/// Runs a training of two ranks with the failure that `what` describes.
fn broken(timeout: &str, what: &str) -> Run {
    let script = file("tests/engines/exec/scripts/broken.py");
    train(scripts(), &["--timeout", timeout], 2, text(&script), what)
}

/// Runs a training that hangs, in `load` or because a rank waits in `average`. On a loaded machine a rank may
/// need longer than the timeout to reach its place. Such a run shows nothing, and the next run has four times
/// the timeout.
fn hung(what: &str) -> Run {
    let is_there = |run: &Run| {
        let places = |rank| own_functions(run, rank).first().copied();
        run.report.is_some() && (0..2).all(|rank| matches!(places(rank), Some("load" | "average")))
    };
    let mut runs = ["15", "60", "240"].into_iter().map(|timeout| broken(timeout, what));
    runs.find(is_there).expect("two ranks hang in their places within minutes")
}

fn only_finding(run: &Run) -> &Finding {
    let [finding] = &run.report().findings[..] else { panic!("{}", run.findings()) };
    finding
}

/// The names of the functions of the user's own code on a rank's stack, the innermost first.
fn own_functions(run: &Run, rank: usize) -> Vec<&str> {
    let frames = run.report().ranks[rank].stacks.iter().flat_map(|stack| &stack.frames);
    let own = frames.filter(|frame| frame.is_own && frame.file == "broken.py");
    own.map(|frame: &Frame| frame.function.as_str()).collect()
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn a_rank_that_crashes_is_named_with_its_step_its_exception_and_its_place() {
    let crashes = [
        ("raise 1 0.1", (0, 1), "ValueError, at broken.py:"),
        ("fault 1 1.1", (1, 1), "killed by SIGSEGV, at broken.py:"),
        ("raise 1 1.0", (1, 0), "ValueError, at broken.py:"),
        ("raise 1 2.1", (2, 1), "ValueError, at broken.py:"),
        ("exit 1 1.1", (1, 1), "sys.exit"),
        ("leave 1 1.1", (1, 1), "failed with exit code 5"),
    ];
    for (what, moment, message) in crashes.iter().take(if full() { crashes.len() } else { 2 }) {
        let run = broken("600", what);
        assert_eq!(run.code, 3, "{what}: {}", run.stderr);
        let finding = only_finding(&run);
        assert_eq!(finding.code, "ZP901", "{what}");
        assert_eq!(finding.rank, Some(1), "{what}: {}", finding.message);
        let (step, microbatch) = *moment;
        assert_eq!((finding.step, finding.microbatch), (Some(step), Some(microbatch)), "{what}");
        assert!(finding.message.starts_with(message), "{what}: {}", finding.message);
        assert!(!run.findings().contains("no such sample"), "{what}: {}", run.findings());
        if finding.message.contains("broken.py") {
            assert_eq!(own_functions(&run, 1)[..2], ["load", "main"], "{what}");
        }
    }
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn a_rank_that_crashes_in_the_first_step_is_named_where_the_script_is_observed() {
    let script = file("tests/engines/exec/scripts/broken.py");
    let run = train(scripts(), &["--observe"], 2, text(&script), "raise 1 0.1");
    assert_eq!(run.code, 3, "{}", run.stderr);
    let finding = only_finding(&run);
    assert_eq!((finding.code.as_str(), finding.rank), ("ZP901", Some(1)), "{}", finding.message);
    assert!(finding.message.starts_with("ValueError"), "{}", finding.message);
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn a_rank_whose_script_ends_first_is_named_with_the_number_of_its_steps() {
    let script = file("tests/engines/exec/scripts/broken.py");
    for options in [&[][..], &["--observe=4"]] {
        let run = train(scripts(), options, 2, text(&script), "end 1 2.0");
        assert_eq!(run.code, 3, "{}", run.stderr);
        let finding = only_finding(&run);
        assert_eq!(
            (finding.code.as_str(), finding.rank),
            ("ZP901", Some(1)),
            "{}",
            finding.message
        );
        let watched = if options.is_empty() { 3 } else { 5 };
        let said =
            format!("the script ended (exit code 0) after 2 of the {watched} watched steps;");
        assert!(finding.message.starts_with(&said), "{}", finding.message);
        let lost = &finding.consequences[0].message;
        assert!(lost.starts_with("rank 0: "), "{lost}");
    }
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn an_exception_that_the_script_catches_is_no_finding() {
    let run = broken("600", "catch 1 1.0");
    assert_eq!(run.report().verdict, Verdict::Clean, "{}", run.findings());
    assert_eq!(run.code, 0);
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn a_script_that_fails_before_its_first_backward_is_inconclusive_and_its_exception_is_named() {
    let run = broken("600", "raise all before");
    assert_eq!(run.code, 4, "{}", run.stderr);
    assert!(run.report.is_none());
    let said = "rank 1: ValueError: no such sample, at broken.py:";
    assert!(run.stderr.contains(said), "{}", run.stderr);
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn a_rank_that_hangs_is_named_with_its_place_and_so_are_those_that_wait_for_it() {
    let hangs = [("sleep 1 1.1", (Some(1), Some(1))), ("sleep 1 before", (None, None))];
    for (what, moment) in hangs {
        let run = hung(what);
        assert_eq!(run.code, 3, "{what}");
        let finding = only_finding(&run);
        assert_eq!((finding.code.as_str(), finding.rank), ("ZP902", Some(1)), "{what}");
        assert_eq!((finding.step, finding.microbatch), moment, "{what}");
        let message = &finding.message;
        assert!(message.contains("rank 1 is in broken.py:"), "{what}: {message}");
        let waits = "(load) while rank 0 waits in all_reduce, called from broken.py:";
        assert!(message.contains(waits), "{what}: {message}");
        // Before its first backward a rank has reported nothing.
        let collective = message.contains("; that is collective ");
        assert_eq!(collective, moment.0.is_some(), "{what}: {message}");
        assert_eq!(own_functions(&run, 1)[..2], ["load", "main"], "{what}");
        assert_eq!(own_functions(&run, 0)[..2], ["average", "main"], "{what}");
    }
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn a_script_that_hangs_before_its_first_backward_is_called_hung() {
    let run = hung("sleep all before");
    assert_eq!(run.code, 3);
    let finding = only_finding(&run);
    assert_eq!(finding.code, "ZP902");
    let said = "hung before the first backward: ranks 0 and 1 are in broken.py:";
    assert!(finding.message.starts_with(said), "{}", finding.message);
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn ranks_that_wait_in_different_collectives_are_named_with_their_places() {
    let message = &only_finding(&hung("wait 1 1.1")).message.clone();
    for said in ["rank 0 waits in all_reduce, called", "rank 1 waits in barrier, called"] {
        assert!(message.contains(said), "{message}");
    }
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn a_rank_that_is_stopped_is_named() {
    let stopped = |run: &Run| {
        run.report.is_some()
            && only_finding(run).message.contains("hung: rank 1 is stopped, by SIGSTOP")
    };
    let mut runs = ["15", "60", "240"].into_iter().map(|timeout| broken(timeout, "SIGSTOP 1 1.1"));
    let run = runs.find(stopped).expect("two ranks hang in their places within minutes");
    let finding = only_finding(&run);
    assert_eq!((finding.code.as_str(), finding.rank), ("ZP902", Some(1)), "{}", finding.message);
    assert!(finding.message.contains("while rank 0 waits in all_reduce"), "{}", finding.message);
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn a_rank_that_a_signal_ends_before_its_first_step_is_named_with_the_signal() {
    let (python, script) = (python(), file("tests/engines/exec/scripts/broken.py"));
    let launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"];
    let mut command = vec![text(&python)];
    command.extend(launcher.iter().copied().chain([text(&script), "SIGKILL", "1", "0.1"]));
    let run = exec(&[], &command);
    assert_eq!(run.code, 3, "{}", run.stderr);
    let finding = &run.report().findings[0];
    assert_eq!((finding.code.as_str(), finding.rank), ("ZP901", Some(1)), "{}", run.findings());
    assert_eq!((finding.step, finding.microbatch), (Some(0), Some(1)), "{}", run.findings());
    assert!(finding.message.starts_with("killed by SIGKILL"), "{}", finding.message);
}
