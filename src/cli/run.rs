//! `zprobe run`: resolves the flags to a specification, launches the ranks, and reports on their trace.

#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use bytesize::ByteSize;
use clap::builder::Resettable;
use clap::{Args as _, FromArgMatches as _, ValueHint};
use zprobe_engines as engines;
use zprobe_lab::agents::{AgentRole, follow};
use zprobe_lab::console::{say, say_recorded};
use zprobe_lab::cuda::EngineGpus;
use zprobe_lab::minimise::{MinimiseTask, search};
use zprobe_lab::native;
use zprobe_lab::order::{Order, Ranks};
use zprobe_lab::recorded;
use zprobe_lab::run::record;
use zprobe_lab::store::{self, run_id};
use zprobe_launch::agents::{JobPart, Team};
use zprobe_launch::job::Job;
use zprobe_launch::{Hosting, RankProgram};
use zprobe_model::spec::deepspeed::DeepSpeedConfig;
use zprobe_model::spec::{BackendChoice, Device, DeviceChoice, Engine, RunSpec, SpecRequest};
use zprobe_model::trace::Trace;
use zprobe_report::words::amount;
use zprobe_report::{Exit, Report};

use super::interpreter::{Chosen, Python};
use super::minimise;
use super::nodes::{Nodes, play, take_part};
use super::output::{Hints, Output};

/// The arguments of `zprobe run`.
#[derive(clap::Args)]
#[command(next_line_help = false)]
pub struct RunArgs {
    #[command(flatten)]
    request: SpecRequest,

    /// DeepSpeed configuration file; flags win over it, and missing keys have DeepSpeed's defaults
    #[arg(long, value_name = "FILE", env = "ZPROBE_DEEPSPEED_CONFIG", help_heading = "Engine")]
    deepspeed_config: Option<PathBuf>,

    /// Make the run N times, and compare the repeats bit for bit [default: 1]
    #[arg(long, value_name = "N", env = "ZPROBE_REPEAT", help_heading = "Run")]
    repeat: Option<usize>,

    #[command(flatten)]
    minimise: minimise::MinimiseFlags,

    /// Directory for trace, logs and report [default: a new one under .zprobe/runs]
    #[arg(long, value_name = "DIR", env = "ZPROBE_OUT", help_heading = "Run")]
    out: Option<PathBuf>,

    /// Number of runs to keep in .zprobe/runs: after a new run the oldest are removed; 0 keeps all
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100,
        env = "ZPROBE_KEEP_RUNS",
        help_heading = "Run"
    )]
    keep_runs: usize,

    #[command(flatten)]
    nodes: Nodes,

    #[command(flatten, next_help_heading = "Run")]
    python: Python,

    /// Program to start once per rank instead of the engine's own; it must implement docs/protocol.md
    #[arg(
        long,
        value_name = "PROGRAM",
        value_hint = ValueHint::ExecutablePath,
        env = "ZPROBE_RANK_PROGRAM",
        help_heading = "Run"
    )]
    rank_program: Option<PathBuf>,

    /// Arguments for --rank-program
    #[arg(last = true, value_name = "ARG", requires = "rank_program")]
    rank_args: Vec<OsString>,

    #[command(flatten)]
    config: super::config::Choice,

    #[command(flatten)]
    output: Output,
}

pub fn main(mut args: RunArgs) -> Result<Exit> {
    args.output.refuse_unwritable(&args.python)?;
    args.choose_engine()?;
    let own_engine = args.hint_at_own_engine();
    args.make(&|report, trace, run_dir| {
        let again = args.again(&report.run.spec);
        let hints = Hints { own_engine: own_engine.clone(), again };
        args.output.hand_out(report, trace, run_dir, &args.python, &hints)
    })
}

/// A function that prints a report, given its trace and run directory, and returns the exit code.
type HandOut<'a> = &'a dyn Fn(&Report, &Trace, &Path) -> Result<Exit>;

/// Removes old runs, and prints how many. If this fails, a warning is printed, and the report still follows.
fn make_room(keep: usize) {
    match store::retain(Path::new(""), keep) {
        Ok(removed) if removed.is_empty() => {}
        Ok(removed) => say(format_args!(
            "removed the {} from {}, {}: --keep-runs {keep}",
            amount(removed.len(), "oldest run"),
            store::RUNS,
            ByteSize(removed.iter().map(|run| run.bytes).sum()).display().si(),
        )),
        Err(error) => say(format_args!("warning: old runs were not removed: {error:#}")),
    }
}

/// The order of a run with only these arguments: environment variables and configuration files are ignored.
pub fn order(arguments: &[String]) -> Result<Order> {
    let args = RunArgs::parse(arguments)?;
    ensure!(!args.minimises(), "--minimise works only with `zprobe run`; leave it out here");
    // A suite is the same on every machine, so it runs on GPUs only if its settings say so.
    let found = if args.asks_for_gpus() { args.look_for_gpus()? } else { None };
    let spec = args.resolve(args.flags_alone(found.as_ref()))?;
    let ranks = args.ranks(&spec, found);
    Ok(Order { spec, ranks, repeats: args.repeats()? })
}

/// The order of a run with only these arguments, and with this interpreter for Python ranks.
pub fn order_with(arguments: &[String], python: &Path) -> Result<Order> {
    let python = ["--python".to_owned(), python.display().to_string()];
    order(&[arguments, &python].concat())
}

/// The specification of a run with only these arguments, on the CPU.
pub fn spec(arguments: &[String]) -> Result<RunSpec> {
    RunArgs::parse(arguments)?.spec()
}

impl RunArgs {
    /// Parses arguments of `zprobe run`, and ignores environment variables.
    pub fn parse<T: AsRef<OsStr>>(arguments: &[T]) -> Result<Self, clap::Error> {
        let command = Self::augment_args(clap::Command::new("zprobe run").no_binary_name(true));
        let command = command.mut_args(|arg| arg.env(Resettable::Reset));
        Self::from_arg_matches(&command.try_get_matches_from(arguments.iter().map(AsRef::as_ref))?)
    }

    /// The arguments for a run of these settings, machines, interpreter and directory; all others have their defaults.
    pub fn of(
        request: SpecRequest,
        nodes: Nodes,
        python: Python,
        out: Option<PathBuf>,
    ) -> Result<Self> {
        Ok(Self { request, nodes, python, out, ..Self::parse::<&str>(&[])? })
    }

    /// Chooses the engine of a run without `--engine`: DeepSpeed for a DeepSpeed file; otherwise DeepSpeed or DDP, if the
    /// environment that is named or active has it, which is printed. If there is no environment, zprobe's own
    /// engine runs, and no interpreter is started.
    ///
    /// # Errors
    /// If the interpreter that `--python` names does not start, or has neither DeepSpeed nor torch.
    fn choose_engine(&mut self) -> Result<()> {
        let SpecRequest { engine, inject, .. } = &self.request;
        if engine.is_some() || inject.is_some() || self.rank_program.is_some() {
            return Ok(());
        }
        if self.deepspeed_config.is_some() {
            self.request.engine = Some(engines::of_deepspeed_file());
            return Ok(());
        }
        let Some(python) = self.python.environment() else { return Ok(()) };
        self.request.engine = self.installed(&python)?;
        if let Some(engine) = self.request.engine {
            say(format_args!(
                "note: --engine {engine}, because it is installed in {python}; --engine native runs zprobe's own engine"
            ));
        }
        Ok(())
    }

    /// The engine of an environment; `None` for zprobe's own engine.
    fn installed(&self, python: &Chosen) -> Result<Option<Engine>> {
        let installed = match python.engine() {
            Err(error) if self.python.named().is_some() => return Err(error),
            Err(_) => None,
            Ok(installed) => installed,
        };
        let only_native = |engine: Engine| {
            let with = |engine| SpecRequest { engine: Some(engine), ..self.flags_alone(None) };
            with(engine).resolve().is_err() && with(Engine::default()).resolve().is_ok()
        };
        match installed {
            None if self.python.named().is_some() => bail!(
                "{python} has neither DeepSpeed nor torch; install one of them, or run zprobe's own engine with \
                 --engine native"
            ),
            Some(engine) if only_native(engine) => {
                say(format_args!(
                    "note: {engine} is installed in {python}, but not for these flags; zprobe's own engine runs"
                ));
                Ok(None)
            }
            installed => Ok(installed),
        }
    }

    /// Makes the run, or this process's part of a run on several machines. The report is printed only by the leading
    /// process, or by one that lost its leader.
    pub fn make(&self, hand_out: HandOut<'_>) -> Result<Exit> {
        let job = self.nodes.job()?;
        let (order, part) = self.order_in(job.as_ref())?;
        let run_id = run_id();
        let (Some(job), Some(part)) = (job, part) else {
            return self.lead(order, &run_id, None, hand_out);
        };
        ensure!(
            !self.minimises(),
            "--minimise makes many runs, but this process is {job}: start zprobe once, without a launcher"
        );
        let (meeting, patience) = (self.nodes.meeting(&job)?, self.nodes.patience());
        let settings = order.settings();
        play(
            AgentRole::find(part, &settings, &run_id, &meeting, patience)?,
            |team| self.lead(order.clone(), &run_id, Some(team), hand_out),
            |leader| {
                let run_dir = self.run_dir(leader.run_id());
                follow(&order, leader, &run_dir)
            },
            |dir| {
                let (report, trace) = recorded::report(dir)?;
                hand_out(&report, &trace, dir)
            },
        )
    }

    /// Makes the run, together with the other machines' agents in `team`, and prints the report.
    fn lead(
        &self,
        order: Order,
        run_id: &str,
        team: Option<&mut Team>,
        hand_out: HandOut<'_>,
    ) -> Result<Exit> {
        let run_dir = self.run_dir(run_id);
        let (mut report, mut trace) = record(&order, run_id, &run_dir, team)?;
        if self.minimises() {
            // If minimisation fails, the report of the run is still printed.
            if let Err(error) = self.minimise(order, &report, &run_dir) {
                say(format_args!("warning: the minimisation failed: {error:#}"));
            }
            (report, trace) = recorded::report(&run_dir)?;
        }
        // The directory is printed first, so that the user knows it even if the report fails.
        say_recorded(&run_dir);
        if self.out.is_none() {
            make_room(self.keep_runs);
        }
        hand_out(&report, &trace, &run_dir)
    }

    /// The directory of the run: `--out`, or one below `.zprobe/runs` that is named by the id.
    fn run_dir(&self, run_id: &str) -> PathBuf {
        self.out.clone().unwrap_or_else(|| Path::new(store::RUNS).join(run_id))
    }

    /// The order that these arguments specify for this machine.
    pub fn order(&self) -> Result<Order> {
        Ok(self.order_in(None)?.0)
    }

    /// The order that these arguments specify, and this process's part if it belongs to a job. Repeats use warm ranks
    /// if this process starts all ranks.
    fn order_in(&self, job: Option<&Job>) -> Result<(Order, Option<JobPart>)> {
        let found = self.look_for_gpus()?;
        let mut request = self.flags_alone(found.as_ref());
        let part = job.map(|job| take_part(job, &mut request)).transpose()?;
        let spec = self.resolve(request)?;
        let by_default = self.request.world_size.is_none() && !self.request.rank_per_gpu;
        if let (Device::Cuda, 1, true) = (spec.device, spec.world_size, by_default) {
            say(
                "note: a single rank cannot show faults between ranks; --nproc-per-node 2 runs two ranks on the GPU",
            );
        }
        if self.rank_program.is_none() {
            self.python.choose().must_have(spec.engine())?;
        }
        let ranks = self.ranks(&spec, found);
        let order = Order { spec, ranks, repeats: self.repeats()? };
        let is_warm = order.repeats > 1 && part.is_none();
        Ok((if is_warm { order.warm() } else { order }, part))
    }

    /// The source of the ranks: the program of `--rank-program`, or else the engine's own ranks.
    fn ranks(&self, spec: &RunSpec, found: Option<EngineGpus>) -> Ranks {
        match (&self.rank_program, found) {
            (Some(program), _) => Ranks::Program(RankProgram {
                program: program.clone(),
                args: self.rank_args.clone(),
                hosting: Hosting::OnePerRank,
                library_path: Vec::new(),
            }),
            (None, Some(EngineGpus::Native(cuda))) if spec.device == Device::Cuda => {
                Ranks::Cuda(cuda)
            }
            (None, _) => Ranks::Cold(self.python.choose().path),
        }
    }

    /// The number of times that the run is made, at least 1.
    fn repeats(&self) -> Result<usize> {
        let repeats = self.repeat.unwrap_or(1);
        ensure!(repeats > 0, "--repeat 0: must be at least 1");
        Ok(repeats)
    }

    /// True if `--minimise` is given.
    pub fn minimises(&self) -> bool {
        self.minimise.minimise.is_some()
    }

    /// Searches for the smallest configuration with the finding, and writes the result to the run directory.
    fn minimise(&self, order: Order, report: &Report, run_dir: &Path) -> Result<()> {
        let found = self.look_for_gpus()?;
        let question = MinimiseTask {
            code: self.minimise.minimise.as_deref().unwrap_or_default(),
            limit: self.minimise.minimise_runs,
            flags: self.flags_alone(found.as_ref()),
            file: self.deepspeed_config.as_deref(),
            command: &|arguments, with_file| self.command(arguments, with_file),
        };
        search(question, order, report, run_dir)
    }

    /// The command that repeats a run of these settings with the same flags and the user's own DeepSpeed file. `None`
    /// if the command needs another DeepSpeed file, or arguments of a rank program, which may contain a secret.
    fn again(&self, spec: &RunSpec) -> Option<String> {
        if !self.rank_args.is_empty() {
            return None;
        }
        let arguments = match &self.deepspeed_config {
            Some(file) => {
                let found = self.look_for_gpus().ok()?;
                let config = DeepSpeedConfig::read(file).ok()?;
                let request = self.flags_alone(found.as_ref());
                spec.arguments_beside(request, &config, &file.display().to_string())?
            }
            None => spec.command("").filter(|it| it.deepspeed_config.is_none())?.arguments,
        };
        self.command(arguments, false).ok()
    }

    /// The command line for a run with these settings, and with the user's own Python, repeats and rank program.
    /// `with_file` adds the user's DeepSpeed file.
    fn command(&self, arguments: Vec<String>, with_file: bool) -> Result<String> {
        let mut words = vec!["zprobe".to_owned(), "run".to_owned()];
        words.extend(arguments);
        let mut say = |name: &str, value: Option<String>| {
            words.extend(value.into_iter().flat_map(|value| [name.to_owned(), value]));
        };
        let path = |path: &Option<PathBuf>| path.as_ref().map(|it| it.display().to_string());
        let file = path(&self.deepspeed_config).filter(|_| with_file);
        say("--deepspeed-config", file);
        say("--python", path(&self.python.named()));
        say("--repeat", self.repeat.filter(|repeats| *repeats > 1).map(|it| it.to_string()));
        say("--rank-program", path(&self.rank_program));
        if !self.rank_args.is_empty() {
            words.push("--".to_owned());
            words.extend(self.rank_args.iter().map(|arg| arg.to_string_lossy().into_owned()));
        }
        shlex::try_join(words.iter().map(String::as_str)).context("an argument holds a zero byte")
    }

    /// A hint at the flag for the user's own engine, after a run without `--engine`. The hint does not depend on the
    /// installed engines, because a query of the interpreter takes as long as the run itself.
    fn hint_at_own_engine(&self) -> Option<String> {
        let is_own = self.request.engine.is_none() && self.rank_program.is_none();
        if !is_own || self.request.inject.is_some() || !self.output.has_hints() {
            return None;
        }
        let words = std::env::args().skip(1);
        let run = words.skip_while(|word| word != "run").skip(1).collect::<Vec<_>>();
        let given = shlex::try_join(run.iter().map(String::as_str)).ok()?;
        let command = format!("zprobe run --engine deepspeed {given}");
        Some(format!(
            "this run used zprobe's own engine, not yours; for yours: {} (or --engine ddp, --engine fsdp2; \
             --python names its environment)",
            command.trim_end(),
        ))
    }

    /// True if `--out` is given.
    pub fn has_out(&self) -> bool {
        self.out.is_some()
    }

    /// True if the flags demand GPUs.
    fn asks_for_gpus(&self) -> bool {
        let SpecRequest { device, backend, rank_per_gpu, .. } = self.request;
        device == Some(DeviceChoice::Cuda) || backend == Some(BackendChoice::Nccl) || rank_per_gpu
    }

    /// The GPUs that are available to this run; `None`, without a search, if the run is on the CPU in any case.
    fn look_for_gpus(&self) -> Result<Option<EngineGpus>> {
        let engine = self.request.engine.unwrap_or_default();
        let on_cpu = self.request.device == Some(DeviceChoice::Cpu) || self.rank_program.is_some();
        if !engine.traits().on_gpus
            || on_cpu
            || !(self.asks_for_gpus() || native::driver_is_there())
        {
            return Ok(None);
        }
        if engines::of(engine).is_real() {
            EngineGpus::real(&self.python.choose().path).map(Some)
        } else {
            let home = self.python.choose().path;
            EngineGpus::native(self.python.named().as_deref(), &home).map(Some)
        }
    }

    /// The specification of the run on the CPU.
    pub fn spec(&self) -> Result<RunSpec> {
        self.resolve(self.flags_alone(None))
    }

    /// Resolves a request to a specification: fills it up from the DeepSpeed file, and prints the file's notes.
    fn resolve(&self, mut request: SpecRequest) -> Result<RunSpec> {
        for note in self.fill_from_file(&mut request)? {
            say(format_args!("note: {note}"));
        }
        Ok(request.resolve()?)
    }

    /// Fills the unset fields of `request` from the DeepSpeed file, if one is given.
    fn fill_from_file(&self, request: &mut SpecRequest) -> Result<Vec<String>> {
        match &self.deepspeed_config {
            Some(path) => Ok(DeepSpeedConfig::read(path)?.apply(request)?),
            None => Ok(Vec::new()),
        }
    }

    /// The request that the flags make, without the DeepSpeed file.
    fn flags_alone(&self, found: Option<&EngineGpus>) -> SpecRequest {
        SpecRequest { gpus: found.map(|it| it.gpus().clone()), ..self.request.clone() }
    }
}
