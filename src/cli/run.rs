//! `zprobe run`: spec → launch → trace → diagnose → report.

#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, Result, bail, ensure};
use bytesize::ByteSize;
use clap::builder::Resettable;
use clap::{Args as _, FromArgMatches as _, ValueHint};
use zprobe::launch::{Ended, Hosting, RankProgram};
use zprobe::native;
use zprobe::report::Report;
use zprobe::report::words::amount;
use zprobe::run_dir::Claim;
use zprobe::spec::deepspeed::{DeepSpeedConfig, Note};
use zprobe::spec::{BackendChoice, Device, DeviceChoice, Engine, Gpus, RunSpec, SpecRequest};
use zprobe::trace::{Trace, is_recorded};

use super::cuda::Cuda;
use super::diagnose::diagnosis;
use super::interpreter::Python;
use super::limits::{CANNOT_RUN, Limits};
use super::progress::Progress;
use super::runner::Runner;
use super::{minimise, repeat, store, verbosity};

/// The report in a run directory.
pub const REPORT_FILE: &str = "report.json";

/// Arguments of `zprobe run`.
#[derive(clap::Args)]
#[command(next_line_help = false)]
pub struct Args {
    #[command(flatten)]
    request: SpecRequest,

    /// A DeepSpeed configuration; flags win over it, and its defaults are DeepSpeed's
    #[arg(long, value_name = "FILE", env = "ZPROBE_DEEPSPEED_CONFIG", help_heading = "Engine")]
    deepspeed_config: Option<PathBuf>,

    /// Make the run so many times, and compare the repeats bit for bit [default: 1]
    #[arg(long, value_name = "N", env = "ZPROBE_REPEAT", help_heading = "Run")]
    repeat: Option<usize>,

    #[command(flatten)]
    minimise: minimise::Flags,

    /// Directory for trace, logs and report [default: a new one under .zprobe/runs]
    #[arg(long, value_name = "DIR", env = "ZPROBE_OUT", help_heading = "Run")]
    out: Option<PathBuf>,

    /// Runs that are kept in .zprobe/runs, where the oldest are removed after a new one; 0 keeps all
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100,
        env = "ZPROBE_KEEP_RUNS",
        help_heading = "Run"
    )]
    keep_runs: usize,

    #[command(flatten, next_help_heading = "Run")]
    python: Python,

    /// Start this program once per rank instead of the engine's own; it must speak the protocol of
    /// docs/protocol.md
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
    output: super::Output,
}

pub fn main(args: Args) -> Result<u8> {
    let run_id = run_id();
    let run_dir = args.out.clone().unwrap_or_else(|| Path::new(store::RUNS).join(&run_id));
    let (mut report, mut trace) = record(&args, &run_id, &run_dir)?;
    if args.minimise.wanted() {
        // What was found is known, whatever becomes of the search.
        if let Err(error) = minimise::search(&args, &report, &run_dir) {
            verbosity::say(format_args!("warning: the search came to no end: {error:#}"));
        }
        (report, trace) = self::report(&run_dir)?;
    }
    // First, so that it is known even if the report cannot be handed out.
    verbosity::say(format_args!("recorded in {}", run_dir.display()));
    if args.out.is_none() {
        make_room(args.keep_runs);
    }
    args.output.hand_out(&report, &trace)
}

/// Removes old runs, and says so. One that cannot be removed does not keep a report from being handed
/// out.
fn make_room(keep: usize) {
    match store::retain(Path::new(""), keep) {
        Ok(removed) if removed.is_empty() => {}
        Ok(removed) => verbosity::say(format_args!(
            "removed the {} from {}, {}: --keep-runs {keep}",
            amount(removed.len(), "oldest run"),
            store::RUNS,
            ByteSize(removed.iter().map(|run| run.bytes).sum()).display().si(),
        )),
        Err(error) => verbosity::say(format_args!("warning: old runs stay: {error:#}")),
    }
}

/// Makes the run, or all its repeats, in `run_dir`, and reports on it.
pub fn record(args: &Args, run_id: &str, run_dir: &Path) -> Result<(Report, Trace)> {
    refuse_nested_launch()?;
    let cuda = args.look_for_gpus()?;
    let spec = args.spec(cuda.as_ref().map(|cuda| &cuda.gpus))?;
    let by_default = args.request.world_size.is_none() && !args.request.rank_per_gpu;
    if let (Device::Cuda, 1, true) = (spec.device, spec.world_size, by_default) {
        verbosity::say(
            "note: a single rank shows no fault between ranks; --nproc-per-node 2 shares the GPU",
        );
    }
    ensure!(
        !is_recorded(run_dir),
        "{} holds a recorded run already; choose another directory with --out, or remove that one with \
         `zprobe clean`",
        run_dir.display(),
    );
    if args.rank_program.is_none() {
        args.python.choose().must_have(spec.engine())?;
    }
    let repeats = args.repeats()?;
    args.refuse_what_cannot_run(&spec)?;
    claimed(run_dir, || match repeats {
        1 => {
            let mut runner = Runner::cold(args, &spec, cuda, run_dir)?;
            let mut progress = Progress::new(&spec, run_dir);
            runner.run(&spec, run_id, run_dir, &mut |record| progress.see(record))?;
            report(run_dir)
        }
        count => {
            let runner = Runner::warm(args, &spec, cuda, run_dir)?;
            repeat::run(runner, &spec, count, run_id, run_dir)?;
            report(run_dir)
        }
    })
}

/// Does something in a run directory that nobody else records in meanwhile. What was not recorded leaves
/// nothing behind.
pub fn claimed<T>(run_dir: &Path, make: impl FnOnce() -> Result<T>) -> Result<T> {
    store::prepare(run_dir)?;
    let claim = Claim::new(run_dir)?;
    let made = make();
    if made.is_ok() || is_recorded(run_dir) {
        claim.keep();
    }
    made
}

/// Says which processes of a run are left, if any are.
pub fn warn_of_survivors(ended: &Ended) {
    if !ended.survivors.is_empty() {
        let survivors = &ended.survivors;
        verbosity::say(format_args!("warning: processes that cannot be killed: {survivors:?}"));
    }
}

/// Writes a file of a run directory, in place of one that an earlier part of the same command wrote.
pub fn write_new(path: &Path, text: &str) -> Result<()> {
    let _ = fs::remove_file(path);
    zprobe::run_dir::create(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// The report on a recorded run, which it is written beside, and the trace that it is about.
pub fn report(run_dir: &Path) -> Result<(Report, Trace)> {
    let (report, trace) = diagnosis(run_dir)?;
    write_new(&run_dir.join(REPORT_FILE), &report.to_json()?)?;
    Ok((report, trace))
}

impl Args {
    /// Arguments that stand for themselves: what the environment holds does not count.
    pub fn parse<T: AsRef<OsStr>>(arguments: &[T]) -> Result<Self, clap::Error> {
        let command = Self::augment_args(clap::Command::new("zprobe run").no_binary_name(true));
        let command = command.mut_args(|arg| arg.env(Resettable::Reset));
        Self::from_arg_matches(&command.try_get_matches_from(arguments.iter().map(AsRef::as_ref))?)
    }

    /// The program of `--rank-program`.
    pub fn own_program(&self) -> Option<RankProgram> {
        Some(RankProgram {
            program: self.rank_program.clone()?,
            args: self.rank_args.clone(),
            hosting: Hosting::OnePerRank,
            library_path: Vec::new(),
        })
    }

    /// The interpreter that has the real engine under test.
    pub fn interpreter(&self) -> PathBuf {
        self.python.choose().path
    }

    /// Says it before a run is started that this machine cannot make it.
    ///
    /// # Errors
    /// With the reason, in one line.
    pub fn refuse_what_cannot_run(&self, spec: &RunSpec) -> Result<()> {
        // What another program can run is its own business.
        if self.rank_program.is_none()
            && let Some(reason) = Limits::default().refusal(spec, &self.interpreter())
        {
            bail!("{CANNOT_RUN}: {reason}");
        }
        Ok(())
    }

    /// How often the run is made.
    pub fn repeats(&self) -> Result<usize> {
        let repeats = self.repeat.unwrap_or(1);
        ensure!(repeats > 0, "--repeat 0: must be at least 1");
        Ok(repeats)
    }

    /// What to look for the smallest configuration of.
    pub fn minimise(&self) -> &minimise::Flags {
        &self.minimise
    }

    /// What is typed for a run with these arguments in place of one's own, in the same surroundings;
    /// `with_file` if they stand beside the DeepSpeed file.
    pub fn command(&self, arguments: Vec<String>, with_file: bool) -> Result<String> {
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

    /// Whether it is said where to record the run.
    pub fn has_out(&self) -> bool {
        self.out.is_some()
    }

    /// Whether a DeepSpeed file stands beside the flags.
    pub fn has_file(&self) -> bool {
        self.deepspeed_config.is_some()
    }

    /// What there is of CUDA for this run; none where it runs on the CPU in any case, and nobody
    /// looks.
    pub fn look_for_gpus(&self) -> Result<Option<Cuda>> {
        let SpecRequest { device, backend, rank_per_gpu, .. } = self.request;
        let native = self.request.or_default(Engine::Native).engine() == Engine::Native;
        let on_cpu = device == Some(DeviceChoice::Cpu) || self.rank_program.is_some();
        let asks = device == Some(DeviceChoice::Cuda)
            || backend == Some(BackendChoice::Nccl)
            || rank_per_gpu;
        if native && !on_cpu && (asks || native::driver_is_there()) {
            Cuda::look(self.python.named().as_deref()).map(Some)
        } else {
            Ok(None)
        }
    }

    /// What is run, with these GPUs; without any, on the CPU.
    pub fn spec(&self, gpus: Option<&Gpus>) -> Result<RunSpec> {
        let mut request = self.flags_alone(gpus);
        for note in self.fill_from_file(&mut request)? {
            verbosity::say(format_args!("note: {note}"));
        }
        Ok(request.resolve()?)
    }

    /// Fills what `request` leaves open from the DeepSpeed file, if there is one.
    pub fn fill_from_file(&self, request: &mut SpecRequest) -> Result<Vec<Note>> {
        match &self.deepspeed_config {
            Some(path) => Ok(DeepSpeedConfig::read(path)?.apply(request)?),
            None => Ok(Vec::new()),
        }
    }

    /// What the flags ask for, without the DeepSpeed file.
    pub fn flags_alone(&self, gpus: Option<&Gpus>) -> SpecRequest {
        SpecRequest { gpus: gpus.cloned(), ..self.request.clone() }
    }
}

/// Under torchrun every one of its processes would start ranks of its own.
fn refuse_nested_launch() -> Result<()> {
    let nested: Option<OsString> = std::env::var_os("TORCHELASTIC_RUN_ID");
    ensure!(
        nested.is_none(),
        "zprobe run starts its ranks itself; do not start it with torchrun (TORCHELASTIC_RUN_ID is \
         set)"
    );
    Ok(())
}

/// Time and process id: unique on a machine, and sorted by time.
pub fn run_id() -> String {
    let time = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let compact: String = time.chars().filter(|c| !matches!(c, '-' | ':')).collect();
    format!("{compact}-{}", std::process::id())
}
