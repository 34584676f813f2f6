//! TOML files that people write, read strictly: a complaint says the file, the line, the key, and what
//! was probably meant.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;

/// A table whose keys are long names of flags, with the place of each key and value.
pub type Flags = BTreeMap<Spanned<String>, Spanned<toml::Value>>;

/// How alike two words are, from 0 to 1, so that one may have been meant by the other.
const ALIKE: f64 = 0.6;

/// Characters of a complaint that are said: a complaint quotes the file, in which a word may be long.
const LONGEST_PROBLEM: usize = 2000;

/// Bytes of a word from which on nothing is like it: comparing takes as much memory as both are long.
const LONGEST_WORD: usize = 100;

/// A file and what stands in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Its path, as people know it.
    pub file: String,
    /// Its text.
    pub text: String,
}

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {problem}")]
pub struct Complaint {
    /// The file.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong, and what to write instead.
    pub problem: String,
}

impl Document {
    /// What the file says. Types that deny unknown fields get a suggestion for each of them.
    ///
    /// # Errors
    /// When it is not TOML, or not what `T` is.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Complaint> {
        toml::from_str(&self.text).map_err(|error| {
            let problem = unknown_field(error.message()).unwrap_or_else(|| {
                // The parser may add lines of help.
                error.message().lines().collect::<Vec<_>>().join("; ")
            });
            self.complain(error.span().unwrap_or(0..0), problem)
        })
    }

    /// A complaint about the text at these bytes.
    pub fn complain(&self, at: Range<usize>, problem: impl fmt::Display) -> Complaint {
        let (line, column) = self.place(at);
        let mut problem = problem.to_string();
        if let Some((end, _)) = problem.char_indices().nth(LONGEST_PROBLEM) {
            problem.truncate(end);
            problem.push('…');
        }
        Complaint { file: self.file.clone(), line, column, problem }
    }

    /// Line and column of the text at these bytes, from 1.
    pub fn place(&self, at: Range<usize>) -> (usize, usize) {
        let before = self.text.get(..at.start).unwrap_or(&self.text);
        let start = before.rfind('\n').map_or(0, |feed| feed + 1);
        (before.matches('\n').count() + 1, before[start..].chars().count() + 1)
    }
}

/// The known word that is most like this one, if any is like it.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .filter(|_| word.len() <= LONGEST_WORD)
        .map(|other| (strsim::normalized_damerau_levenshtein(word, other), other))
        .filter(|(likeness, _)| *likeness >= ALIKE)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, other)| other)
}

/// ``no such key `tilte`; did you mean `title`?``, or what there is where nothing is like it.
pub fn no_such<'a>(what: &str, word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    match nearest(word, known.iter().copied()) {
        Some(meant) => format!("no such {what} `{word}`; did you mean `{meant}`?"),
        None => format!("no such {what} `{word}`; there are {}", known.join(", ")),
    }
}

/// serde's words about an unknown field, as ours.
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
