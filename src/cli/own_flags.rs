//! Restricts help, completions and error hints to the flags of the engine that a command line chooses.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error, ValueEnum as _};
use zprobe_model::document::nearest;
use zprobe_model::spec::Engine;
use zprobe_model::spec::settings::{ALL, Description};

/// The name of the command whose flags depend on the engine.
const RUN: &str = "run";

/// The engine of a `zprobe run` command line: from `--engine`, or else from the variable `ZPROBE_ENGINE`.
fn engine(words: &[OsString]) -> Option<Engine> {
    let words: Vec<&str> = words.iter().skip(1).map_while(|word| word.to_str()).collect();
    let mut after = words.iter().skip_while(|word| **word != RUN);
    after.next()?;
    let flags: Vec<&str> = after.copied().take_while(|word| *word != "--").collect();
    let value = |(at, word): (usize, &&str)| match word.strip_prefix("--engine")? {
        "" => flags.get(at + 1).map(|value| (*value).to_owned()),
        rest => rest.strip_prefix('=').map(str::to_owned),
    };
    let chosen = flags.iter().enumerate().filter_map(value).next_back();
    let chosen = chosen.or_else(|| std::env::var("ZPROBE_ENGINE").ok())?;
    Engine::from_str(&chosen, false).ok()
}

/// The settings that an engine does not have.
fn foreign(engine: Engine) -> impl Iterator<Item = Description> {
    let all = ALL.iter().map(|setting| setting.describe());
    all.filter(move |setting| !setting.engines.contains(&engine))
}

/// The command, with the flags hidden that the engine of this command line does not have. The help of `zprobe run`
/// then names the engine.
pub fn alone(command: Command, words: &[OsString]) -> Command {
    let Some(engine) = engine(words) else { return command };
    command.mut_subcommand(RUN, |run| {
        let run = run.mut_args(|arg| {
            let is_foreign = foreign(engine)
                .any(|setting| setting.flag.strip_prefix("--") == arg.get_long());
            if is_foreign { arg.hide(true) } else { arg }
        });
        run.after_long_help(format!(
            "These are the flags that {engine} has; without --engine, the help lists the flags of all engines."
        ))
    })
}

/// Adds to a clap error the command, value or flag that the user probably meant; flags only if the engine has them.
pub fn hinted(mut error: Error, command: &Command, words: &[OsString]) -> Error {
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let known = command.get_subcommands().filter(|sub| !sub.is_hide_set());
            let known = known.map(Command::get_name).collect::<Vec<_>>();
            suggest(
                &mut error,
                ContextKind::InvalidSubcommand,
                ContextKind::SuggestedSubcommand,
                &known,
            );
        }
        ErrorKind::InvalidValue => {
            let known = match error.get(ContextKind::ValidValue) {
                Some(ContextValue::Strings(known)) => known.clone(),
                _ => vec![],
            };
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            suggest(&mut error, ContextKind::InvalidValue, ContextKind::SuggestedValue, &known);
        }
        ErrorKind::UnknownArgument => match engine(words) {
            Some(engine) => of_engine(&mut error, command, engine),
            None => before_command(&mut error, words),
        },
        _ => {}
    }
    error
}

/// Suggests the known word closest to the invalid one if clap suggests none.
fn suggest(error: &mut Error, invalid: ContextKind, suggested: ContextKind, known: &[&str]) {
    let Some(ContextValue::String(word)) = error.get(invalid) else { return };
    let meant = nearest(word, known.iter().copied()).map(str::to_owned);
    if let Some(meant) = meant.filter(|_| error.get(suggested).is_none()) {
        let _ = match suggested {
            ContextKind::SuggestedSubcommand => {
                error.insert(suggested, ContextValue::Strings(vec![meant]))
            }
            _ => error.insert(suggested, ContextValue::String(meant)),
        };
    }
}

/// Suggests the command line of `zprobe exec` with `--` before the word that clap does not know, unless that word is a
/// flag.
fn before_command(error: &mut Error, words: &[OsString]) {
    let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    let Some(ContextValue::String(invalid)) = error.get(ContextKind::InvalidArg) else { return };
    let mut at = words.iter().enumerate().skip_while(|(_, word)| **word != "exec").skip(1);
    let Some((start, _)) = at.find(|(_, word)| *word == invalid) else { return };
    let (own, script) = words.split_at(start);
    let right = ["zprobe"].iter().chain(&own[1..]).chain(&["--"]).chain(script).copied();
    if let (false, Ok(right)) = (invalid.starts_with('-'), shlex::try_join(right)) {
        let tip = format!("the command of the script follows '--': {right}");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
}

/// Removes clap's suggestion of a flag that the engine does not have. Suggests the closest flag that the engine
/// has, and names the engines that have the other flag.
fn of_engine(error: &mut Error, command: &Command, engine: Engine) {
    let text = |error: &Error, kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let suggested = text(error, ContextKind::SuggestedArg).unwrap_or_default();
    let Some(setting) = foreign(engine).find(|setting| setting.flag == suggested) else { return };
    // clap's usage line names the removed flag, too.
    error.remove(ContextKind::Usage);
    error.remove(ContextKind::SuggestedArg);
    let invalid = text(error, ContextKind::InvalidArg).unwrap_or_default();
    let run = command.find_subcommand(RUN);
    let flags = run.into_iter().flat_map(Command::get_arguments).filter_map(|arg| arg.get_long());
    let own: Vec<String> = flags
        .map(|flag| format!("--{flag}"))
        .filter(|flag| foreign(engine).all(|setting| setting.flag != flag))
        .collect();
    if let Some(meant) = nearest(&invalid, own.iter().map(String::as_str)) {
        error.insert(ContextKind::SuggestedArg, ContextValue::String(meant.to_owned()));
    }
    let have: Vec<&str> = setting.engines.iter().map(|engine| engine.name()).collect();
    let tip = format!(
        "{engine} has no '{}'; engines that have it: {}. `zprobe run --engine {engine} --help` shows what {engine} \
         has",
        setting.flag,
        have.join(", "),
    );
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    /// The complaint about a command line, without styles.
    fn complaint(line: &str) -> String {
        let (command, words) = (super::super::Cli::command(), words(line));
        let error = command.clone().try_get_matches_from(&words).expect_err("a complaint");
        hinted(error, &command, &words).to_string()
    }

    #[test]
    fn only_flags_that_the_engine_has_are_suggested() {
        let text = complaint("zprobe run --engine ddp --offlaod cpu");
        assert!(
            text.contains("ddp has no '--offload'; engines that have it: native, deepspeed"),
            "{text}"
        );
        assert!(!text.contains("exists: '--offload'") && !text.contains("Usage"), "{text}");
        let text = complaint("zprobe run --engine=deepspeed --offlaod cpu");
        assert!(text.contains("exists: '--offload'"), "{text}");
    }

    #[test]
    fn a_script_without_a_double_dash_is_answered_with_the_right_command() {
        let text = complaint("zprobe exec --timeout 60 torchrun --nproc_per_node 2 train.py");
        let right = "zprobe exec --timeout 60 -- torchrun --nproc_per_node 2 train.py";
        assert!(text.contains(&format!("follows '--': {right}\n")), "{text}");
        assert!(!complaint("zprobe exec --tiemout 60 -- torchrun").contains("follows"));
        assert!(!complaint("zprobe run exec").contains("follows"));
    }

    #[test]
    fn a_word_that_is_nearly_right_is_answered_with_the_right_one() {
        for (line, meant) in [
            ("zprobe rnu", "'run'"),
            ("zprobe chekc", "'check'"),
            ("zprobe run --engine dpd", "'ddp'"),
            ("zprobe run --shape tyed", "'tied'"),
        ] {
            let text = complaint(line);
            assert!(text.contains(&format!("exists: {meant}")), "{line}: {text}");
        }
    }

    #[test]
    fn the_help_of_an_engine_has_its_flags_alone() {
        let help = |line: &str| {
            let command = alone(super::super::Cli::command(), &words(line));
            let mut command = command.find_subcommand(RUN).expect("run").clone();
            command.render_long_help().to_string()
        };
        let (ddp, all) = (help("zprobe run --engine ddp --help"), help("zprobe run --help"));
        assert!(ddp.contains("--static-graph") && !ddp.contains("--offload <"), "{ddp}");
        assert!(ddp.contains("These are the flags that ddp has"), "{ddp}");
        assert!(all.contains("--static-graph") && all.contains("--offload <"), "{all}");
    }
}
