//! `zprobe explain`: whatever zprobe has a name for, in words.

use anyhow::{Result, bail};
use clap::ValueEnum;
use zprobe::console;
use zprobe::diagnose::rules::{RULES, Rule};
use zprobe::document::nearest;
use zprobe::report::Exit;
use zprobe::spec::{Engine, Fault, Shape};
use zprobe::zoo::registry;

use super::help::EXIT_CODES;

/// Arguments of `zprobe explain`.
#[derive(clap::Args)]
pub struct Args {
    /// Rule by its code or name, known bug, shape, fault, engine or exit code: for example ZP101
    name: String,
}

/// Something that has a name, in words.
pub struct Topic {
    /// Name of the topic.
    pub name: String,
    /// Line about the topic.
    pub about: String,
    text: String,
}

pub fn main(args: &Args) -> Result<Exit> {
    let topics = topics();
    let meant: Vec<&str> = topics
        .iter()
        .filter(|topic| topic.name.eq_ignore_ascii_case(&args.name))
        .map(|topic| topic.text.trim_end())
        .collect();
    if meant.is_empty() {
        let nearest = nearest(&args.name, topics.iter().map(|topic| topic.name.as_str()));
        let hint = match nearest {
            Some(name) => format!("did you mean {name}?"),
            None => "`zprobe list` lists them".to_owned(),
        };
        bail!(
            "{}: no rule, known bug, shape, fault, engine or exit code has this name; {hint}",
            args.name
        );
    }
    console::print(&(meant.join("\n\n") + "\n"))?;
    Ok(Exit::Clean)
}

/// Everything that has a name; a rule has two.
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
        text: format!("Exit code {}\n\n{words}", exit.code()),
    });
    let faults = values::<Fault>("--inject");
    let engines = values::<Engine>("--engine");
    rules.chain(bugs).chain(shapes).chain(faults).chain(engines).chain(exits).collect()
}

/// Values of a flag with their help.
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
    }
}
