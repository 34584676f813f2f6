//! `zprobe list`: lists the recorded runs, probes, known bugs, rules, faults, engines or shapes.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Result, ensure};
use bytesize::ByteSize;
use clap::ValueEnum;
use zprobe_diagnose::rule::Rule;
use zprobe_diagnose::rules::RULES;
use zprobe_lab::check::probe;
use zprobe_lab::console::{self, ProgressLine, Verbosity, terminal_columns};
use zprobe_lab::limits::examine;
use zprobe_lab::runs::{ListedRun, ago};
use zprobe_lab::store;
use zprobe_lab::table::{CUT, cut, in_columns};
use zprobe_model::spec::{Engine, Fault, Shape};
use zprobe_model::visible;
use zprobe_report::document::first_sentence;
use zprobe_report::{Exit, Form};
use zprobe_zoo::registry;

use super::doctor::lines;
use super::interpreter::inside;
use zprobe_lab::doctor::engines;

/// The time limit for an interpreter that tries all engines.
const TRY_LIMIT: Duration = Duration::from_secs(120);

/// The arguments of `zprobe list`.
#[derive(clap::Args)]
pub struct ListArgs {
    /// Kind of things to list; without it, the kinds
    what: Option<What>,

    /// Form of the listing on standard output
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "full",
        env = "ZPROBE_OUTPUT_FORMAT",
        value_parser = Form::among(&[Form::Full, Form::Json])
    )]
    output_format: Form,

    /// With `engines`: interpreter or virtual environment in which each engine is tried
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum What {
    /// The probes of the standard suite, for `zprobe check`
    Probes,
    /// Known bugs for `zprobe zoo`
    Zoo,
    /// Rules with their codes
    Rules,
    /// Faults for --inject
    Faults,
    /// Engines for --engine
    Engines,
    /// Shapes for --shape
    Shapes,
    /// Recorded runs, for `zprobe show`, `compare` and `issue`
    Runs,
}

pub fn main(args: &ListArgs) -> Result<Exit> {
    ensure!(
        args.python.is_none() || matches!(args.what, Some(What::Engines)),
        "--python works only with `zprobe list engines`",
    );
    if let Some(python) = &args.python {
        ensure!(
            args.output_format == Form::Full,
            "--python has no JSON form here; use `zprobe doctor --python PATH --output-format json`"
        );
        console::print(&tried(python))?;
        return Ok(Exit::Clean);
    }
    let Some(what) = args.what else {
        return kinds(args.output_format);
    };
    let entries = match what {
        What::Runs => return runs(args.output_format),
        What::Rules => RULES.iter().map(Entry::of_rule).collect(),
        What::Faults => values::<Fault>(),
        What::Shapes => Shape::ALL.iter().map(|it| Entry::new(it.name(), it.describe())).collect(),
        What::Engines => values::<Engine>(),
        What::Probes => probe::registry::probes()?
            .into_iter()
            .map(|probe| {
                let engines: Vec<&str> = probe.engines.iter().map(|it| it.name()).collect();
                Entry::new(&probe.name, format!("{} ({})", probe.description, engines.join(", ")))
            })
            .collect(),
        What::Zoo => {
            registry::rows().iter().map(|row| Entry::new(&row.name, row.title.as_str())).collect()
        }
    };
    if print(&entries, args.output_format)? {
        let page = match what {
            What::Probes => "",
            _ => "; zprobe explain NAME has the details",
        };
        console::say(format!("-v shows whole lines{page}"));
    }
    Ok(Exit::Clean)
}

/// Prints a listing; true if lines of it are cut.
fn print(entries: &[Entry], form: Form) -> Result<bool> {
    if form == Form::Json {
        console::print(&visible::json(&entries)?)?;
        return Ok(false);
    }
    let names = entries.iter().map(|it| (it.name.as_str(), it.description.as_str()));
    let text = in_columns(names, Verbosity::get().verbose);
    console::print(&text)?;
    Ok(text.contains(CUT))
}

/// Lists the kinds of things that can be listed.
fn kinds(form: Form) -> Result<Exit> {
    print(&values::<What>(), form)?;
    console::say("zprobe list KIND lists them, for example `zprobe list runs`");
    Ok(Exit::Clean)
}

/// The number of runs that are listed on a terminal without `--verbose`, so that the list fits on it.
const MOST_RUNS: usize = 10;

/// Lists the recorded runs, the newest first.
fn runs(form: Form) -> Result<Exit> {
    let recorded = store::everywhere(Path::new(""))?;
    if form == Form::Json {
        let all: Vec<ListedRun> = recorded.iter().map(ListedRun::of).collect();
        console::print(&visible::json(&all)?)?;
        return Ok(Exit::Clean);
    }
    let is_whole = Verbosity::get().verbose;
    let columns = terminal_columns().filter(|_| !is_whole);
    let shown = if columns.is_some() { MOST_RUNS } else { recorded.len() };
    let now = SystemTime::now();
    let mut text = String::new();
    for it in recorded.iter().take(shown) {
        let run = ListedRun::of(it);
        let size = ByteSize(run.bytes).display().si().to_string();
        let engine = run.engine.map(|engine| engine.name().to_owned());
        let facts = [Some(run.verdict()), engine, Some(size), Some(ago(it.written, now))];
        let facts = facts.into_iter().flatten().collect::<Vec<_>>().join(", ");
        let command = run.command.as_deref().unwrap_or("(the command is not known)");
        for line in [format!("{}  {facts}", run.name), format!("    {command}")] {
            text += &columns.map_or(line.clone(), |columns| cut(&line, columns));
            text.push('\n');
        }
    }
    console::plain(&text)?;
    console::say(match recorded.len() {
        0 => "no run is recorded here, in .zprobe; `zprobe run` and `zprobe exec` record runs".to_owned(),
        all if all > shown => format!("{shown} of {all} runs; -v shows all"),
        _ => "zprobe show NAME shows the report; the beginning of a name suffices, and latest is the first one".to_owned(),
    });
    Ok(Exit::Clean)
}

/// One line of a listing.
#[derive(serde::Serialize)]
struct Entry {
    name: String,
    description: String,
}

impl Entry {
    fn new(name: &str, description: impl Into<String>) -> Self {
        Self { name: name.to_owned(), description: description.into() }
    }

    fn of_rule(rule: &Rule) -> Self {
        let meaning = first_sentence(rule.doc, "What it means").unwrap_or_default();
        Self::new(&rule.code, format!("{}: {meaning}", rule.name))
    }
}

/// One line for each engine: whether the engine can run with this interpreter, or why not.
fn tried(python: &Path) -> String {
    let line = ProgressLine::steps();
    line.step(&format!("asking {} for its engines, which takes up to 30 s", python.display()));
    let (machine, python) = examine(&inside(python), TRY_LIMIT);
    drop(line);
    let mut text = String::new();
    lines(&mut text, &engines(&machine, &python));
    text
}

/// The possible values of a flag, each with its help.
fn values<T: ValueEnum>() -> Vec<Entry> {
    let values = T::value_variants().iter().filter_map(T::to_possible_value);
    let entry = |value: clap::builder::PossibleValue| {
        let help = value.get_help().map(ToString::to_string).unwrap_or_default();
        Entry::new(value.get_name(), help.replace('\n', " "))
    };
    values.map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_listed_with_a_whole_sentence() {
        for rule in RULES {
            let Entry { description, .. } = Entry::of_rule(rule);
            assert!(description.ends_with('.'), "{}: {description}", rule.code);
        }
    }
}
