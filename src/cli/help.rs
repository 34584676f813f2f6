//! The layout of the help: `zprobe --help` lists the commands in groups, and `-h` of a command fits on one screen.

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

/// The examples of `zprobe -h`.
const EXAMPLES: [&str; 2] = [
    "zprobe exec -- torchrun --nproc-per-node 2 train.py",
    "zprobe run --engine deepspeed --python .venv --stage 2",
];

/// `-h` lists the possible values of a flag only if there are at most this many.
const SHORT: usize = 8;

/// The help of one command: what `-h` shows, and the examples.
struct Screen {
    /// The words of the command after `zprobe`.
    command: &'static str,
    /// The arguments that `-h` shows, by their ids in clap.
    first: &'static [&'static str],
    /// Command lines that show the usual uses.
    examples: [&'static str; 2],
}

/// The help of every visible command.
const SCREENS: [Screen; 19] = [
    Screen {
        command: "run",
        first: &["engine", "stage", "ga", "dtype", "python"],
        examples: [
            "zprobe run --stage 1 --ga 4",
            "zprobe run --engine deepspeed --python .venv --stage 2",
        ],
    },
    Screen {
        command: "exec",
        first: &["command", "dry", "observe", "weighting"],
        examples: [
            "zprobe exec -- torchrun --nproc-per-node 2 train.py",
            "zprobe exec --observe -- python train.py",
        ],
    },
    Screen {
        command: "check",
        first: &["probes", "engine", "python", "filter", "list"],
        examples: ["zprobe check --engine native", "zprobe check --engine ddp --python .venv"],
    },
    Screen {
        command: "preflight",
        first: &["nproc_per_node", "device", "python", "nnodes"],
        examples: ["zprobe preflight", "srun --ntasks-per-node 8 zprobe preflight"],
    },
    Screen {
        command: "show",
        first: &["run_dir", "output_format", "export_html"],
        examples: ["zprobe show -v", "zprobe show --export-html report.html"],
    },
    Screen {
        command: "explain",
        first: &["name"],
        examples: ["zprobe explain ZP101", "zprobe explain reduce-bucket-size"],
    },
    Screen {
        command: "compare",
        first: &["runs", "a", "b"],
        examples: [
            "zprobe compare latest~1 latest",
            "zprobe compare --a \"--stage 1\" --b \"--stage 2\"",
        ],
    },
    Screen {
        command: "issue",
        first: &["run_dir", "project", "python", "out", "dry_run"],
        examples: ["zprobe issue --dry-run", "zprobe issue --for deepspeed --python .venv"],
    },
    Screen {
        command: "sweep",
        first: &["engine", "python", "filter", "stage", "limit", "list"],
        examples: [
            "zprobe sweep --python .venv --stage 2",
            "zprobe sweep --engine ddp --python .venv --limit 50",
        ],
    },
    Screen {
        command: "bisect",
        first: &["run_dir", "package", "good", "bad", "fixed"],
        examples: [
            "zprobe bisect latest --package deepspeed --good 0.18.4",
            "zprobe bisect --engine deepspeed --package deepspeed --good 0.18.4 --bad 0.18.9",
        ],
    },
    Screen {
        command: "bisect step",
        first: &["run_dir", "code", "fixed", "python", "engine"],
        examples: [
            "git bisect run zprobe bisect step .zprobe/runs/A",
            "git bisect run zprobe bisect step --code ZP101 --engine deepspeed",
        ],
    },
    Screen {
        command: "zoo",
        first: &["rows", "list", "release", "device"],
        examples: ["zprobe zoo boundary-leak", "zprobe zoo --list --release deepspeed==0.18.9"],
    },
    Screen {
        command: "list",
        first: &["what", "output_format"],
        examples: ["zprobe list rules", "zprobe list engines --python .venv"],
    },
    Screen {
        command: "doctor",
        first: &["python", "output_format"],
        examples: ["zprobe doctor", "zprobe doctor --python .venv"],
    },
    Screen {
        command: "init",
        first: &["python", "pre_commit", "force", "dry_run"],
        examples: ["zprobe init --dry-run", "zprobe init --python .venv"],
    },
    Screen {
        command: "provision",
        first: &["packages"],
        examples: [
            "zprobe provision torch==2.11.0",
            "zprobe provision torch==2.11.0 deepspeed==0.19.8",
        ],
    },
    Screen {
        command: "clean",
        first: &["older_than", "keep", "max_size", "environments", "dry_run"],
        examples: ["zprobe clean --older-than 7d", "zprobe clean --keep 10 --dry-run"],
    },
    Screen {
        command: "completions",
        first: &["shell"],
        examples: [
            "zprobe completions bash > ~/.local/share/bash-completion/completions/zprobe",
            "zprobe completions fish > ~/.config/fish/completions/zprobe.fish",
        ],
    },
    Screen {
        command: "man",
        first: &["command", "out_dir"],
        examples: ["zprobe man run | man -l -", "zprobe man --out-dir ~/.local/share/man/man1"],
    },
];

/// The arguments that `-h` shows for every command, by their ids in clap.
const COMMON: [&str; 2] = ["verbose", "help"];

/// The command with its subcommands in groups, and with the help of each subcommand. If `words` contain `-h`, or
/// nothing after the name of the program, the help leaves out environment variables, long lists of values and headings.
pub fn arranged(command: Command, words: &[OsString]) -> Command {
    let is_short =
        words.len() < 2 || words.iter().take_while(|word| *word != "--").any(|word| word == "-h");
    let template = template(&command, is_short);
    let command = command.help_template(template).mut_args(|arg| {
        let is_first = COMMON.contains(&arg.get_id().as_str());
        arg.hide_env(is_short).hide_short_help(!is_first)
    });
    SCREENS.iter().fold(command, |command, screen| screen.within(command, screen.command, is_short))
}

impl Screen {
    /// The command, with this help for the subcommand that `path` names.
    fn within(&self, command: Command, path: &'static str, is_short: bool) -> Command {
        let (name, rest) = path.split_once(' ').unwrap_or((path, ""));
        command.mut_subcommand(name, |sub| match rest {
            "" => self.of(sub, is_short),
            rest => self.within(sub, rest, is_short),
        })
    }

    /// The command with this help.
    fn of(&self, command: Command, is_short: bool) -> Command {
        let header = command.get_styles().get_header();
        let lines = self.examples.map(|example| format!("\n  {example}")).concat();
        let examples = format!("{header}Examples:{header:#}{lines}");
        let own = command.get_after_long_help().map(|own| format!("\n\n{}", own.ansi()));
        let whole = examples.clone() + &own.unwrap_or_default();
        let command = command
            .after_help(examples + "\n\nThese are the first options; `--help` shows all options.")
            .after_long_help(whole);
        command.mut_args(|arg| {
            let id = arg.get_id().as_str();
            let is_first = self.first.contains(&id) || COMMON.contains(&id);
            let arg = arg.hide_short_help(!is_first);
            if !is_short {
                return arg;
            }
            let is_long =
                arg.get_action().takes_values() && arg.get_possible_values().len() > SHORT;
            arg.hide_env(true).hide_possible_values(is_long).help_heading(None::<&str>)
        })
    }
}

/// The template of `zprobe --help`, or of `zprobe -h`, which has examples in place of the options.
fn template(command: &Command, is_short: bool) -> String {
    let width = command.get_subcommands().map(|sub| sub.get_name().len()).max().unwrap_or(0);
    let mut text = "{about-with-newline}\n{usage-heading} {usage}".to_owned();
    text += if is_short { "  (COMMAND -h: its options; --help: everything)\n\n" } else { "\n\n" };
    let header = command.get_styles().get_header();
    for (title, names) in GROUPS {
        let _ = writeln!(text, "{header}{title}:{header:#}");
        let literal = command.get_styles().get_literal();
        for sub in names.iter().filter_map(|name| command.find_subcommand(name)) {
            let name = sub.get_name();
            let about = sub.get_about().map(StyledStr::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {literal}{name:width$}{literal:#}  {about}");
        }
    }
    let _ = if is_short {
        let examples = EXAMPLES.map(|example| format!("\n  {example}")).concat();
        write!(text, "\n{header}Examples:{header:#}{examples}")
    } else {
        write!(text, "\n{header}Options:{header:#}\n{{options}}{{after-help}}")
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of a usual terminal.
    const LINES: usize = 24;

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
        assert!(help.lines().count() <= 30, "{help}");
        for line in help.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        let (_, examples) = help.split_once("\nExamples:\n").expect("examples");
        for example in examples.lines() {
            let words = shlex::split(example).expect("words");
            super::super::Cli::command().try_get_matches_from(words).expect("a right example");
        }
    }

    #[test]
    fn the_short_help_is_consistent() {
        use clap::CommandFactory as _;
        let words = ["zprobe", "run", "-h"].map(OsString::from);
        arranged(super::super::Cli::command(), &words).debug_assert();
    }

    #[test]
    fn the_short_help_of_every_command_fits_on_one_screen_and_has_two_examples() {
        use clap::CommandFactory as _;
        let mut wrong = Vec::new();
        for screen in &SCREENS {
            let line = format!("zprobe {} -h", screen.command);
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let command = arranged(super::super::Cli::command(), &words).term_width(100);
            let help = command.try_get_matches_from(&words).expect_err("help").to_string();
            let (_, examples) = help.split_once("\nExamples:\n").expect("examples");
            let examples = examples
                .lines()
                .filter(|line| line.starts_with("  zprobe ") || line.contains(" zprobe "));
            let has_end = help.trim_end().ends_with("`--help` shows all options.");
            if help.lines().count() > LINES || examples.count() != 2 || !has_end {
                wrong.push(format!("{} lines: {line}\n{help}", help.lines().count()));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn every_visible_command_has_a_screen_whose_arguments_and_examples_exist() {
        use clap::CommandFactory as _;
        let whole = super::super::Cli::command();
        let visible = |command: &Command, before: &str| -> Vec<String> {
            let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
            shown.map(|sub| format!("{before}{}", sub.get_name())).collect()
        };
        let mut paths = visible(&whole, "");
        for name in paths.clone() {
            let sub = whole.find_subcommand(&name).expect("a command");
            paths.extend(visible(sub, &format!("{name} ")));
        }
        let mut screens: Vec<&str> = SCREENS.iter().map(|screen| screen.command).collect();
        paths.sort_unstable();
        screens.sort_unstable();
        assert_eq!(screens, paths);
        for screen in &SCREENS {
            let path = screen.command.split(' ');
            let command =
                path.fold(&whole, |at, name| at.find_subcommand(name).expect("a command"));
            for id in screen.first {
                assert!(command.get_arguments().any(|arg| arg.get_id() == *id), "{id}");
            }
            for example in screen.examples {
                let words = shlex::split(example).expect("words");
                let words = words.into_iter().skip_while(|word| word != "zprobe");
                let words = words.take_while(|word| ![">", "|"].contains(&word.as_str()));
                if let Err(error) = whole.clone().try_get_matches_from(words) {
                    panic!("{example}: {error}");
                }
            }
        }
    }
}
