//! The layout of the help: `--help` lists the commands in groups, and `-h` fits on one screen.

use std::ffi::OsString;
use std::fmt::Write as _;

use clap::Command;
use clap::builder::StyledStr;

/// The meaning of each exit code of a run, indexed by the code.
pub const EXIT_CODES: [&str; 5] = [
    "clean",
    "findings",
    "usage or set-up error, nothing ran",
    "the engine under test crashed or hung",
    "inconclusive",
];

/// The commands, grouped by purpose.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Ask", &["run", "exec", "check", "preflight"]),
    ("Understand", &["show", "explain", "compare", "issue"]),
    ("Search", &["sweep", "bisect", "zoo", "list"]),
    ("Set up", &["doctor", "init", "provision", "clean", "completions", "man"]),
];

/// The flags that `-h` shows for commands with many flags, by their ids in clap.
const FIRST: [&str; 22] = [
    "engine",
    "stage",
    "ga",
    "nproc_per_node",
    "dtype",
    "grad_accum_dtype",
    "offload",
    "shape",
    "model",
    "device",
    "steps",
    "deepspeed_config",
    "python",
    "out",
    "output_format",
    "export_html",
    "repeat",
    "minimise",
    "inject",
    "nnodes",
    "verbose",
    "help",
];

/// `-h` shows only the flags in `FIRST` for a command with more flags than this.
const MANY: usize = 40;

/// `-h` lists the possible values of a flag only if there are at most this many.
const SHORT: usize = 8;

/// The command with its subcommands in groups. If `words` contain `-h`, its help leaves out environment variables
/// and rarely used flags.
pub fn arranged(command: Command, words: &[OsString]) -> Command {
    let is_short = words.iter().take_while(|word| *word != "--").any(|word| word == "-h");
    let template = template(&command);
    let command = command.help_template(template);
    if !is_short {
        return command;
    }
    let command = command.mut_args(|arg| arg.hide_env(true));
    command.mut_subcommands(|sub| {
        let many = sub.get_arguments().count() > MANY;
        let sub = sub.mut_args(|arg| {
            let is_first = FIRST.contains(&arg.get_id().as_str());
            let is_long =
                arg.get_action().takes_values() && arg.get_possible_values().len() > SHORT;
            arg.hide_env(true).hide_possible_values(is_long).hide_short_help(many && !is_first)
        });
        match many {
            true => {
                let own = sub.get_after_help().map(|own| format!("{own}\n")).unwrap_or_default();
                sub.after_help(own + "These are the first flags; `--help` shows all of them.")
            }
            false => sub,
        }
    })
}

/// The template of `zprobe --help`.
fn template(command: &Command) -> String {
    let width = command.get_subcommands().map(|sub| sub.get_name().len()).max().unwrap_or(0);
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    let header = command.get_styles().get_header();
    for (title, names) in GROUPS {
        let _ = writeln!(text, "\n{header}{title}:{header:#}");
        let literal = command.get_styles().get_literal();
        for sub in names.iter().filter_map(|name| command.find_subcommand(name)) {
            let name = sub.get_name();
            let about = sub.get_about().map(StyledStr::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {literal}{name:width$}{literal:#}  {about}");
        }
    }
    let _ = write!(text, "\n{header}Options:{header:#}\n{{options}}{{after-help}}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_in_one_group() {
        use clap::CommandFactory as _;
        let command = super::super::Cli::command();
        let visible = command.get_subcommands().filter(|sub| !sub.is_hide_set());
        let mut there: Vec<&str> = visible.map(Command::get_name).collect();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        there.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(there, grouped);
    }

    #[test]
    fn the_first_help_fits_a_terminal() {
        use clap::CommandFactory as _;
        let words = ["zprobe", "-h"].map(OsString::from);
        let help = arranged(super::super::Cli::command(), &words).render_help().to_string();
        let (groups, _) = help.split_once("Options:").expect("options after the commands");
        for line in groups.lines().filter(|line| line.starts_with("  ")) {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }

    #[test]
    fn the_short_help_is_consistent() {
        use clap::CommandFactory as _;
        let words = ["zprobe", "run", "-h"].map(OsString::from);
        arranged(super::super::Cli::command(), &words).debug_assert();
    }

    #[test]
    fn the_first_flags_of_a_run_exist() {
        use clap::CommandFactory as _;
        let command = super::super::Cli::command();
        let run = command.find_subcommand("run").expect("zprobe run");
        let own = ["verbose", "help"];
        for id in FIRST.iter().filter(|id| !own.contains(id)) {
            assert!(run.get_arguments().any(|arg| arg.get_id() == *id), "{id}");
        }
    }
}
