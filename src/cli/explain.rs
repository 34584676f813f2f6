//! `zprobe explain`: explains a rule, known bug, shape, fault, engine, setting, command, verdict, exit code or word.

use anyhow::{Result, bail};
use clap::{Command, ValueEnum};
use zprobe_diagnose::rule::Rule;
use zprobe_diagnose::rules::RULES;
use zprobe_lab::console;
use zprobe_lab::table::{in_columns, wrapped};
use zprobe_model::document::nearest;
use zprobe_model::spec::settings::{ALL, Description};
use zprobe_model::spec::{Engine, Fault, Shape};
use zprobe_report::{Exit, Verdict};
use zprobe_zoo::registry;

use super::glossary::GLOSSARY;
use super::help::EXIT_CODES;

/// The arguments of `zprobe explain`.
#[derive(clap::Args)]
pub struct ExplainArgs {
    /// Code or name of a rule, or a known bug, shape, fault, engine, setting, command, verdict, exit code or word of a
    /// report: for example ZP101
    #[arg(allow_hyphen_values = true)]
    name: Option<String>,
}

/// The explanation of one name.
pub struct Topic {
    /// The name of the topic, for example `ZP101`.
    pub name: String,
    /// One line about the topic, for completions.
    pub about: String,
    text: String,
}

/// The kinds of names that are explained, each with examples.
const KINDS: [(&str, &str); 9] = [
    ("rules", "ZP101, boundary-leak: `zprobe list rules`"),
    ("known bugs", "adam-counts-a-step-of-zeros: `zprobe list zoo`"),
    ("shapes", "tied: `zprobe list shapes`"),
    ("faults", "boundary-leak: `zprobe list faults`"),
    ("engines", "deepspeed: `zprobe list engines`"),
    ("settings", "stage, reduce-bucket-size: `zprobe run --help`"),
    ("commands", "exec, check: `zprobe --help`"),
    ("verdicts", "clean, findings, crashed, inconclusive, or an exit code"),
    ("words", ""),
];

pub fn main(args: &ExplainArgs, command: &Command) -> Result<Exit> {
    let Some(given) = &args.name else {
        let words = GLOSSARY.iter().map(|entry| entry.words[0]).collect::<Vec<_>>().join(", ");
        let kinds = KINDS.map(|(kind, examples)| match examples {
            "" => (kind, words.as_str()),
            examples => (kind, examples),
        });
        console::print(&in_columns(kinds, true))?;
        console::say(
            "zprobe explain NAME explains one of these names, for example `zprobe explain ZP101`",
        );
        return Ok(Exit::Clean);
    };
    let commands = command.get_subcommands().filter(|it| !it.is_hide_set()).map(|it| Topic {
        name: it.get_name().to_owned(),
        about: String::new(),
        text: format!(
            "zprobe {0}\n\n{1}. `zprobe {0} -h` has examples.",
            it.get_name(),
            it.get_about().map(ToString::to_string).unwrap_or_default()
        ),
    });
    let topics: Vec<Topic> = topics().into_iter().chain(commands).collect();
    let name = given.trim_start_matches("--");
    let meant: Vec<&str> = topics
        .iter()
        .filter(|topic| topic.name.eq_ignore_ascii_case(name))
        .map(|topic| topic.text.trim_end())
        .collect();
    if meant.is_empty() {
        let nearest = nearest(name, topics.iter().map(|topic| topic.name.as_str()));
        let hint = match nearest {
            Some(name) => format!("did you mean {name}?"),
            None => "`zprobe explain` lists the kinds of names".to_owned(),
        };
        bail!(
            "{given}: no rule, known bug, shape, fault, engine, setting, command, verdict, exit code or word of a report \
             has this name; {hint}"
        );
    }
    console::print(&(meant.join("\n\n") + "\n"))?;
    Ok(Exit::Clean)
}

/// All topics; each rule has two, one for its code and one for its name.
pub fn topics() -> Vec<Topic> {
    let rule = |name: &str, other: &str, rule: &Rule| Topic {
        name: name.to_owned(),
        about: other.to_owned(),
        text: rule.doc.to_owned(),
    };
    let rules =
        RULES.iter().flat_map(|it| [rule(&it.code, it.name, it), rule(it.name, &it.code, it)]);
    let bugs = registry::rows().iter().map(|row| Topic {
        name: row.name.clone(),
        about: row.title.clone(),
        text: row.explain(),
    });
    let shapes = Shape::ALL.iter().map(|shape| Topic {
        name: shape.name().to_owned(),
        about: shape.describe().to_owned(),
        text: format!("--shape {}\n\n{}", shape.name(), shape.describe()),
    });
    let exits = Exit::ALL.iter().zip(EXIT_CODES).map(|(exit, words)| Topic {
        name: exit.code().to_string(),
        about: words.to_owned(),
        text: format!("Exit code {}: {words}.{}", exit.code(), verdict_of(*exit)),
    });
    let verdicts = Verdict::ALL.iter().map(|verdict| {
        let code = Exit::from(*verdict).code();
        Topic {
            name: verdict.name().to_owned(),
            about: format!("verdict, with exit code {code}"),
            text: format!("Verdict {verdict}, exit code {code}\n\n{}", meaning(*verdict)),
        }
    });
    let settings = ALL.iter().map(|setting| setting.describe()).map(|it| Topic {
        name: it.flag.trim_start_matches("--").to_owned(),
        about: it.help.to_owned(),
        text: about_setting(&it),
    });
    let words = GLOSSARY.iter().flat_map(|entry| {
        entry.words.iter().map(|word| Topic {
            name: (*word).to_owned(),
            about: String::new(),
            text: format!("{}\n\n{}", entry.words.join(", "), wrapped(entry.text, "", "")),
        })
    });
    let faults = values::<Fault>("--inject");
    let engines = values::<Engine>("--engine");
    rules
        .chain(bugs)
        .chain(shapes)
        .chain(faults)
        .chain(engines)
        .chain(settings)
        .chain(verdicts)
        .chain(exits)
        .chain(words)
        .collect()
}

/// The meaning of the verdict that has this exit code, as a paragraph; empty if no verdict has it.
fn verdict_of(exit: Exit) -> String {
    let verdict = Verdict::ALL.iter().find(|verdict| Exit::from(**verdict) == exit);
    verdict.map_or(String::new(), |verdict| format!("\n\n{}", meaning(*verdict)))
}

/// The meaning of a verdict in one sentence.
fn meaning(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Clean => "Every gradient arrived exactly once, with weight 1, in the right place.",
        Verdict::Findings => {
            "At least one rule found an error, or a deviation that is reported as a warning."
        }
        Verdict::Crashed => "The engine under test crashed or hung.",
        Verdict::Inconclusive => {
            "The run was interrupted, or the weights could not be read, so it shows neither correctness nor an error."
        }
    }
}

/// The explanation of a setting: its help, its default, and where it can be set.
fn about_setting(setting: &Description) -> String {
    let engines: Vec<&str> = setting.engines.iter().map(|engine| engine.name()).collect();
    let lines = [
        setting.default.as_ref().map(|default| format!("default: {default}")),
        Some(format!("engines: {}", engines.join(", "))),
        setting.key.map(|key| format!("in a DeepSpeed file: {key}")),
        Some(format!("variable: {}", setting.variable)),
    ];
    let lines = lines.into_iter().flatten().map(|line| format!("\n{line}"));
    format!("{}\n\n{}\n{}", setting.flag, setting.help, lines.collect::<String>())
}

/// The possible values of a flag, each with its help.
fn values<T: ValueEnum>(flag: &str) -> Vec<Topic> {
    let values = T::value_variants().iter().filter_map(T::to_possible_value);
    let topic = |value: clap::builder::PossibleValue| Topic {
        name: value.get_name().to_owned(),
        about: value.get_help().map(ToString::to_string).unwrap_or_default(),
        text: format!(
            "{flag} {}\n\n{}",
            value.get_name(),
            value.get_help().map(ToString::to_string).unwrap_or_default()
        ),
    };
    values.map(topic).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_has_a_name_has_words() {
        for topic in topics() {
            assert!(topic.text.trim().len() > topic.name.len() + 10, "{}", topic.name);
        }
        let has = |name| topics().iter().any(|topic| topic.name == name);
        for name in
            ["ZP101", "boundary-leak", "tied", "ddp", "stage", "inconclusive", "3", "weights"]
        {
            assert!(has(name), "{name}");
        }
        let exit = topics().into_iter().find(|topic| topic.name == "4").unwrap();
        assert!(exit.text.contains("inconclusive") && exit.text.contains("interrupted"));
    }
}
