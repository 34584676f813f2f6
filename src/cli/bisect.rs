//! `zprobe bisect`: the first release of a package that shows a finding, or the first that no longer does.

pub mod step;

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use pep440_rs::Version;
use zprobe::console;
use zprobe::engines;
use zprobe::environment::Packages;
use zprobe::lab::bisect::{self, Question, Signature, render};
use zprobe::lab::order::{Order, Ranks};
use zprobe::lab::recorded::diagnosis;
use zprobe::report::{Exit, Form, Report};
use zprobe::spec::{Device, RunSpec, SpecRequest};

use super::nodes::refuse_launcher;
use super::provision;

/// torch beside the releases of another package, unless another is asked for: all of `zprobe zoo` ran with it.
const TORCH: &str = "torch==2.11.0";

/// Arguments of `zprobe bisect`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    #[command(subcommand)]
    step: Option<Step>,

    /// Directory of a recorded run that shows the finding [default: the settings below make the run]
    run_dir: Option<PathBuf>,

    /// Package whose releases are tried, for example deepspeed
    #[arg(long, value_name = "NAME", required = true)]
    package: Option<String>,

    /// A release without the finding
    #[arg(long, value_name = "VERSION", required = true)]
    good: Option<Version>,

    /// A release with the finding [default: the one that the recorded run had]
    #[arg(long, value_name = "VERSION")]
    bad: Option<Version>,

    /// Look for the first release without the finding; --bad is the older one then
    #[arg(long)]
    fixed: bool,

    /// Another package with its version, the same for all releases [default: torch==2.11.0]
    #[arg(long, value_name = "NAME==VERSION")]
    with: Vec<String>,

    /// Releases that are tried side by side
    #[arg(long, value_name = "N", default_value_t = 1, env = "ZPROBE_JOBS")]
    jobs: usize,

    /// Make each run so many times, where chance has a hand in the finding
    #[arg(long, value_name = "N", default_value_t = 1)]
    repeat: usize,

    /// Directory for the runs [default: a new one under .zprobe/bisect]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Form of the answer on standard output
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "full",
        value_parser = Form::among(Form::OF_A_TABLE),
        env = "ZPROBE_OUTPUT_FORMAT"
    )]
    output_format: Form,

    #[command(flatten)]
    request: SpecRequest,
}

#[derive(clap::Subcommand)]
enum Step {
    /// Make one run for `git bisect run`: exit with 0 if it is good, 1 if bad, 125 if it tells nothing
    Step(Box<step::Args>),
}

pub fn main(args: &Args) -> Result<Exit> {
    if let Some(Step::Step(args)) = &args.step {
        return step::main(args);
    }
    refuse_launcher("bisect")?;
    ensure!(args.jobs > 0, "--jobs 0: must be at least 1");
    ensure!(args.repeat > 0, "--repeat 0: must be at least 1");
    let answer = bisect::first(&args.question()?)?;
    let words = std::env::args_os().skip(1).map(|it| it.to_string_lossy().into_owned());
    let command = ["zprobe".to_owned()].into_iter().chain(words).collect::<Vec<_>>();
    let command = shlex::try_join(command.iter().map(String::as_str)).unwrap_or_default();
    console::print(&render(&answer, &command, args.output_format)?)?;
    Ok(if answer.first.is_empty() { Exit::Inconclusive } else { Exit::Clean })
}

impl Args {
    fn question(&self) -> Result<Question> {
        let package = self.package.clone().context("--package is missing")?;
        let good = self.good.clone().context("--good is missing")?;
        let recorded = self.run_dir.as_deref().map(diagnosis).transpose()?;
        let report = recorded.as_ref().map(|(report, _)| report);
        let spec = match report {
            Some(report) => report.run.spec.clone(),
            None => self.request.clone().resolve()?,
        };
        refuse(&package, &spec)?;
        let bad = match (&self.bad, report) {
            (Some(bad), _) => bad.clone(),
            (None, Some(report)) => version(report, &package)?,
            (None, None) => {
                anyhow::bail!("--bad is missing: name a release that shows the finding")
            }
        };
        ensure!(
            self.fixed == (bad < good),
            "--good {} and --bad {bad}: {}",
            good,
            if self.fixed {
                "with --fixed the bad release is the older one"
            } else {
                "the bad release is the older one; with --fixed the first good one is looked for"
            },
        );
        let signature = report.map(|report| {
            Signature::of(report)
                .context("the recorded run has no finding: there is nothing to look for")
        });
        Ok(Question {
            order: Order { spec, ranks: Ranks::Cold(PathBuf::new()), repeats: self.repeat },
            beside: self.beside(&package)?,
            package,
            good,
            bad,
            signature: signature.transpose()?,
            jobs: self.jobs,
            out: self.out.clone(),
        })
    }

    /// Packages that stay the same.
    fn beside(&self, package: &str) -> Result<Packages> {
        let names_torch =
            package == "torch" || self.with.iter().any(|text| text.starts_with("torch=="));
        let torch = (!names_torch).then(|| TORCH.to_owned());
        provision::packages(torch.iter().chain(&self.with))
    }
}

/// Refuses runs that no release of the package has a part in.
fn refuse(package: &str, spec: &RunSpec) -> Result<()> {
    let engine = spec.engine();
    ensure!(
        spec.script().is_none(),
        "a run of your own script cannot be made again here; bisect the same engine with \
         `zprobe bisect --engine`"
    );
    let needs = engines::of(engine).python.as_ref();
    let modules: Vec<&str> =
        needs.iter().flat_map(|it| it.packages()).map(|it| it.module).collect();
    ensure!(
        modules.contains(&package),
        "--package {package}: the {engine} engine does not use it; {}",
        match modules.as_slice() {
            [] => "name an engine with --engine".to_owned(),
            all => format!("it uses {}", all.join(" and ")),
        }
    );
    ensure!(spec.device == Device::Cpu, "releases are tried on the CPU; leave --device out");
    Ok(())
}

/// The version of a package in a recorded run, without the name of its build.
fn version(report: &Report, package: &str) -> Result<Version> {
    let text = report.run.versions.get(package);
    let text =
        text.with_context(|| format!("the recorded run says no version of {package}; give --bad"))?;
    let release = text.split('+').next().unwrap_or_default();
    release.parse().with_context(|| format!("{package} {text}: not a version; give --bad"))
}
