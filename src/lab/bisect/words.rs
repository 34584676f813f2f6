//! The answer of a search as a block to paste.

use std::fmt::Write as _;

use anyhow::Result;

use super::{Answer, in_words};
use crate::lab::table::to_json;
use crate::report::Form;
use crate::report::words::amount;

/// Renders an answer in one of [`Form::OF_A_TABLE`]; `command` is the command that leads to it again.
///
/// # Errors
/// When JSON cannot be written, which does not happen with an answer.
pub fn render(answer: &Answer, command: &str, form: Form) -> Result<String> {
    if form == Form::Json {
        return to_json(answer);
    }
    let mut text = headline(answer) + "\n\n";
    let width = answer.trials.iter().map(|trial| trial.release.len()).max().unwrap_or(0);
    for trial in &answer.trials {
        let _ =
            writeln!(text, "  {:width$}  {}", trial.release, in_words(trial.shows, &trial.said));
    }
    if !answer.old_again.is_empty() {
        let _ = writeln!(
            text,
            "\nnote: the bug comes and goes: {} is as the old end again",
            answer.old_again.join(", ")
        );
    }
    let beside = match answer.beside.as_str() {
        "" => String::new(),
        beside => format!(" beside {beside}"),
    };
    let _ = writeln!(
        text,
        "\ntried {} of {}{beside}\n{command}",
        answer.trials.len(),
        amount(answer.releases, "release")
    );
    Ok(if form == Form::Markdown { format!("```\n{text}```\n") } else { text })
}

/// The answer in one sentence.
fn headline(answer: &Answer) -> String {
    let Answer { package, finding, .. } = answer;
    let what = if answer.fixed { "without" } else { "with" };
    match answer.first.as_slice() {
        [] => format!("interrupted before the first release {what} {finding} was known"),
        [only] => format!("{package} {only} is the first release {what} {finding}"),
        [others @ .., last] => format!(
            "the first release {what} {finding} is one among {package} {} and {last}; the others could not \
             be tested",
            others.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Trial;
    use super::*;

    #[test]
    fn an_answer_is_a_block_to_paste() {
        let trial = |release: &str, shows, said: &str| Trial {
            release: release.to_owned(),
            shows,
            said: said.to_owned(),
        };
        let mut answer = Answer {
            package: "deepspeed".to_owned(),
            beside: "torch 2.11.0".to_owned(),
            finding: "ZP101 boundary-leak".to_owned(),
            fixed: false,
            first: vec!["0.18.5".to_owned()],
            releases: 6,
            trials: vec![
                trial("0.18.4", Some(false), "clean"),
                trial("0.18.5", Some(true), "ZP101 boundary-leak"),
                trial("0.18.9", Some(true), "ZP101 boundary-leak"),
            ],
            old_again: vec![],
        };
        let command = "zprobe bisect --package deepspeed --good 0.18.4 --bad 0.18.9";
        insta::assert_snapshot!("found", render(&answer, command, Form::Full).unwrap());
        answer.trials[1] = trial("0.18.5", None, "crashed: no such file");
        answer.first.push("0.18.6".to_owned());
        answer.old_again.push("0.18.8".to_owned());
        insta::assert_snapshot!("skipped", render(&answer, command, Form::Full).unwrap());
    }
}
