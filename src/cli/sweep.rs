//! `zprobe sweep`: runs one engine of one Python over a lattice of configurations.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use zprobe_lab::console;
use zprobe_lab::lattice::DesignPart;
use zprobe_lab::lattice::outcome::{Sweep, SweepEnding};
use zprobe_lab::sweep::plan::{SweepDesign, SweepPlan, SweepSelection};
use zprobe_lab::sweep::{self, SweepOptions, matrix, table};
use zprobe_model::spec::settings::Timeout;
use zprobe_model::spec::{DeviceChoice, Engine};
use zprobe_report::{Exit, Form};

use super::interpreter::{Chosen, Python};
use super::nodes::refuse_launcher;
use super::{provision, run};

/// The optimizer steps of each run of a sweep, and the default of `zprobe run`.
const DEFAULT_STEPS: usize = 2;

/// The arguments of `zprobe sweep`.
#[derive(clap::Args)]
pub struct SweepArgs {
    /// Engine under test
    #[arg(long, default_value = "deepspeed")]
    engine: Engine,

    #[command(flatten)]
    python: Python,

    /// Instead of --python: an environment with these packages, which is created if it does not exist
    #[arg(long, value_name = "NAME==VERSION")]
    package: Vec<String>,

    /// Only configurations whose description or arguments contain this; several filters must all match
    #[arg(long, value_name = "SUBSTRING")]
    filter: Vec<String>,

    /// Only these ZeRO stages
    #[arg(long, value_name = "0|1|2|3")]
    stage: Vec<u8>,

    /// Only these parts of the covering design
    #[arg(long, value_name = "PART")]
    part: Vec<DesignPart>,

    /// Instead of the covering design: few configurations, with every pair of unusual values
    ///
    /// Settings in which a release of --package has a known bug are left out.
    #[arg(long, conflicts_with_all = ["part", "random"])]
    pairs: bool,

    /// Instead of the covering design: this many configurations, drawn at random from all axes
    #[arg(long, value_name = "N", conflicts_with_all = ["part", "limit"])]
    random: Option<usize>,

    /// Seed of the random draw
    #[arg(long, value_name = "N", default_value_t = 0, requires = "random")]
    seed: u64,

    /// At most this many configurations
    #[arg(long, value_name = "N")]
    limit: Option<usize>,

    /// Start no more runs after this many seconds
    #[arg(long, value_name = "SECS")]
    time_limit: Option<u64>,

    /// Continue an earlier sweep: configurations in its JSON output are not run again
    #[arg(long, value_name = "FILE", conflicts_with = "results")]
    resume: Option<PathBuf>,

    /// Optimizer steps of each run
    #[arg(long, value_name = "N", default_value_t = DEFAULT_STEPS)]
    steps: usize,

    #[command(flatten)]
    timeout: Timeout,

    /// Run every configuration on this device
    #[arg(long, value_name = "DEVICE", default_value = "cpu", env = "ZPROBE_DEVICE")]
    device: DeviceChoice,

    /// Number of pools that run in parallel
    #[arg(long, value_name = "N", default_value_t = 1, env = "ZPROBE_JOBS")]
    jobs: usize,

    /// Repeat each run that is not clean, and report it if the outcome differs
    #[arg(long)]
    confirm: bool,

    /// Only list the configurations that would be run, and those left out
    #[arg(long)]
    list: bool,

    /// Run nothing; make the table from the JSON output of earlier sweeps
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "list")]
    results: Vec<PathBuf>,

    /// Keep the run directories of runs that are not clean in this directory
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,

    /// Form of the table on standard output
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "full",
        value_parser = Form::among(Form::OF_A_TABLE),
        env = "ZPROBE_OUTPUT_FORMAT"
    )]
    output_format: Form,
}

pub fn main(args: &SweepArgs) -> Result<Exit> {
    refuse_launcher("sweep")?;
    ensure!(args.jobs > 0, "--jobs 0: must be at least 1");
    ensure!(args.steps > 0, "--steps 0: must be at least 1");
    let surroundings = args.surroundings();
    let sweeps = if args.results.is_empty() {
        let earlier = args.resume.as_ref();
        let earlier = earlier.map(|path| sweep::earlier(path, args.engine, args.steps));
        // Some settings need more steps than the default of `zprobe run`.
        let steps = ["--steps".to_owned(), args.steps.to_string()];
        let spec = |arguments: &[String]| run::spec(&[arguments, &steps].concat());
        let plan = SweepPlan::new(&args.choice()?, earlier.transpose()?, &spec)?;
        if args.list {
            console::plain(&table::list(&plan, args.output_format, &surroundings)?)?;
            return Ok(Exit::Clean);
        }
        console::say(plan.summary());
        vec![args.sweep(plan)?]
    } else {
        args.results.iter().map(|path| sweep::read(path)).collect::<Result<_>>()?
    };
    let text = match sweeps.as_slice() {
        [one] => table::table(one, args.output_format, &surroundings)?,
        many => matrix::table(many, args.output_format, &surroundings)?,
    };
    console::plain(&text)?;
    let rows = sweeps.iter().flat_map(|sweep| &sweep.rows);
    // Without a time limit, configurations stay untried only if the user interrupts the sweep.
    let interrupted = args.time_limit.is_none() && sweeps.iter().any(|sweep| sweep.not_tried > 0);
    let endings = rows.map(|row| row.outcome.ending);
    Ok(sweep::exit(endings.chain(interrupted.then_some(SweepEnding::Inconclusive))))
}

impl SweepArgs {
    /// The configurations that the flags ask for.
    fn choice(&self) -> Result<SweepSelection<'_>> {
        let design = match self.random {
            Some(number) => SweepDesign::Drawn { number, seed: self.seed },
            None if self.pairs => SweepDesign::Pairwise,
            None => SweepDesign::Covering,
        };
        Ok(SweepSelection {
            engine: self.engine,
            design,
            packages: provision::packages(&self.package)?,
            parts: &self.part,
            stages: &self.stage,
            filter: &self.filter,
            limit: self.limit,
        })
    }

    /// The arguments that a single `zprobe run` needs, in addition to its configuration, to repeat a run of the sweep.
    fn surroundings(&self) -> Vec<String> {
        let mut words = Vec::new();
        let mut say = |name: &str, value: String| words.extend([name.to_owned(), value]);
        if let Some(python) = self.python.named() {
            say("--python", python.display().to_string());
        }
        if self.steps != DEFAULT_STEPS {
            say("--steps", self.steps.to_string());
        }
        if self.device != DeviceChoice::Cpu {
            say("--device", self.device.name().to_owned());
        }
        words.extend(self.timeout.arguments());
        words
    }

    /// Runs the planned configurations, and returns their outcomes.
    fn sweep(&self, plan: SweepPlan) -> Result<Sweep> {
        let python = match (self.package.as_slice(), self.python.named()) {
            ([], _) => self.python.choose(),
            (packages, None) => Chosen::provided(provision::interpreter(packages)?),
            (_, Some(_)) => {
                bail!(
                    "--package and --python both choose the Python interpreter; leave one of them out"
                )
            }
        };
        python.must_have(self.engine)?;
        let runs = SweepOptions {
            steps: self.steps,
            timeout: self.timeout.arguments(),
            jobs: self.jobs,
            time_limit: self.time_limit.map(Duration::from_secs),
            confirm: self.confirm,
            keep: self.keep.as_deref(),
        };
        let device = ["--device", self.device.name()].map(str::to_owned);
        let path = python.path.clone();
        let order = |arguments: &[String]| run::order_with(&[arguments, &device].concat(), &path);
        runs.sweep(plan, python.path, &order)
    }
}

#[cfg(test)]
mod tests {
    use zprobe_lab::lattice::Lattice;

    use super::*;

    #[test]
    fn every_configuration_resolves_or_is_refused_by_the_spec_and_not_by_the_command_line() {
        for &engine in Engine::CHOICES {
            let lattice = Lattice::of(engine);
            let bases = lattice.covering();
            for configuration in bases.iter().chain(&lattice.pairwise(&|_| true)) {
                let arguments = configuration.arguments();
                let parsed = run::RunArgs::parse(&arguments);
                assert!(parsed.is_ok(), "{arguments:?}: {}", parsed.err().expect("an error"));
            }
            let resolved = bases.iter().filter(|it| run::spec(&it.arguments()).is_ok()).count();
            assert!(2 * resolved > bases.len(), "{engine}: {resolved} of {}", bases.len());
        }
    }
}
