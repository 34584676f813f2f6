//! Trainings that are right raise no alarm: all stacks, in both modes, over numbers of ranks and of
//! microbatches, dtypes and seeds.
//!
//! With `ZPROBE_TEST_FULL` all of them, which takes more than an hour on two cores; `--nocapture` shows
//! each as it ends. The trainers need an interpreter that has accelerate, transformers and Lightning.

#![allow(clippy::disallowed_macros, reason = "a run of an hour says how far it is")]

use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use zprobe::report::Verdict;
use zprobe::trace::Point;

use super::{Run, exec_in, full, python, scripts, text, train};

/// A script with its flags.
struct Stack {
    script: &'static str,
    flags: &'static str,
    dtypes: &'static [&'static str],
    /// Module that it needs beside torch and DeepSpeed; none for most.
    needs: Option<&'static str>,
    /// True if the script starts its ranks by itself.
    starts_ranks: bool,
}

/// A run of a stack.
struct Training<'a> {
    stack: &'a Stack,
    ranks: usize,
    flags: String,
    is_observed: bool,
}

const PLAIN: &[&str] = &["--dtype fp32", "--dtype bf16"];
const MIXED: &[&str] = &["--dtype fp32", "--dtype bf16", "--amp --dtype bf16"];

const STACKS: &[Stack] = &[
    stack("ddp.py", "", MIXED),
    stack("ddp.py", "--zero", PLAIN),
    stack("fsdp2.py", "", PLAIN),
    stack("deepspeed_zero.py", "--stage 0", PLAIN),
    stack("deepspeed_zero.py", "--stage 1", PLAIN),
    stack("deepspeed_zero.py", "--stage 2", PLAIN),
    stack("deepspeed_zero.py", "--stage 2 --offload", PLAIN),
    stack("deepspeed_zero.py", "--stage 3", PLAIN),
    Stack { needs: Some("accelerate"), ..stack("accelerate_loop.py", "", MIXED) },
    Stack { needs: Some("transformers"), ..stack("hf_trainer.py", "--no-report", MIXED) },
    Stack {
        needs: Some("lightning"),
        starts_ranks: true,
        ..stack("lightning_module.py", "", MIXED)
    },
];

/// Trainings of every run.
const FEW: usize = 4;

const fn stack(
    script: &'static str,
    flags: &'static str,
    dtypes: &'static [&'static str],
) -> Stack {
    Stack { script, flags, dtypes, needs: None, starts_ranks: false }
}

/// Trainings of all stacks that the interpreter has, mixed up, so that some of them stand for all.
fn trainings() -> Vec<Training<'static>> {
    let mut all = Vec::new();
    for stack in STACKS.iter().filter(|stack| stack.needs.is_none_or(has)) {
        for ranks in 1..=3 {
            for accumulate in [1, 3, 4] {
                for dtype in stack.dtypes {
                    for is_observed in [false, true] {
                        let (flags, seed) = (stack.flags, all.len());
                        let flags = format!(
                            "{flags} --accumulate {accumulate} {dtype} --steps 6 --seed {seed}"
                        );
                        all.push(Training { stack, ranks, flags, is_observed });
                    }
                }
            }
        }
    }
    // A stride without a common divisor visits all of them.
    let stride = [271, 277].into_iter().find(|it| all.len() % it != 0).expect("a stride");
    let mut mixed: Vec<_> = all.into_iter().enumerate().collect();
    let count = mixed.len();
    mixed.sort_by_key(|(place, _)| place * stride % count);
    mixed.into_iter().map(|(_, training)| training).collect()
}

/// True if the interpreter has a module.
fn has(module: &str) -> bool {
    let status = Command::new(python()).args(["-c", &format!("import {module}")]).status();
    status.expect("the interpreter").success()
}

impl Training<'_> {
    fn name(&self) -> String {
        let mode = if self.is_observed { " --observe" } else { "" };
        format!("{}{mode}, {} ranks, {}", self.stack.script, self.ranks, self.flags)
    }

    fn run(&self) -> Run {
        let options = if self.is_observed { &["--observe"][..] } else { &[] };
        if !self.stack.starts_ranks {
            return train(scripts(), options, self.ranks, self.stack.script, &self.flags);
        }
        let (python, devices) = (python(), self.ranks.to_string());
        let mut command = vec![text(&python), self.stack.script, "--devices", &devices];
        command.extend(self.flags.split_whitespace());
        exec_in(scripts(), options, &command)
    }

    /// Description of the alarm that the training raised, or of what was not read; none if there is neither.
    fn problem(&self) -> Option<String> {
        let run = self.run();
        let Some(report) = &run.report else {
            return Some(format!("no report\n{}\n{}", run.stdout, run.stderr));
        };
        if report.verdict != Verdict::Clean || run.code != 0 {
            let unseen: Vec<_> = report.run.not_observed.iter().map(|it| &it.why).collect();
            return Some(format!("{}, {}{unseen:?}{}", report.verdict, run.findings(), run.stderr));
        }
        let consumed = report.contributions.iter().filter(|it| it.point == Point::OptimizerInput);
        let weights: Vec<_> = consumed.flat_map(|it| it.weights.iter().flatten()).collect();
        if weights.is_empty() {
            return Some("nothing was read".to_owned());
        }
        let inexact = weights.into_iter().find(|weight| !self.is_observed && **weight != 1.0);
        inexact.map(|weight| format!("a weight of {weight}"))
    }
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn trainings_that_are_right_raise_no_alarm() {
    let mut trainings = trainings();
    trainings.truncate(if full() { usize::MAX } else { FEW });
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(training) = trainings.get(next.fetch_add(1, Ordering::Relaxed)) {
            let name = training.name();
            match training.problem() {
                None => println!("clean: {name}"),
                Some(problem) => {
                    println!("NOT CLEAN: {name}: {problem}");
                    wrong.lock().expect("no panic").push(name);
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let wrong = wrong.into_inner().expect("no panic");
    assert!(wrong.is_empty(), "of {} trainings:\n{}", trainings.len(), wrong.join("\n"));
}
