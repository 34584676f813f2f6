//! Time of `zprobe exec` on a script that trains a model of 50 million parameters, compared with the script
//! without zprobe.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::contender::Contender;
use super::machine::{Machine, output};
use super::report::{ratio, table, time};
use super::sample::Sample;
use super::scratch::Scratch;
use super::{Options, in_turns, release_dir};
use crate::workspace;

/// The training script.
const SCRIPT: &str = "examples/train/ddp.py";

/// The flags of the script, for a model of 50 million parameters.
const FLAGS: &[&str] =
    &["--width", "1024", "--layers", "4", "--accumulate", "2", "--micro-batch", "8"];

/// The number of steps in a run whose gradients are replaced by codes.
const FEW: usize = 3;

/// The number of steps in a run with real gradients; all but the first are observed.
const MANY: usize = 23;

/// All measurements of scripts.
pub struct Report {
    command: String,
    machine: Machine,
    /// Times of the script without zprobe, with [`FEW`] and with [`MANY`] steps.
    alone: [Sample; 2],
    /// Times of the [`FEW`] steps whose gradients are codes.
    coded: Sample,
    /// Times of the [`MANY`] steps with one observed step, and with all but the first observed.
    observed: [Sample; 2],
}

/// Measures the script without zprobe, with codes and under observation.
pub fn measure(options: &Options) -> Result<Report> {
    ensure!(options.step_runs > 0, "at least one run is needed");
    let scratch = Scratch::new(workspace::target_dir()?.join("bench"))?;
    let python = options.python.first().context("--python is needed")?;
    let zprobe = release_dir()?.join("zprobe");
    let script = move |steps: usize| {
        let file = workspace::root().join(SCRIPT).into_os_string();
        let flags = FLAGS.iter().map(OsString::from);
        [file].into_iter().chain(flags).chain(["--steps".into(), steps.to_string().into()])
    };
    let alone = |steps: usize| {
        let python = python.clone();
        Contender::new(format!("the script, {steps} steps"), options.step_runs, move |_| {
            Ok(training(python.clone().into(), Vec::new(), script(steps)))
        })
    };
    let watched = |steps: usize, flag: Option<String>| {
        let (python, zprobe): (PathBuf, PathBuf) = (python.clone(), zprobe.clone());
        Contender::new("zprobe exec", options.step_runs, move |scratch| {
            let mut words: Vec<OsString> = vec!["exec".into(), "--no-config".into()];
            words.extend(["--out".into(), scratch.empty("exec")?.into()]);
            words.extend(flag.iter().map(OsString::from));
            words.extend(["--".into(), python.clone().into()]);
            Ok(training(zprobe.clone().into(), words, script(steps)))
        })
    };
    let observed = |steps: usize| watched(MANY, Some(format!("--observe={steps}")));
    let contenders = [alone(FEW), watched(FEW, None), alone(MANY), observed(1), observed(MANY - 1)];
    let times = in_turns(&contenders, &scratch)?;
    let [few, coded, many, one, all] = <[Sample; 5]>::try_from(times)
        .map_err(|_| anyhow::anyhow!("not every program was timed"))?;
    let torch =
        output(Command::new(python).args(["-c", "import torch; print(torch.__version__)"]))?;
    let machine = Machine::this(Some(format!("torch {torch}")))?;
    Ok(Report {
        command: options.command(),
        machine,
        alone: [few, many],
        coded,
        observed: [one, all],
    })
}

/// A training command on one thread.
fn training(
    program: OsString,
    words: Vec<OsString>,
    script: impl Iterator<Item = OsString>,
) -> Command {
    let mut command = Command::new(program);
    command.args(words).args(script).env("OMP_NUM_THREADS", "1");
    command
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "`{}`\n\n{}", self.command, self.machine)?;
        let [few, many] = [0, 1].map(|at| self.alone[at].median());
        let [one, all] = [0, 1].map(|at| self.observed[at].median());
        let step = (many - few) / (MANY - FEW) as f64;
        let row = |what: &str, steps: usize, alone: f64, watched: f64, of_step: String| {
            vec![
                what.to_owned(),
                steps.to_string(),
                time(alone),
                time(watched),
                ratio(watched / alone),
                of_step,
            ]
        };
        let more = (all - one) / (MANY - 2) as f64;
        let observed = format!("--observe={}", MANY - 1);
        let rows = [
            row("codes", FEW, few, self.coded.median(), String::new()),
            row("--observe=1", MANY, many, one, String::new()),
            row(&observed, MANY, many, all, ratio(1.0 + more / step)),
        ];
        let head =
            ["gradients", "steps", "the script", "zprobe exec", "÷ the script", "a step ÷ a step"];
        table(f, &head, &rows)?;
        writeln!(f, "\nA step of the script: {}.", time(step))
    }
}
