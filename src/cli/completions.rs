//! `zprobe completions`: prints the script with which a shell completes zprobe's command lines.
//!
//! The script calls zprobe for every completion, so names and recorded runs are always current.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use anyhow::{Context as _, Result};
use clap::{Arg, Command};
use clap_complete::env::Shells;
use clap_complete::{ArgValueCompleter, CompleteEnv, CompletionCandidate, PathCompleter, Shell};
use zprobe_lab::check::probe;
use zprobe_lab::console;
use zprobe_lab::runs::{LATEST, command};
use zprobe_lab::store;
use zprobe_model::visible as characters;
use zprobe_report::Exit;
use zprobe_zoo::registry;

use super::{explain, own_flags};

/// The environment variable that a shell sets when it asks zprobe for completions.
const VARIABLE: &str = "ZPROBE_COMPLETE";

/// The arguments of `zprobe completions`.
#[derive(clap::Args)]
pub struct CompletionsArgs {
    /// Shell that reads the script
    shell: Shell,
}

/// Prints the script with which a shell asks zprobe for completions.
pub fn main(args: &CompletionsArgs) -> Result<Exit> {
    let shells = Shells::builtins();
    let name = args.shell.to_string();
    let shell = shells.completer(&name).with_context(|| format!("{name}: no such shell"))?;
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, "zprobe", "zprobe", &program(), &mut script)?;
    console::print(&String::from_utf8(script)?)?;
    Ok(Exit::Clean)
}

/// The program for the script to call: a bare name as it is, which the shell looks up in `PATH`; else an absolute
/// path.
fn program() -> String {
    let called = std::env::args_os().next().unwrap_or_else(|| "zprobe".into());
    let is_path = Path::new(&called).components().count() > 1;
    let path = if is_path { std::path::absolute(&called).ok() } else { None };
    path.map_or(called, OsString::from).to_string_lossy().into_owned()
}

/// Answers a shell that asks for completions of `zprobe`; false if no shell asks. Must be called before a second
/// thread starts.
///
/// # Errors
/// Fails if the shell is unknown.
pub fn answer(zprobe: impl Fn() -> Command) -> clap::error::Result<bool> {
    let words: Vec<OsString> = std::env::args_os().collect();
    let line = words.iter().skip_while(|word| *word != "--").skip(1).cloned().collect::<Vec<_>>();
    let command = || own_flags::alone(with_values(visible(&zprobe())), &line);
    let dir = std::env::current_dir().ok();
    CompleteEnv::with_factory(command).var(VARIABLE).try_complete(words, dir.as_deref())
}

/// The command without its hidden subcommands.
fn visible(command: &Command) -> Command {
    let subcommands = command.get_subcommands().filter(|it| !it.is_hide_set());
    Command::new("zprobe")
        .version(env!("CARGO_PKG_VERSION"))
        .args(command.get_arguments())
        .subcommands(subcommands)
}

/// A function that lists the possible values of an argument, each with a line of description.
type Values = fn() -> Vec<(String, String)>;

/// The arguments with listed values: the command, the argument's id in clap, the values, and true if a path is also
/// valid.
const KNOWN: [(&str, &str, Values, bool); 8] = [
    ("explain", "name", topics, false),
    ("zoo", "rows", rows, true),
    ("check", "probes", probes, true),
    ("show", "run_dir", runs, true),
    ("issue", "run_dir", runs, true),
    ("bisect", "run_dir", runs, true),
    ("compare", "runs", runs, true),
    ("run", "minimise", rules, false),
];

/// Adds to the command's arguments the values in `KNOWN`. The arguments stay in their order, which decides about the
/// places of positional ones.
fn with_values(command: Command) -> Command {
    KNOWN.iter().fold(command, |command, &(name, id, values, or_path)| {
        command.mut_subcommand(name, |sub| {
            sub.mut_args(|arg: Arg| {
                if arg.get_id() != id {
                    return arg;
                }
                arg.add(ArgValueCompleter::new(move |given: &OsStr| {
                    beginning(given, values(), or_path)
                }))
            })
        })
    })
}

/// The values that begin with the given text, in their order; if none does and `or_path` is true, matching paths.
fn beginning(
    given: &OsStr,
    values: Vec<(String, String)>,
    or_path: bool,
) -> Vec<CompletionCandidate> {
    let start = given.to_string_lossy().to_lowercase();
    // One name may stand for several topics.
    let mut seen = HashSet::new();
    let fitting = values
        .into_iter()
        .filter(|(name, _)| name.to_lowercase().starts_with(&start) && seen.insert(name.clone()));
    let found: Vec<_> = fitting
        .map(|(name, about)| {
            let about = (!about.is_empty()).then(|| about.into());
            CompletionCandidate::new(name).help(about)
        })
        .collect();
    if found.is_empty() && or_path {
        use clap_complete::engine::ValueCompleter as _;
        return PathCompleter::any().complete(given);
    }
    found
}

fn topics() -> Vec<(String, String)> {
    explain::topics().into_iter().map(|topic| (topic.name, topic.about)).collect()
}

fn rules() -> Vec<(String, String)> {
    let rules = zprobe_diagnose::rules::RULES.iter();
    rules.map(|rule| (rule.code.to_string(), rule.name.to_owned())).collect()
}

fn rows() -> Vec<(String, String)> {
    registry::rows().iter().map(|row| (row.name.clone(), row.title.clone())).collect()
}

fn probes() -> Vec<(String, String)> {
    let probes = probe::registry::probes().unwrap_or_default();
    probes.into_iter().map(|probe| (probe.name, probe.description)).collect()
}

/// The names of the recorded runs, the newest first, each with its command, and `latest`. Names that would need quoting
/// in a shell are left out.
fn runs() -> Vec<(String, String)> {
    let runs = store::everywhere(Path::new("")).unwrap_or_default();
    let is_plain =
        |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
    let named = runs.iter().filter(|run| is_plain(&run.name)).map(|run| {
        let command = command(&run.path).unwrap_or_default();
        (run.name.clone(), characters::text(&command).into_owned())
    });
    let latest = runs.first().map(|_| (LATEST.to_owned(), "the newest run".to_owned()));
    named.chain(latest).collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn every_argument_whose_values_are_known_exists() {
        let command = super::super::Cli::command();
        for (name, id, values, _) in KNOWN {
            let sub = command.find_subcommand(name).unwrap_or_else(|| panic!("zprobe {name}"));
            assert!(sub.get_arguments().any(|arg| arg.get_id() == id), "zprobe {name}: {id}");
            assert!(id.starts_with("run") || !values().is_empty(), "zprobe {name}: {id}");
        }
    }
}
