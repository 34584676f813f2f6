//! The account of a rank's failure: the part of the rank's own words that reports have.
//!
//! The words of a rank (the message of an exception, the standard error, an invalid line) may quote anything: data,
//! paths, passwords. They stay in the trace and in the logs of the run directory. A report has the type of the
//! exception, its place in the code of a package, and the phrases by which zprobe recognises failures, which are
//! zprobe's own text.

use std::sync::LazyLock;

use regex::Regex;

use crate::observed::SYMPTOMS;
use crate::signatures::SIGNATURES;
use zprobe_model::trace::Event;
use zprobe_zoo::phrases as of_known_bugs;

/// The account of a message without a type, a place and a known phrase.
const NOTHING: &str = "an error of unknown type";

/// The longest name of a type in an account, in bytes.
const LONGEST_TYPE: usize = 64;

/// The name of a type at the beginning of a message: a class, or the call `sys.exit`.
static TYPE: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*[a-z]\w*|sys\.exit)(?:[:(]|$| \()").ok()
});

/// The place at the end of a message: `(deepspeed/runtime/engine.py:2004, in step)`.
static PLACE: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r" (?P<place>\((?:[\w.+-]+/)*[\w.+-]+\.py:\d+, in [\w<>.]+\))$").ok()
});

/// The account of a failure: `RuntimeError: not implemented for 'Half' (torch/nn/functional.py:12, in linear)`. The
/// account of an account is the account itself.
pub fn account(message: &str) -> String {
    let part = |pattern: &LazyLock<Option<Regex>>| {
        let found = pattern.as_ref()?.captures(message)?;
        found.get(1).map(|part| part.as_str())
    };
    let kind = part(&TYPE).filter(|kind| kind.len() <= LONGEST_TYPE).unwrap_or_default();
    let said: Vec<&str> =
        phrases(message).into_iter().filter(|phrase| !kind.contains(phrase)).collect();
    let said = said.join(", ");
    let text = match (kind, said.as_str()) {
        ("", "") => NOTHING.to_owned(),
        (kind, "") => kind.to_owned(),
        ("", said) => said.to_owned(),
        (kind, said) => format!("{kind}: {said}"),
    };
    match part(&PLACE) {
        Some(place) => format!("{text} {place}"),
        None => text,
    }
}

/// The phrases in a text by which zprobe recognises failures. A phrase that is part of a longer one is left out.
pub fn phrases(text: &str) -> Vec<&'static str> {
    static ALL: LazyLock<Vec<&str>> = LazyLock::new(|| {
        let signatures = SIGNATURES.iter().flat_map(|it| it.contains).copied();
        signatures.chain(SYMPTOMS.iter().copied()).chain(of_known_bugs()).collect()
    });
    let mut found: Vec<&'static str> = Vec::new();
    for &phrase in ALL.iter().filter(|phrase| text.contains(**phrase)) {
        if !found.iter().any(|known| known.contains(phrase)) {
            found.retain(|known| !phrase.contains(known));
            found.push(phrase);
        }
    }
    found
}

/// The event with accounts in place of a rank's own words.
#[must_use]
pub fn without_words(event: Event) -> Event {
    match event {
        Event::Failed { message } => Event::Failed { message: account(&message) },
        Event::Stderr { rank, tail } => Event::Stderr { rank, tail: phrases(&tail).join("\n") },
        Event::ProtocolViolated { rank, violation, .. } => {
            Event::ProtocolViolated { rank, violation, line: String::new() }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_has_the_type_the_place_and_known_phrases() {
        for (message, expected) in [
            ("ValueError: the token is hunter2", "ValueError"),
            ("torch.OutOfMemoryError: tried 2 GiB", "torch.OutOfMemoryError"),
            ("KeyError", "KeyError"),
            ("sys.exit('hunter2')", "sys.exit"),
            ("hunter2 is no type", NOTHING),
            ("hunter2: is none either", NOTHING),
            ("RuntimeError: line\nhunter2 (/home/bob/x.py:3, in f)", "RuntimeError"),
            (
                "IndexError: list index out of range for hunter2 (deepspeed/runtime/engine.py:2004, in step)",
                "IndexError: list index out of range (deepspeed/runtime/engine.py:2004, in step)",
            ),
            ("Connection closed by peer hunter2", "Connection closed by peer"),
        ] {
            let told = account(message);
            assert_eq!(told, expected);
            assert_eq!(account(&told), told);
        }
    }

    #[test]
    fn every_known_bug_is_recognised_in_the_account_of_its_message() {
        for phrase in of_known_bugs() {
            assert!(
                account(&format!("RuntimeError: so {phrase} it is")).contains(phrase),
                "{phrase}"
            );
        }
    }
}
