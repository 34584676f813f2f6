//! `zprobe issue`: writes the bug report for a run, with a title, a text and an attachment.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use bytesize::ByteSize;
use pep440_rs::Version;
use zprobe_engines::{self as engines, Tracker};
use zprobe_lab::attachment::{
    Attachment, AttachmentSource, Bisection, Environment, History, MOST_ATTACHMENT, Project,
    SCRIPT_FILE, archive, kinds, own_project,
};
use zprobe_lab::console::{plain, print, say};
use zprobe_lab::doctor::PythonFacts;
use zprobe_lab::limits::{examine, machine};
use zprobe_lab::recorded::diagnosis;
use zprobe_lab::runs::find;
use zprobe_model::spec::Device;
use zprobe_model::spec::settings::size;
use zprobe_model::trace::trace_dirs;
use zprobe_redact::Private;
use zprobe_report::{Exit, Report, pointless};

use super::interpreter::inside;
use super::output::page;

/// The warning about an attachment with the user's own text.
const READ_FIRST: &str = "warning: the issue has your logs, messages and settings, and redaction may miss something private; \
                          read its text and every file of the zip before you publish them";

/// The arguments of `zprobe issue`.
#[derive(clap::Args)]
pub struct IssueArgs {
    /// Recorded run: its directory, the beginning of its name (`zprobe list runs`), latest or latest~N [default: latest]
    #[arg(value_name = "RUN")]
    run_dir: Option<PathBuf>,

    /// Project whose bug report template is filled in [default: that of the engine or trainer]
    #[arg(long = "for", value_name = "PROJECT")]
    project: Option<Project>,

    /// Path of the zip [default: zprobe-report-RUN.zip]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Replace an existing file
    #[arg(long)]
    overwrite: bool,

    /// Write a bug report even if maintainers have no use for it: the run was clean or interrupted, the bug is fixed,
    /// it is a limit of this machine, or an injected fault
    #[arg(long)]
    force: bool,

    /// List the files of the zip and what was redacted, and write nothing
    #[arg(long)]
    dry_run: bool,

    /// Print the text of the issue, for `gh issue create --body-file -`, and write nothing
    #[arg(long, conflicts_with_all = ["dry_run", "out", "overwrite"])]
    print: bool,

    /// JSON output of `zprobe bisect --output-format json`: adds the first bad release and the table of tried releases
    #[arg(long, value_name = "FILE")]
    bisection: Option<PathBuf>,

    /// First release with the bug, if you know it
    #[arg(long, value_name = "VERSION", conflicts_with = "bisection")]
    since: Option<Version>,

    /// Add your own text: the ends of the logs, the ranks' messages, the texts of the configuration and the values of
    /// variables; read them before you publish them
    #[arg(long)]
    with_logs: bool,

    /// Maximum size of the trace, before compression
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "16MB")]
    max_trace_size: ByteSize,

    /// Interpreter or virtual environment that the engine ran in: adds versions and the output of its tools, such as
    /// collect_env or ds_report
    #[arg(long, value_name = "PATH", env = "ZPROBE_PYTHON")]
    python: Option<PathBuf>,

    /// Seconds that the interpreter may take for each query
    #[arg(long, value_name = "SECS", default_value_t = 120, env = "ZPROBE_TIMEOUT")]
    timeout: u64,
}

pub fn main(args: &IssueArgs) -> Result<Exit> {
    let run_dir = find(Path::new(""), args.run_dir.as_deref())?;
    let (report, _) = diagnosis(&run_dir)?;
    if let Some(reason) = pointless(&report).filter(|_| !args.force) {
        let dir = run_dir.display();
        bail!(
            "no bug report is written about {dir}: {reason} (--force writes one anyway; `zprobe list runs` lists other \
             runs)"
        );
    }
    let history = args.history(&report)?;
    let shown = report.repeats.as_ref().map_or(0, |repeats| repeats.shown);
    let private = Private::here(fs::canonicalize(&run_dir).into_iter().collect());
    let environment = look(args, &report, &private)?;
    let attachment = Attachment::new(&AttachmentSource {
        run_dir: &trace_dirs(&run_dir)[shown],
        report: &report,
        environment: &environment,
        private: &private,
        project: args.project,
        history: &history,
        max_trace_size: args.max_trace_size.0,
        with_logs: args.with_logs,
        explain: page,
    })?;
    if args.with_logs {
        say(READ_FIRST);
    }
    if args.print {
        say(format_args!("title: {}", attachment.title));
        plain(&attachment.body)?;
        return Ok(Exit::Clean);
    }
    let zip = archive::zip(&attachment.entries)?;
    if zip.len() > MOST_ATTACHMENT {
        say(format_args!(
            "warning: {} bytes are more than GitHub accepts as an attachment ({MOST_ATTACHMENT}); pass a \
             smaller --max-trace-size",
            zip.len(),
        ));
    }
    let summary = summary(&attachment, zip.len());
    if args.dry_run {
        print(&summary)?;
        return Ok(Exit::Clean);
    }
    let out = args.out.clone().unwrap_or_else(|| default_name(&run_dir));
    archive::write(&out, &zip, args.overwrite)?;
    say(summary.trim_end());
    say(next(args, &attachment, &report, &history, &run_dir, &out).trim_end());
    print(&format!("{}\n", out.display()))?;
    Ok(Exit::Clean)
}

impl IssueArgs {
    /// The given flags that change the text of the issue, as words of a command line.
    fn that_say_something(&self) -> String {
        let path = |path: &Option<PathBuf>| path.as_ref().map(|it| it.display().to_string());
        let values = [
            ("--python", path(&self.python)),
            ("--for", self.project.map(|it| it.to_string())),
            ("--bisection", path(&self.bisection)),
            ("--since", self.since.as_ref().map(Version::to_string)),
        ];
        let given = values.into_iter().filter_map(|(flag, value)| {
            let value = value?;
            Some(format!(" {flag} {}", shlex::try_quote(&value).unwrap_or_default()))
        });
        let force = self.force.then(|| " --force".to_owned());
        let with_logs = self.with_logs.then(|| " --with-logs".to_owned());
        given.chain(force).chain(with_logs).collect()
    }

    /// The releases with the bug, as far as the flags name them.
    fn history(&self, report: &Report) -> Result<History> {
        let read = |path: &PathBuf| {
            let file = || format!("--bisection {}", path.display());
            let text = fs::read_to_string(path).with_context(file)?;
            let answer: Bisection = serde_json::from_str(&text).with_context(|| {
                format!("{}: not an answer of `zprobe bisect --output-format json`", file())
            })?;
            answer.check(report).map_err(|reason| anyhow!("{}: {reason}", file()))?;
            Ok::<_, anyhow::Error>(answer)
        };
        let since = self.since.as_ref().map(|version| {
            let package = package(report).map(|package| format!("{package} "));
            format!("{}{version}", package.unwrap_or_default())
        });
        Ok(History { bisection: self.bisection.as_ref().map(read).transpose()?, since })
    }
}

/// The package whose releases contain the engine.
fn package(report: &Report) -> Option<&'static str> {
    let python = engines::of(report.run.spec.engine()).python.as_ref()?;
    python.packages().last().map(|package| package.module)
}

/// The next steps for the user, from the zip to an issue in the project's tracker.
fn next(
    args: &IssueArgs,
    attachment: &Attachment,
    report: &Report,
    history: &History,
    run_dir: &Path,
    out: &Path,
) -> String {
    let quoted = |text: &str| shlex::try_quote(text).unwrap_or_default().into_owned();
    let (run, zip) = (quoted(&run_dir.display().to_string()), quoted(&out.display().to_string()));
    let mut steps = Vec::new();
    let can_search = history.is_unknown(report) && report.run.spec.device != Device::Cuda;
    if let (true, Some(package)) = (can_search, package(report)) {
        steps.push(format!(
            "find the first bad release: zprobe bisect {run} --package {package} --good VERSION \
             --output-format json > bisection.json, then add --bisection bisection.json"
        ));
    }
    if attachment.has_script {
        let (python, which) = match args.python.as_deref().map(inside) {
            Some(python) => (quoted(&python.display().to_string()), ""),
            None => ("python".to_owned(), ", with the python that has the engine"),
        };
        steps.push(format!(
            "check that the script shows the bug{which}: unzip -p {zip} {SCRIPT_FILE} > {SCRIPT_FILE} && \
             {python} {SCRIPT_FILE}"
        ));
    }
    match attachment.project.tracker() {
        Some(Tracker { repository, page, body, wants }) => {
            if args.python.is_none() {
                steps.push(format!("add --python VENV, so that the text has what the template asks for: {wants}"));
            }
            steps.push(format!(
                "read report.md, then open {page} with the title above, {body}, and the zip as an attachment"
            ));
            steps.push(format!(
                "or without the zip: zprobe issue {run}{} --print > issue.md && gh issue create --repo \
                 {repository} --title {} --body-file issue.md",
                args.that_say_something(),
                quoted(&attachment.title)
            ));
        }
        None => steps.push(
            "read report.md, then open an issue with the title above, report.md of the zip as its text, and the \
             zip as an attachment"
                .to_owned(),
        ),
    }
    steps.iter().map(|step| format!("next: {step}\n")).collect()
}

/// Collects facts about the machine, and about the interpreter if `--python` names one.
fn look(args: &IssueArgs, report: &Report, private: &Private) -> Result<Environment> {
    let Some(interpreter) = args.python.as_deref().map(inside) else {
        return Ok(Environment::new(&machine(None), None, report, private));
    };
    let patience = Duration::from_secs(args.timeout);
    let (machine, python) = examine(&interpreter, patience);
    let python: PythonFacts = python?;
    let mut environment = Environment::new(&machine, Some(&python), report, private);
    let project = own_project(report, args.project);
    environment.ask_engines(&interpreter, &python, project, patience);
    Ok(environment)
}

/// The summary of an attachment: its files, its size, and what was redacted.
fn summary(attachment: &Attachment, size: usize) -> String {
    let width = attachment.entries.iter().map(|entry| entry.path.len()).max().unwrap_or(0);
    let mut text = format!("title: {}\n", attachment.title);
    for entry in &attachment.entries {
        let _ = writeln!(text, "{:>10}  {:width$}  {}", entry.text.len(), entry.path, entry.about);
    }
    let _ = writeln!(text, "{size:>10}  as a zip");
    let _ = writeln!(text, "redacted: {}", kinds(&attachment.redacted));
    if !attachment.left_out.is_empty() {
        let left_out = attachment.left_out.join("; ");
        let _ = writeln!(text, "left out: {left_out} (--with-logs adds them)");
    }
    text
}

/// The default path of the zip: a file in the working directory, named after the run.
fn default_name(run_dir: &Path) -> PathBuf {
    let absolute = fs::canonicalize(run_dir).unwrap_or_else(|_| run_dir.to_owned());
    let name = absolute.file_name().unwrap_or_default().to_string_lossy().into_owned();
    PathBuf::from(format!("zprobe-report-{name}.zip"))
}
