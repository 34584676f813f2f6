//! Tests of scripts with several optimizers.

use zprobe_report::Verdict;

use super::{Run, exec, file, python, text};

fn run(script: &str, flags: &[&str]) -> Run {
    let (python, script) = (python(), file("tests/engines/exec/scripts").join(script));
    let mut command = vec![text(&python), text(&script)];
    command.extend(flags);
    exec(&[], &command)
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn optimizers_that_take_turns_each_have_gradients_of_their_own() {
    let trainings =
        [("gan.py", &[][..], 3), ("gan.py", &["--critic", "3"], 7), ("in_backward.py", &[], 1)];
    for (script, flags, microbatches) in trainings {
        let run = run(script, flags);
        let report = run.report();
        assert_eq!(report.verdict, Verdict::Clean, "{script} {flags:?}: {}", run.findings());
        assert_eq!(report.run.spec.gradient_accumulation_steps, microbatches, "{script} {flags:?}");
    }
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn gradients_of_another_optimizer_s_turn_are_found_where_nobody_clears_them() {
    let run = run("gan.py", &["--forget"]);
    assert!(run.findings().starts_with("ZP106"), "{}", run.findings());
}
