//! `zprobe check`: runs every probe of a suite on warm ranks, with one exit code for CI.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Arg, Args as _, ValueHint};
use zprobe_lab::check::accept::{AcceptedFindings, NewBaselineEntries};
use zprobe_lab::check::probe::Probe;
use zprobe_lab::check::select::{self, CaseSelection, Parsers};
use zprobe_lab::check::{SuiteCheck, refuse_nothing};
use zprobe_lab::console;
use zprobe_lab::script::programs_of;
use zprobe_model::spec::Engine;
use zprobe_model::spec::settings::{ALL, About, Timeout};
use zprobe_report::{Exit, Form};

use super::interpreter::Python;
use super::nodes::refuse_launcher;
use super::output::{Exports, export_suite, print_suite, refuse_unwritable};
use super::{config, exec, flags, run};

/// The arguments of `zprobe check`.
#[derive(clap::Args)]
pub struct CheckArgs {
    /// Probes: names, TOML files, or directories of TOML files [default: the standard suite]
    #[arg(value_name = "PROBE", value_hint = ValueHint::AnyPath, env = "ZPROBE_PROBES", value_delimiter = ',')]
    probes: Vec<String>,

    /// Engine to check, which must be installed; may be repeated [default: all engines that can run]
    #[arg(long, env = "ZPROBE_ENGINE", value_delimiter = ',')]
    engine: Vec<Engine>,

    #[command(flatten)]
    python: Python,

    /// Only cases whose name, description or arguments contain this; several filters must all match
    #[arg(long, value_name = "SUBSTRING", env = "ZPROBE_FILTER")]
    filter: Vec<String>,

    /// Start no more cases after the first one that fails
    #[arg(
        long,
        env = "ZPROBE_FAIL_FAST",
        value_parser = clap::builder::BoolishValueParser::new()
    )]
    fail_fast: bool,

    /// Number of pools that run in parallel
    #[arg(long, value_name = "N", default_value_t = 1, env = "ZPROBE_JOBS")]
    jobs: usize,

    #[command(flatten)]
    timeout: Timeout,

    /// Only list the cases that would be run
    #[arg(long)]
    list: bool,

    /// Directory for the runs of failed cases [default: a new one under .zprobe/check]
    #[arg(long, value_name = "DIR", env = "ZPROBE_OUT")]
    out: Option<PathBuf>,

    #[command(flatten)]
    baseline: Known,

    /// Form of the report on standard output
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "full",
        env = "ZPROBE_OUTPUT_FORMAT",
        value_parser = Form::among(Form::OF_A_SUITE)
    )]
    output_format: Form,

    /// Also write the report as JSON to this file
    #[arg(long, value_name = "FILE", env = "ZPROBE_EXPORT_JSON")]
    export_json: Option<PathBuf>,

    /// Also write the report as one HTML page to this file
    #[arg(long, value_name = "FILE", env = "ZPROBE_EXPORT_HTML")]
    export_html: Option<PathBuf>,

    #[command(flatten)]
    exports: Exports,

    /// Exit with 0 whatever the results of the cases; if nothing could run, the exit code is still 2
    #[arg(long, env = "ZPROBE_EXIT_ZERO", value_parser = clap::builder::BoolishValueParser::new())]
    exit_zero: bool,

    #[command(flatten)]
    config: config::Choice,
}

/// The flags about known findings.
#[derive(Debug, clap::Args)]
struct Known {
    /// File of findings that are accepted until they expire [default: zprobe-baseline.toml, if it exists]
    #[arg(long, value_name = "FILE", env = "ZPROBE_BASELINE", help_heading = "Known findings")]
    baseline: Option<PathBuf>,

    /// Accept the findings of this suite: add an entry for each to this file
    #[arg(
        long,
        value_name = "FILE",
        requires_all = ["reason", "expires"],
        help_heading = "Known findings"
    )]
    write_baseline: Option<PathBuf>,

    /// With --write-baseline: the reason for accepting the findings
    #[arg(long, value_name = "TEXT", requires = "write_baseline", help_heading = "Known findings")]
    reason: Option<String>,

    /// With --write-baseline: the last day on which the findings are accepted, like 2026-12-31
    #[arg(long, value_name = "DATE", requires = "write_baseline", help_heading = "Known findings")]
    expires: Option<String>,
}

impl Known {
    fn accepted(&self) -> Result<AcceptedFindings> {
        let file = self.write_baseline.clone();
        let writing = file.zip(self.reason.clone().zip(self.expires.clone()));
        let writing =
            writing.map(|(file, (reason, expires))| NewBaselineEntries { file, reason, expires });
        AcceptedFindings::read(self.baseline.as_deref(), writing)
    }
}

pub fn main(args: &CheckArgs) -> Result<Exit> {
    refuse_launcher("check")?;
    ensure!(args.jobs > 0, "--jobs 0: must be at least 1");
    let own = [
        ("--export-json", args.export_json.as_deref()),
        ("--export-html", args.export_html.as_deref()),
    ];
    let files = || own.into_iter().chain(args.exports.files());
    refuse_unwritable(files())?;
    let accepted = args.baseline.accepted()?;
    let probes = select::probes(&args.probes, &settings)?;
    let named = args.python.named();
    let programs = args.python.environment().and_then(|python| programs_of(&python.path));
    let choice = CaseSelection {
        engines: &args.engine,
        filter: &args.filter,
        timeout: args.timeout.arguments(),
        python: named.as_deref(),
        programs: programs.as_deref(),
    };
    let python = args.python.choose().path;
    let parsers =
        Parsers { run: &|arguments| run::order_with(arguments, &python), exec: &exec::request };
    let tasks = select::tasks(&probes, &choice, &parsers)?;
    if args.list {
        console::plain(&select::list(&tasks, args.output_format)?)?;
        return Ok(Exit::Clean);
    }
    let check = SuiteCheck {
        named: &args.engine,
        python: &python,
        accepted: &accepted,
        fail_fast: args.fail_fast,
        jobs: args.jobs,
        out: args.out.clone(),
        is_whole: args.probes.is_empty() && args.engine.is_empty() && args.filter.is_empty(),
        configuration: configuration(args)?,
    };
    let suite = check.suite(&tasks)?;
    print_suite(&suite, args.output_format, files())?;
    let (json, html) = (args.export_json.as_deref(), args.export_html.as_deref());
    export_suite(&suite, json, html, &args.exports)?;
    refuse_nothing(&suite)?;
    let exit = suite.exit();
    if let (Exit::NothingRan, Some(why)) = (exit, suite.unchecked) {
        bail!(why);
    }
    Ok(if args.exit_zero { Exit::Clean } else { exit })
}

/// The path of the configuration file, relative to the working directory. Reports give it as the place of probes
/// without a file of their own.
fn configuration(args: &CheckArgs) -> Result<String> {
    let dir = std::env::current_dir().context("cannot find the working directory")?;
    let found = args.config.find(&dir)?;
    let path = found.map_or_else(|| PathBuf::from(config::FILE), |config| config.path);
    Ok(select::shown(&path, &dir))
}

/// The settings of a probe as flags of `zprobe run`, or of `zprobe exec` for a script. Paths in a probe are relative to the
/// directory `base`.
fn settings(probe: &Probe, base: &Path) -> Result<Vec<String>> {
    let is_script = !probe.command.is_empty();
    let command = match is_script {
        true => exec::ExecArgs::augment_args(clap::Command::new("zprobe exec")),
        false => run::RunArgs::augment_args(clap::Command::new("zprobe run")),
    };
    let wanted = |arg: &Arg| match is_script {
        true => exec::SETTINGS.contains(&arg.get_id().as_str()),
        false => is_setting(arg),
    };
    let given = flags::read(&command, &probe.settings, &probe.document, base, wanted)?;
    Ok(given.iter().flat_map(flags::Given::arguments).collect())
}

/// True if a flag of `zprobe run` is a setting of the run itself, and not of its place, its Python or its report.
fn is_setting(arg: &Arg) -> bool {
    let mut settings = ALL.iter().filter(|setting| setting.describe().about == About::What);
    let id = arg.get_id().as_str();
    id == "deepspeed_config" || settings.any(|setting| setting.id() == id)
}

#[cfg(test)]
mod tests {
    use zprobe_lab::check::select::PlannedRun;
    use zprobe_model::document::Document;

    use super::*;

    #[test]
    fn every_probe_of_the_standard_suite_can_be_run_on_each_of_its_engines() {
        let probes = select::probes(&[], &settings).unwrap();
        let choice = CaseSelection {
            engines: &[],
            filter: &[],
            timeout: vec![],
            python: None,
            programs: None,
        };
        let parsers = Parsers { run: &run::order, exec: &exec::request };
        let tasks = select::tasks(&probes, &choice, &parsers);
        let tasks = tasks.unwrap_or_else(|err| panic!("{err:#}"));
        for task in &tasks {
            let PlannedRun::OfEngine(spec, _) = &task.run else { panic!("{}", task.id()) };
            assert_eq!(spec.engine(), task.engine, "{}", task.id());
            assert!((2..=4).contains(&spec.world_size), "{}", task.id());
        }
        let engines = probes.probes.iter().map(|chosen| chosen.probe.engines.len());
        assert_eq!(tasks.len(), engines.sum::<usize>());
    }

    #[test]
    fn no_two_probes_of_the_standard_suite_make_the_same_run() {
        let chosen = select::probes(&[], &settings).unwrap().probes;
        for (at, one) in chosen.iter().enumerate() {
            for other in &chosen[..at] {
                let same =
                    one.arguments == other.arguments && one.probe.engines == other.probe.engines;
                assert!(!same, "{} and {}", one.probe.name, other.probe.name);
            }
        }
    }

    #[test]
    fn settings_of_a_probe_are_settings_of_a_run_and_not_of_its_report() {
        let read = |text: &str| {
            let document = Document { file: "ci/own.toml".to_owned(), text: text.to_owned() };
            settings(&Probe::read(document).unwrap(), Path::new("ci"))
        };
        let own = read(
            "description = 'Own'\n[run]\nstage = 2\nshape = ['tied', 'frozen']\noffload = 'cpu'\n\
             overlap_comm = true\ndeepspeed-config = 'ds.json'\n",
        );
        let expected = "--deepspeed-config ci/ds.json --offload cpu --overlap-comm true --shape tied \
                        --shape frozen --stage 2";
        assert_eq!(own.unwrap().join(" "), expected);
        for key in ["engine = 'ddp'", "out = 'x'", "output-format = 'json'", "python = 'python3'"] {
            let error = read(&format!("description = 'Own'\n[run]\n{key}\n"));
            let error = error.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.starts_with("ci/own.toml:3:1: no such key"), "{key}: {error}");
        }
    }

    #[test]
    fn settings_of_a_script_are_flags_of_exec_and_the_flag_of_the_suite_wins() {
        let options = |section: &str, timeout: &[&str]| -> Result<String> {
            let text =
                format!("description = 'Ours'\n[exec]\ncommand = 'torchrun t.py'\n{section}");
            let document = Document { file: "ci/own.toml".to_owned(), text };
            let probe = Probe::read(document)?;
            let own = settings(&probe, Path::new("ci"))?;
            let timeout = timeout.iter().map(|word| (*word).to_owned());
            let request =
                exec::request(&own.into_iter().chain(timeout).collect::<Vec<_>>(), &probe.command)?;
            Ok(request.spec().command("").unwrap().line())
        };
        let all = "observe = 2\nscale = 'sum'\nseed = 1\ntimeout = 9\nweighting = 'token'\n";
        let expected = "zprobe exec '--observe=2' --weighting token --scale sum --seed 1 --timeout 9 -- torchrun t.py";
        assert_eq!(options(all, &[]).unwrap(), expected);
        let longer = options("timeout = 9\n", &["--timeout", "60"]).unwrap();
        assert_eq!(longer, "zprobe exec --timeout 60 -- torchrun t.py");
        assert_eq!(options("dry = true\n", &[]).unwrap(), "zprobe exec --dry -- torchrun t.py");
        for (key, problem) in [
            ("out = 'x'", "ci/own.toml:4:1: no such key"),
            ("timeuot = 3", "ci/own.toml:4:1: no such key `timeuot`; did you mean `timeout`?"),
            ("weighting = 'tokens'", "ci/own.toml:4:13: weighting: invalid value 'tokens'"),
            ("timeout = 0", "--timeout 0: must be at least 1"),
            ("dry = true\nobserve = 2", "error: the argument"),
        ] {
            let error = options(key, &[]).unwrap_err().to_string();
            assert!(error.starts_with(problem), "{key}: {error}");
        }
    }
}
