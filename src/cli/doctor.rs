//! `zprobe doctor`: shows which engines this machine can run, and why not the others.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use anyhow::Result;
use zprobe_lab::console::{self, ProgressLine};
use zprobe_lab::cuda::EngineGpus;
use zprobe_lab::doctor::{CheckState, DoctorCheck, engines, job, surroundings};
use zprobe_lab::limits::examine;
use zprobe_lab::table::on_terminal;
use zprobe_launch::job::Job;
use zprobe_model::visible;
use zprobe_report::words::of_all;
use zprobe_report::{Exit, Form};

use super::interpreter;

/// The arguments of `zprobe doctor`.
#[derive(clap::Args)]
pub struct DoctorArgs {
    #[command(flatten)]
    python: interpreter::Python,

    /// Seconds that the interpreter may take; importing torch and DeepSpeed takes up to 30
    #[arg(long, value_name = "SECS", default_value_t = 120, env = "ZPROBE_TIMEOUT")]
    timeout: u64,

    /// Form of the answer on standard output
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "full",
        value_parser = Form::among(&[Form::Full, Form::Json])
    )]
    output_format: Form,
}

/// The answer in JSON.
#[derive(serde::Serialize)]
struct Answer<'a> {
    /// The chosen interpreter and the reason for choosing it.
    python: String,
    engines: &'a [DoctorCheck],
    surroundings: &'a [DoctorCheck],
}

pub fn main(args: &DoctorArgs) -> Result<Exit> {
    let chosen = args.python.choose();
    let line = ProgressLine::steps();
    line.step(&format!("asking {} for its engines, which takes up to 30 s", chosen.path.display()));
    let (mut machine, python) = examine(&chosen.path, Duration::from_secs(args.timeout));
    let has_torch = python.as_ref().is_ok_and(|python| python.torch.value().is_some());
    if machine.native.is_ok() {
        let found = EngineGpus::native(has_torch.then_some(&*chosen.path), &chosen.path)?;
        machine.cuda = Some(found.gpus().clone());
    }
    let any = engines(&machine, &python);
    let engines = engines(&machine, &python);
    let told = Job::of_this_process();
    let meeting = told.iter().flatten().next().map(|job| Ok(job.meeting(job.endpoint()?, None)));
    let mut surroundings = surroundings(&machine, &python);
    surroundings.push(job(&told, meeting));
    let text = match args.output_format {
        Form::Json => {
            let python = chosen.to_string();
            visible::json(&Answer { python, engines: &engines, surroundings: &surroundings })?
        }
        _ => {
            let python = on_terminal(&chosen.to_string(), "Python ", "  ");
            let mut text = format!("{python}\n\nEngines\n");
            lines(&mut text, &engines);
            text.push_str("\nSurroundings\n");
            lines(&mut text, &surroundings);
            let _ = writeln!(
                text,
                "\n{}",
                on_terminal(&verdict(&engines, args.python.named().as_deref()), "", "  ")
            );
            text
        }
    };
    drop(line);
    console::print(&text)?;
    let any = any.iter().any(|check| check.state == CheckState::Ok);
    Ok(if any { Exit::Clean } else { Exit::NothingRan })
}

/// The number of engines that can run with the interpreter `python`, if one was named, and the next command.
fn verdict(engines: &[DoctorCheck], python: Option<&Path>) -> String {
    let can_run = engines.iter().filter(|check| check.state == CheckState::Ok).count();
    let count = of_all(can_run, engines.len(), "engine");
    let python = python.map(|path| path.display().to_string());
    let python = python.as_deref().map(|path| shlex::try_quote(path).unwrap_or_default());
    let python = python.map(|path| format!(" --python {path}")).unwrap_or_default();
    match can_run {
        0 => format!("{count} can run here; the lines `to do` above say what is missing"),
        _ => format!("{count} can run here; next: zprobe check{python}"),
    }
}

/// Appends a paragraph for each check, and one with the remedy for a check that failed.
pub fn lines(text: &mut String, checks: &[DoctorCheck]) {
    let width = checks.iter().map(|check| check.subject.len()).max().unwrap_or(0);
    for DoctorCheck { subject, state, detail, advice } in checks {
        let detail = visible::text(detail);
        let style = Style::new().fg_color(Some(match state {
            CheckState::Ok => AnsiColor::Green.into(),
            CheckState::Missing => AnsiColor::Yellow.into(),
            CheckState::Broken => AnsiColor::Red.into(),
        }));
        let first = format!("  {style}{state:7}{style:#}  {subject:width$}  ");
        let next = " ".repeat(2 + 7 + 2 + width + 2);
        let _ = writeln!(text, "{}", on_terminal(&detail, &first, &next));
        if let Some(advice) = advice {
            let _ = writeln!(text, "{}", on_terminal(advice, &format!("{next}to do: "), &next));
        }
    }
}
