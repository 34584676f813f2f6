//! All stacks, in both modes, over numbers of ranks and microbatches, dtypes and seeds: no false alarm.
//!
//! Only with `ZPROBE_TEST_FULL`. The trainers need an interpreter that has accelerate, transformers and
//! Lightning as well.

#![allow(clippy::disallowed_macros, reason = "what is skipped is said")]

use std::fmt::Write as _;

use zprobe::report::Verdict;
use zprobe::trace::Point;

use super::{Run, exec_in, full, python, scripts, text, train};

/// A script with its flags, those of its dtypes, and true if it starts its ranks by itself.
struct Stack {
    script: &'static str,
    flags: &'static str,
    dtypes: &'static [&'static str],
    starts_ranks: bool,
}

const PLAIN: &[&str] = &["--dtype fp32", "--dtype bf16"];
const MIXED: &[&str] = &["--dtype fp32", "--dtype bf16", "--amp --dtype bf16"];

const fn stack(
    script: &'static str,
    flags: &'static str,
    dtypes: &'static [&'static str],
) -> Stack {
    Stack { script, flags, dtypes, starts_ranks: false }
}

/// Runs a stack with 1, 2 and 3 ranks, 1, 3 and 4 microbatches, and all dtypes in both modes.
fn raises_no_alarm(stacks: &[Stack]) {
    if !full() {
        println!("skipped: only with ZPROBE_TEST_FULL");
        return;
    }
    let (mut runs, mut wrong) = (0, String::new());
    for Stack { script, flags, dtypes, starts_ranks } in stacks {
        for ranks in 1..=3 {
            for accumulate in [1, 3, 4] {
                for dtype in *dtypes {
                    for options in [&[][..], &["--observe"]] {
                        runs += 1;
                        let flags = format!(
                            "{flags} --accumulate {accumulate} {dtype} --steps 6 --seed {runs}"
                        );
                        let run = if *starts_ranks {
                            started_by_itself(
                                options,
                                script,
                                &format!("{flags} --devices {ranks}"),
                            )
                        } else {
                            train(scripts(), options, ranks, script, &flags)
                        };
                        if let Some(problem) = problem(&run, options.is_empty()) {
                            _ = writeln!(wrong, "{script} {ranks} {flags} {options:?}: {problem}");
                        }
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "of {runs} runs:\n{wrong}");
    println!("{runs} runs, all clean");
}

fn started_by_itself(options: &[&str], script: &str, flags: &str) -> Run {
    let python = python();
    let mut command = vec![text(&python), script];
    command.extend(flags.split_whitespace());
    exec_in(scripts(), options, &command)
}

/// Everything that is wrong about a training that is right; none if all is as it should be.
fn problem(run: &Run, is_exact: bool) -> Option<String> {
    let Some(report) = &run.report else {
        return Some(format!("no report\n{}\n{}", run.stdout, run.stderr));
    };
    if report.verdict != Verdict::Clean || run.code != 0 {
        let refused: Vec<_> = report.run.not_observed.iter().map(|it| &it.why).collect();
        return Some(format!("{}, {}{refused:?}{}", report.verdict, run.findings(), run.stderr));
    }
    let consumed = report.contributions.iter().filter(|it| it.point == Point::OptimizerInput);
    let mut weights = consumed.flat_map(|it| it.weights.iter().flatten()).peekable();
    if weights.peek().is_none() {
        return Some("nothing was read".to_owned());
    }
    let inexact: Vec<_> = weights.filter(|weight| is_exact && **weight != 1.0).collect();
    (!inexact.is_empty()).then(|| format!("weights {inexact:?}"))
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn ddp_raises_no_alarm() {
    raises_no_alarm(&[stack("ddp.py", "", MIXED), stack("ddp.py", "--zero", PLAIN)]);
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn fsdp2_raises_no_alarm() {
    raises_no_alarm(&[stack("fsdp2.py", "", PLAIN)]);
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn deepspeed_raises_no_alarm() {
    raises_no_alarm(&[
        stack("deepspeed_zero.py", "--stage 0", PLAIN),
        stack("deepspeed_zero.py", "--stage 1", PLAIN),
        stack("deepspeed_zero.py", "--stage 2", PLAIN),
        stack("deepspeed_zero.py", "--stage 2 --offload", PLAIN),
        stack("deepspeed_zero.py", "--stage 3", PLAIN),
    ]);
}

#[test]
#[ignore = "needs an interpreter with torch, accelerate, transformers and Lightning"]
fn trainers_raise_no_alarm() {
    raises_no_alarm(&[
        stack("accelerate_loop.py", "", MIXED),
        stack("hf_trainer.py", "--no-report", MIXED),
        Stack { starts_ranks: true, ..stack("lightning_module.py", "", MIXED) },
    ]);
}
