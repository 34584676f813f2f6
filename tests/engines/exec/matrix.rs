//! Correct trainings cause no alarm: all stacks, in both modes, over numbers of ranks and of microbatches,
//! widths, dtypes and seeds.
//!
//! With `ZPROBE_TEST_FULL` the test makes 600 trainings, which takes hours on two cores; otherwise it makes
//! one with each trainer. `--nocapture` shows each training after its end, and `ZPROBE_TEST_FROM=200` skips
//! the first 200. The trainers need an interpreter that has accelerate, transformers, PEFT, TRL and Lightning.

#![allow(clippy::disallowed_macros, reason = "a test of an hour prints its progress")]

use std::env;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use fastrand::Rng;
use zprobe_model::trace::Point;
use zprobe_report::{Station, Verdict};

use super::{Run, full, python, scripts, train};

/// A script with its flags.
struct Stack {
    script: &'static str,
    flags: &'static str,
    dtypes: &'static [&'static str],
    /// The import that the script needs in addition to torch and DeepSpeed; `None` for most scripts.
    needs: Option<&'static str>,
}

/// One run of a stack.
struct Training<'a> {
    stack: &'a Stack,
    ranks: usize,
    flags: String,
    is_observed: bool,
}

const PLAIN: &[&str] = &["--dtype fp32", "--dtype bf16"];
const MIXED: &[&str] = &["--dtype fp32", "--dtype bf16", "--amp --dtype bf16"];
/// The dtypes of scripts whose loss is scaled: by `GradScaler` in `ddp.py`, by hand in `fsdp2.py`.
const SCALED: &[&str] = &["--dtype fp32", "--dtype bf16", "--amp --dtype fp16"];
const HALF: &[&str] = &["--dtype fp32", "--dtype bf16", "--dtype fp16"];

const STACKS: &[Stack] = &[
    stack("ddp.py", "", SCALED),
    stack("ddp.py", "--zero", PLAIN),
    Stack { needs: Some("torch.distributed.fsdp.fully_shard"), ..stack("fsdp2.py", "", HALF) },
    stack("deepspeed_zero.py", "--stage 0", PLAIN),
    stack("deepspeed_zero.py", "--stage 1", PLAIN),
    stack("deepspeed_zero.py", "--stage 2", PLAIN),
    stack("deepspeed_zero.py", "--stage 2 --offload", PLAIN),
    stack("deepspeed_zero.py", "--stage 3", PLAIN),
    Stack { needs: Some("accelerate"), ..stack("accelerate_loop.py", "", MIXED) },
    Stack { needs: Some("transformers"), ..stack("hf_trainer.py", "--no-report", MIXED) },
    Stack { needs: Some("peft"), ..stack("peft_lora.py", "", PLAIN) },
    Stack { needs: Some("trl"), ..stack("trl_sft.py", "", MIXED) },
    Stack { needs: Some("lightning"), ..stack("lightning_module.py", "", MIXED) },
];

/// The number of trainings of a full run.
const MANY: usize = 600;

/// The seed of the random choices.
const SEED: u64 = 7;

const fn stack(
    script: &'static str,
    flags: &'static str,
    dtypes: &'static [&'static str],
) -> Stack {
    Stack { script, flags, dtypes, needs: None }
}

/// The answer of zprobe about a correct training.
enum Told {
    /// zprobe raised no alarm.
    Clean,
    /// zprobe gave no answer, for this reason. For example, bf16 is too narrow for the sum of many gradients.
    NoAnswer(String),
    /// zprobe raised this alarm.
    Alarm(String),
}

/// The widths of the model, each with the largest number of ranks that fit into 12 GiB.
const WIDTHS: &[(usize, usize)] = &[
    (8, 8),
    (12, 8),
    (20, 8),
    (24, 8),
    (32, 8),
    (52, 8),
    (64, 8),
    (100, 8),
    (256, 6),
    (516, 4),
    (1028, 3),
    (4100, 2),
];

/// Trainings drawn from all stacks that the interpreter can run; the same ones every time.
fn trainings(count: usize) -> Vec<Training<'static>> {
    let stacks: Vec<_> = STACKS.iter().filter(|stack| stack.needs.is_none_or(has)).collect();
    let mut draw = Rng::with_seed(SEED);
    (0..count).map(|at| training(stacks[at % stacks.len()], at, &mut draw)).collect()
}

fn training(stack: &'static Stack, seed: usize, draw: &mut Rng) -> Training<'static> {
    // The widest models are drawn rarely: a wide model takes minutes, and short pieces are the harder ones.
    let at_most = draw.usize(0..WIDTHS.len());
    let (width, most) = WIDTHS[draw.usize(0..=at_most)];
    // Rotary embeddings need an even number of elements in each head.
    let is_llama = stack.needs.is_some_and(|it| ["transformers", "peft", "trl"].contains(&it));
    let width = if is_llama { width.next_multiple_of(8) } else { width };
    let (ranks, accumulate) = (draw.usize(1..=most), draw.usize(1..=7));
    let layers = if width < 512 { draw.usize(1..=3) } else { 1 };
    let dtype = stack.dtypes[draw.usize(0..stack.dtypes.len())];
    let flags = format!(
        "{} {dtype} --accumulate {accumulate} --width {width} --layers {layers} --steps 4 --seed {seed}",
        stack.flags
    );
    let devices = if stack.needs == Some("lightning") {
        format!(" --devices {ranks}")
    } else {
        String::new()
    };
    Training { stack, ranks, flags: flags + &devices, is_observed: draw.bool() }
}

/// The trainings of an everyday test: the first of each stack with a trainer. `stacks.rs` has the trainings
/// of other stacks.
fn of_trainers() -> Vec<Training<'static>> {
    let of_trainer = |it: &Training<'_>| {
        it.stack.needs.is_some_and(|needs| {
            ["accelerate", "transformers", "peft", "trl", "lightning"].contains(&needs)
        })
    };
    trainings(STACKS.len()).into_iter().filter(of_trainer).collect()
}

/// True if the interpreter has a module of this name, or a name within a module.
fn has(name: &str) -> bool {
    let find = format!("import pkgutil; pkgutil.resolve_name({name:?})");
    Command::new(python()).args(["-c", &find]).status().expect("the interpreter").success()
}

impl Training<'_> {
    fn name(&self) -> String {
        let mode = if self.is_observed { " --observe" } else { "" };
        format!("{}{mode}, {} ranks, {}", self.stack.script, self.ranks, self.flags)
    }

    fn run(&self) -> Run {
        let options = if self.is_observed { &["--observe"][..] } else { &[] };
        train(scripts(), options, self.ranks, self.stack.script, &self.flags)
    }

    /// Runs the training under zprobe, and reads the answer. A release's bug in the zoo is no alarm.
    fn told(&self) -> Told {
        let run = self.run();
        let Some(report) = &run.report else {
            return Told::NoAnswer(format!("no report\n{}\n{}", run.stdout, run.stderr));
        };
        if report.findings.iter().any(|it| it.known.is_empty()) {
            return Told::Alarm(format!("{}, {}{}", report.verdict, run.findings(), run.stderr));
        }
        // A wrong buffer before the optimizer's input is no finding by itself, but shows where a finding
        // begins.
        let is_seen = |it: &&Station| matches!(it.point, Point::Accumulator | Point::Reduced);
        let departs = |it: &&Station| is_seen(it) && !it.departed.is_empty();
        if let Some(station) = report.journey.iter().find(departs) {
            return Told::Alarm(format!("the {} departs", station.point));
        }
        let consumed = report.contributions.iter().filter(|it| it.point == Point::OptimizerInput);
        let weights: Vec<_> = consumed.flat_map(|it| it.weights.iter().flatten()).collect();
        if !matches!(report.verdict, Verdict::Clean | Verdict::Findings) || weights.is_empty() {
            let unseen: Vec<_> = report.run.not_observed.iter().map(|it| &it.why).collect();
            return Told::NoAnswer(format!("{}, {unseen:?}{}", report.verdict, run.stderr));
        }
        let inexact = weights.into_iter().find(|weight| !self.is_observed && **weight != 1.0);
        inexact.map_or(Told::Clean, |weight| Told::Alarm(format!("a weight of {weight}")))
    }
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn trainings_that_are_right_raise_no_alarm() {
    let from = env::var("ZPROBE_TEST_FROM").map_or(0, |from| from.parse().expect("a number"));
    let trainings = if full() { trainings(MANY) } else { of_trainers() };
    let trainings = trainings.get(from..).expect("ZPROBE_TEST_FROM exceeds the number of runs");
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let unanswered = AtomicUsize::new(0);
    let work = || {
        while let Some(training) = trainings.get(next.fetch_add(1, Ordering::Relaxed)) {
            let name = training.name();
            match training.told() {
                Told::Clean => println!("clean: {name}"),
                Told::NoAnswer(why) => {
                    println!("no answer: {name}: {why}");
                    unanswered.fetch_add(1, Ordering::Relaxed);
                }
                Told::Alarm(finding) => {
                    println!("ALARM: {name}: {finding}");
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
    let (wrong, tried) = (wrong.into_inner().expect("no panic"), trainings.len());
    assert!(wrong.is_empty(), "of {tried} trainings:\n{}", wrong.join("\n"));
    let unanswered = unanswered.into_inner();
    assert!(10 * unanswered <= tried, "{unanswered} of {tried} trainings without an answer");
}
