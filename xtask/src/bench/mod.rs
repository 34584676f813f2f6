//! Time of `zprobe run`, compared with the floor of any run on libtorch and with the script that zprobe
//! replaces.
//!
//! All programs are timed from outside, as whole processes from start to end, in turns: other load of the
//! machine hits all of them alike.

mod contender;
pub mod engines;
pub mod exec;
mod machine;
mod memory;
pub mod native;
mod overhead;
mod processes;
pub mod report;
mod sample;
pub mod scale;
pub mod scratch;
mod seed_script;
pub mod suite;

use std::path::PathBuf;

use anyhow::{Result, ensure};

use self::contender::Contender;
use self::machine::Machine;
use self::memory::Memory;
use self::report::{Measured, Report};
use self::sample::Sample;
use self::scratch::Scratch;
use self::seed_script::SeedScript;
use crate::page::Page;
use crate::workspace;

/// The page with the tables of `zprobe run`.
pub const PAGE: Page = Page { path: "docs/benchmarks.md", command: "cargo xtask bench --write" };

/// The page with the tables of real engines.
pub const ENGINES_PAGE: Page =
    Page { path: "docs/benchmarks.md", command: "cargo xtask bench --engines --write" };

/// The page with the table of many ranks.
pub const SCALE_PAGE: Page =
    Page { path: "docs/benchmarks.md", command: "cargo xtask bench --scale --write" };

/// The page with the tables of suites.
pub const SUITE_PAGE: Page =
    Page { path: "docs/benchmarks.md", command: "cargo xtask bench --suite --write" };

/// The page with the tables of the native engine.
pub const NATIVE_PAGE: Page =
    Page { path: "docs/benchmarks.md", command: "cargo xtask bench --native --write" };

/// The page with the table of scripts.
pub const EXEC_PAGE: Page =
    Page { path: "docs/benchmarks.md", command: "cargo xtask bench --exec --write" };

/// The options of `cargo xtask bench`.
#[derive(clap::Args)]
pub struct Options {
    /// Timed runs of each program, after one that is not timed
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub runs: usize,

    /// Also time the reproducer of DeepSpeed's pull request 7985 (see docs/benchmarks.md)
    #[arg(long, value_name = "FILE")]
    pub seed_script: Option<PathBuf>,

    /// Timed runs of that script, and of DeepSpeed's suite
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub seed_runs: usize,

    /// Python with torch and DeepSpeed, for that script; --engines takes several
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    pub python: Vec<PathBuf>,

    /// Measure real engines instead: the time to a verdict, compared with that script, and the cost of
    /// observation for a step of a large model
    #[arg(long, requires = "seed_script")]
    pub engines: bool,

    /// Measure the diagnosis of up to 16384 ranks instead
    #[arg(long, conflicts_with_all = ["engines", "seed_script"])]
    pub scale: bool,

    /// Measure whole suites instead: over one warm pool, compared with a run for each of their probes; with
    /// --seed-script DeepSpeed's suite, too
    #[arg(long, conflicts_with_all = ["engines", "scale", "native"])]
    pub suite: bool,

    /// Measure the native engine instead: its steps compared with those of the real engines of --python, its
    /// runs over warm ranks, and up to 64 ranks
    #[arg(long, conflicts_with_all = ["engines", "scale", "seed_script"])]
    pub native: bool,

    /// Measure `zprobe exec` instead, on a script of examples/train with a large model, compared with the
    /// script without zprobe
    #[arg(long, conflicts_with_all = ["engines", "scale", "native", "suite", "seed_script"])]
    pub exec: bool,

    /// Runs of a large model, with observation and without; with --native and --exec, runs of every program
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub step_runs: usize,

    /// Write the tables into docs/benchmarks.md
    #[arg(long)]
    pub write: bool,
}

impl Options {
    /// The command that repeats the measurement, with placeholders for paths.
    fn command(&self) -> String {
        let mut command = "cargo xtask bench".to_owned();
        let alone = [(self.native, "--native"), (self.exec, "--exec")];
        if let Some((_, flag)) = alone.into_iter().find(|(chosen, _)| *chosen) {
            command += &format!(" {flag} --step-runs {} --python VENV/bin/python", self.step_runs);
        } else {
            command += &format!(" --runs {}", self.runs);
        }
        if self.scale {
            command += " --scale";
        }
        if self.suite {
            command += " --suite";
        }
        if self.engines {
            command += &format!(" --engines --step-runs {} --seed-script FILE", self.step_runs);
            command += &" --python VENV/bin/python".repeat(self.python.len());
        } else if self.seed_script.is_some() {
            command += &format!(
                " --seed-script FILE --seed-runs {} --python VENV/bin/python",
                self.seed_runs
            );
        }
        if self.write {
            command += " --write";
        }
        command
    }
}

/// Measures `zprobe run`, its floors and the script that it replaces.
pub fn measure(options: &Options) -> Result<Report> {
    ensure!(options.runs > 0 && options.seed_runs > 0, "at least one run is needed");
    let scratch = Scratch::new(workspace::target_dir()?.join("bench"))?;
    let release = release_dir()?;
    let seed_script = match (&options.seed_script, options.python.first()) {
        (Some(file), Some(python)) => Some(SeedScript::for_cpu(file, python, &scratch)?),
        _ => None,
    };

    let mut contenders = vec![
        Contender::fork_floor(&release, contender::RANKS, options.runs),
        Contender::exec_floor(&release, options.runs),
        Contender::run(&release, contender::RANKS, options.runs),
        Contender::version(&release, options.runs),
    ];
    contenders.extend(seed_script.as_ref().map(|script| script.contender(options.seed_runs)));
    let times = in_turns(&contenders, &scratch)?;

    let memory = contenders
        .iter()
        .filter(|contender| contender.native_ranks > 0)
        .map(|contender| {
            let memory = Memory::measure(contender, memory::RUNS, &scratch)?;
            Ok((contender.name.clone(), memory))
        })
        .collect::<Result<_>>()?;
    let mut measured: Vec<Measured> = contenders
        .into_iter()
        .zip(times)
        .map(|(contender, times)| Measured { name: contender.name, times })
        .collect();
    if seed_script.is_none() {
        measured.push(Measured { name: seed_script::NAME.into(), times: Sample::default() });
    }
    let versions = seed_script.map(|script| script.versions);
    Ok(Report { command: options.command(), machine: Machine::this(versions)?, measured, memory })
}

/// The directory of the programs of the release build.
fn release_dir() -> Result<PathBuf> {
    Ok(workspace::target_dir()?.join("release"))
}

/// Times the contenders one after the other, in several rounds.
fn in_turns(contenders: &[Contender], scratch: &Scratch) -> Result<Vec<Sample>> {
    let mut samples: Vec<Sample> = contenders.iter().map(|_| Sample::default()).collect();
    let rounds = contenders.iter().map(|contender| contender.runs).max().unwrap_or(0);
    // Round 0 fills caches, so its times are not counted.
    for round in 0..=rounds {
        eprintln!("round {round} of {rounds}");
        for (contender, sample) in contenders.iter().zip(&mut samples) {
            if round > contender.runs {
                continue;
            }
            let time = contender.time(scratch)?;
            if round > 0 {
                sample.add(time);
            }
        }
    }
    Ok(samples)
}
