//! Reads TOML files that people write, strictly: an error names the file, the line and the key, and suggests the key
//! that was probably meant.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;

/// A table whose keys are long names of flags, with the position of each key and value in the file.
pub type Flags = BTreeMap<Spanned<String>, Spanned<toml::Value>>;

/// The smallest similarity of two words, from 0 to 1, at which one word is suggested for the other.
const ALIKE: f64 = 0.6;

/// The largest number of characters of an error message. A message quotes the file, in which a word may be long.
const LONGEST_PROBLEM: usize = 2000;

/// The largest number of bytes of a word for which a similar word is searched for; the memory for comparing two words
/// grows with their lengths.
const LONGEST_WORD: usize = 100;

/// A file with its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The path of the file, as messages name it.
    pub file: String,
    /// The text of the file.
    pub text: String,
}

/// An error in a file, with its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {problem}")]
pub struct Complaint {
    /// The path of the file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The description of the error, with the correction if it is known.
    pub problem: String,
}

impl Document {
    /// Reads the file as a value of type `T`. If `T` denies unknown fields, the error about an unknown field suggests a
    /// known field.
    ///
    /// # Errors
    /// If the file is not TOML, or does not have the form of `T`.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Complaint> {
        toml::from_str(&self.text).map_err(|error| {
            let problem = unknown_field(error.message()).unwrap_or_else(|| {
                // The message of the parser may have several lines.
                error.message().lines().collect::<Vec<_>>().join("; ")
            });
            self.complain(error.span().unwrap_or(0..0), problem)
        })
    }

    /// Makes an error at this range of bytes of the text.
    pub fn complain(&self, at: Range<usize>, problem: impl fmt::Display) -> Complaint {
        let (line, column) = self.place(at);
        let mut problem = problem.to_string();
        if let Some((end, _)) = problem.char_indices().nth(LONGEST_PROBLEM) {
            problem.truncate(end);
            problem.push('…');
        }
        Complaint { file: self.file.clone(), line, column, problem }
    }

    /// The line and the column of a range of bytes of the text, both from 1.
    pub fn place(&self, at: Range<usize>) -> (usize, usize) {
        let before = self.text.get(..at.start).unwrap_or(&self.text);
        let start = before.rfind('\n').map_or(0, |feed| feed + 1);
        (before.matches('\n').count() + 1, before[start..].chars().count() + 1)
    }
}

/// The known word that is most similar to `word`; `None` if no known word is similar enough.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .filter(|_| word.len() <= LONGEST_WORD)
        .map(|other| (strsim::normalized_damerau_levenshtein(word, other), other))
        .filter(|(likeness, _)| *likeness >= ALIKE)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, other)| other)
}

/// A message such as ``no such key `tilte`; did you mean `title`?``. If no known word is similar, the message lists all
/// known words.
pub fn no_such<'a>(what: &str, word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    match nearest(word, known.iter().copied()) {
        Some(meant) => format!("no such {what} `{word}`; did you mean `{meant}`?"),
        None => format!("no such {what} `{word}`; use one of {}", known.join(", ")),
    }
}

/// The message of [`no_such`] for serde's message about an unknown field; `None` for other messages of serde.
fn unknown_field(message: &str) -> Option<String> {
    let rest = message.strip_prefix("unknown field `")?;
    let (field, rest) = rest.split_once('`')?;
    Some(no_such("key", field, rest.split('`').skip(1).step_by(2)))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Own {
        #[allow(dead_code, reason = "only whether it can be read matters")]
        title: String,
        #[allow(dead_code, reason = "only whether it can be read matters")]
        lines: u8,
    }

    fn complaint(text: &str) -> String {
        let document = Document { file: "own.toml".to_owned(), text: text.to_owned() };
        document.read::<Own>().unwrap_err().to_string()
    }

    #[test]
    fn a_complaint_names_the_place_and_what_was_probably_meant() {
        let complaints = [
            "lines = 1\n  tilte = 'x'\n",
            "title = 'ä'\nlines = 1\nwidth = 3\n",
            "title = 'x'\nlines = 'many'\n",
            "title = 'x'\nlines = 1\nlines = 2\n",
            "title = \n",
            "title = 'x'\n",
        ]
        .map(complaint);
        insta::assert_snapshot!(complaints.join("\n"));
    }

    #[test]
    fn a_complaint_stays_short_however_long_the_words_of_the_file() {
        let word = "x".repeat(1 << 20);
        for text in [
            format!("{word} = 1"),
            word.clone(),
            format!("title = 'x'\nlines = '{word}'"),
            format!("title = {}1{}", "[".repeat(1 << 16), "]".repeat(1 << 16)),
            format!("title.{} = 1", "a.".repeat(1 << 16) + "a"),
        ] {
            let said = complaint(&text);
            assert!(said.len() < 5_000, "{} bytes: {said:.300}", said.len());
        }
    }

    #[test]
    fn a_word_that_is_like_none_has_no_nearest() {
        assert_eq!(nearest("stgae", ["steps", "stage"]), Some("stage"));
        assert_eq!(nearest("colour", ["steps", "stage"]), None);
    }
}
