//! `zprobe bisect`: finds the first release of a package, and the first commit, that shows a finding or no longer
//! shows it.

pub mod step;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use pep440_rs::Version;
use zprobe_engines as engines;
use zprobe_lab::bisect::{self, BisectEnd, BisectTask, FindingSignature, GitSource, render};
use zprobe_lab::console;
use zprobe_lab::order::{Order, Ranks};
use zprobe_lab::recorded::diagnosis;
use zprobe_lab::runs::find;
use zprobe_lab::secrets;
use zprobe_model::spec::{Device, RunSpec, SpecRequest};
use zprobe_report::{Exit, Form, Report};
use zprobe_zoo::Packages;

use super::nodes::refuse_launcher;
use super::provision;

/// The default version of torch when another package is bisected: all of `zprobe zoo` ran with it.
const TORCH: &str = "torch==2.11.0";

/// The arguments of `zprobe bisect`.
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true
)]
pub struct BisectArgs {
    #[command(subcommand)]
    step: Option<Step>,

    /// Recorded run with the finding: a directory, the beginning of a name, latest or latest~N
    ///
    /// `zprobe list runs` lists the names. Without a run, the settings of a run, such as --engine, make the run.
    #[arg(value_name = "RUN")]
    run_dir: Option<PathBuf>,

    /// Package whose releases are bisected, for example deepspeed
    #[arg(long, value_name = "NAME", required = true)]
    package: Option<String>,

    /// A release without the finding; with --git also a commit, a branch or a tag
    #[arg(long, value_name = "VERSION", required = true)]
    good: Option<String>,

    /// A release with the finding [default: the release of the recorded run]
    ///
    /// With --git also a commit, a branch or a tag.
    #[arg(long, value_name = "VERSION")]
    bad: Option<String>,

    /// Find the first release without the finding; --bad is then the older release
    #[arg(long)]
    fixed: bool,

    /// After the releases, search the commits between the last good and the first bad release, in this git repository:
    /// a directory, which is only read, or a URL
    #[arg(long, value_name = "DIR|URL")]
    git: Option<String>,

    /// At a merge commit, follow only the first parent
    #[arg(long, requires = "git")]
    first_parent: bool,

    /// Another package with a fixed version for all trials; for the bisected package itself, the release into whose
    /// environment its commits are installed [default: torch==2.11.0]
    #[arg(long, value_name = "NAME==VERSION")]
    with: Vec<String>,

    /// Number of releases that are tried in parallel
    #[arg(long, value_name = "N", default_value_t = 1, env = "ZPROBE_JOBS")]
    jobs: usize,

    /// Make each run N times, for a finding that occurs only sometimes
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
    /// Make one run for `git bisect run`
    ///
    /// The exit code is 0 if the commit is good, 1 if it is bad, and 125 if the run is inconclusive.
    Step(Box<step::BisectStepArgs>),
}

pub fn main(args: &BisectArgs) -> Result<Exit> {
    if let Some(Step::Step(args)) = &args.step {
        return step::main(args);
    }
    refuse_launcher("bisect")?;
    ensure!(args.jobs > 0, "--jobs 0: must be at least 1");
    ensure!(args.repeat > 0, "--repeat 0: must be at least 1");
    let answer = bisect::first(&args.task()?)?;
    let words = std::env::args_os().skip(1).map(|it| it.to_string_lossy().into_owned());
    let command = ["zprobe".to_owned()].into_iter().chain(words).collect::<Vec<_>>();
    let command = shlex::try_join(command.iter().map(String::as_str)).unwrap_or_default();
    let text = render(&answer, &command, args.output_format)?;
    // The URL of a repository may contain a password.
    console::print(&secrets::of_machine().text(&text))?;
    Ok(if answer.is_known() { Exit::Clean } else { Exit::Inconclusive })
}

impl BisectArgs {
    fn task(&self) -> Result<BisectTask> {
        let package = self.package.clone().context("--package is missing")?;
        let good = BisectEnd::from(self.good.as_deref().context("--good is missing")?);
        let found = self.run_dir.as_deref().map(|run| find(Path::new(""), Some(run)));
        let recorded = found.transpose()?.map(|run_dir| diagnosis(&run_dir)).transpose()?;
        let report = recorded.as_ref().map(|(report, _)| report);
        let spec = match report {
            Some(report) => report.run.spec.clone(),
            None => self.request.clone().resolve()?,
        };
        refuse(&package, &spec)?;
        let bad = match (&self.bad, report) {
            (Some(bad), _) => BisectEnd::from(bad.as_str()),
            (None, Some(report)) => BisectEnd::Release(version(report, &package)?),
            (None, None) => {
                anyhow::bail!("--bad is missing: name a release that shows the finding")
            }
        };
        self.refuse_ends(&package, &good, &bad)?;
        let signature = report.map(|report| {
            FindingSignature::of(report)
                .context("the recorded run has no finding to bisect; give a run directory with one")
        });
        let (own, fixed_packages): (Packages, Packages) =
            self.fixed_packages(&package)?.into_iter().partition(|(name, _)| *name == package);
        Ok(BisectTask {
            order: Order { spec, ranks: Ranks::Cold(PathBuf::new()), repeats: self.repeat },
            base_release: own.version(&package).cloned(),
            fixed_packages,
            package,
            good,
            bad,
            fixed: self.fixed,
            git: self.git.clone().map(|place| GitSource { place, first_parent: self.first_parent }),
            signature: signature.transpose()?,
            jobs: self.jobs,
            out: self.out.clone(),
        })
    }

    /// Refuses values of `--good` and `--bad` that contradict the other flags.
    fn refuse_ends(&self, package: &str, good: &BisectEnd, bad: &BisectEnd) -> Result<()> {
        ensure!(
            self.git.is_none() || package != "torch",
            "--git: commits of torch are not built here, because each takes hours; bisect its releases, and then \
             run `git bisect run zprobe bisect step` in a checkout that your own script builds"
        );
        for (flag, end) in [("--good", good), ("--bad", bad)] {
            if let (BisectEnd::Revision(name), None) = (end, &self.git) {
                anyhow::bail!(
                    "{flag} {name}: not a version such as 0.18.9; a commit, branch or tag needs --git with \
                     the repository"
                );
            }
        }
        if let (BisectEnd::Release(good), BisectEnd::Release(bad)) = (good, bad) {
            ensure!(good != bad, "{package} {good} is both --good and --bad");
            ensure!(
                self.fixed == (bad < good),
                "--good {good} and --bad {bad}: {}",
                if self.fixed {
                    "with --fixed, the bad release must be older than the good one"
                } else {
                    "the bad release is older than the good one; add --fixed to find the first good release"
                },
            );
        }
        Ok(())
    }

    /// The packages whose versions are the same in all trials.
    fn fixed_packages(&self, package: &str) -> Result<Packages> {
        let names_torch =
            package == "torch" || self.with.iter().any(|text| text.starts_with("torch=="));
        let torch = (!names_torch).then(|| TORCH.to_owned());
        provision::packages(torch.iter().chain(&self.with))
    }
}

/// Refuses runs that do not use the package, runs of a user's script, and runs on GPUs.
fn refuse(package: &str, spec: &RunSpec) -> Result<()> {
    let engine = spec.engine();
    ensure!(
        spec.script().is_none(),
        "bisect cannot repeat a run of your own script; bisect the same engine with \
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

/// The release version of a package in a recorded run, without the local suffix of a build (`+cu130`).
fn version(report: &Report, package: &str) -> Result<Version> {
    let text = report.run.versions.get(package);
    let text = text.with_context(|| {
        format!(
            "the recorded run has no version of {package}; name the bad release with --bad VERSION"
        )
    })?;
    let release = text.split('+').next().unwrap_or_default();
    release.parse().with_context(|| {
        format!(
            "{package} {text} is not a released version; name the bad release with --bad VERSION"
        )
    })
}
