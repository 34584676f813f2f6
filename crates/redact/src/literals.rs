//! Searches for texts that are known to be private, in all of their forms.

use std::collections::BTreeMap;
use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};

use super::{Kind, forms};

/// The smallest number of bytes of a secret of only letters or only digits that is also searched for inside of words.
const LEAST_INSIDE: usize = 8;

/// A search for many texts at once, in which the longest match wins.
#[derive(Default)]
pub(super) struct Literals {
    search: Option<AhoCorasick>,
    /// The kind of each text, and true if the text is only found as a separate word.
    kinds: Vec<(Kind, bool)>,
}

impl Literals {
    /// Makes a search for these texts, in all of their forms.
    pub(super) fn new(literals: impl IntoIterator<Item = (String, Kind)>) -> Self {
        let mut known = BTreeMap::new();
        for (text, kind) in literals {
            let plain = text.len() < LEAST_INSIDE
                && (text.bytes().all(|byte| byte.is_ascii_digit())
                    || text.chars().all(char::is_alphabetic));
            let alone = kind != Kind::Secret || plain;
            for form in forms::of(&text, kind) {
                known.entry(form.to_ascii_lowercase()).or_insert((kind, alone));
            }
        }
        if known.is_empty() {
            return Self::default();
        }
        let (texts, kinds): (Vec<String>, Vec<(Kind, bool)>) = known.into_iter().unzip();
        let search = AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .match_kind(MatchKind::LeftmostLongest)
            .build(texts)
            .ok();
        Self { search, kinds }
    }

    /// The byte ranges of all texts that are found. A path, a name or a short secret is only found as a separate word.
    pub(super) fn find(&self, text: &str) -> Vec<(Range<usize>, Kind)> {
        let mut found = Vec::new();
        for it in self.search.iter().flat_map(|search| search.find_iter(text)) {
            let (kind, alone) = self.kinds[it.pattern().as_usize()];
            let (before, behind) = (&text[..it.start()], &text[it.end()..]);
            let fits = match kind {
                _ if !alone => true,
                Kind::Secret | Kind::User | Kind::Host => is_word(before, behind),
                _ => is_path(before, behind),
            };
            if fits {
                found.push((it.range(), kind));
            }
        }
        found
    }
}

/// Returns true if a match is a complete path, and not a part of a longer name: `/home/al` is not found in
/// `/home/alice`.
fn is_path(before: &str, behind: &str) -> bool {
    let in_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    !before.ends_with(|c: char| c.is_alphanumeric()) && !behind.starts_with(in_name)
}

/// Returns true if a match is a separate word: `al` is not found in `total`.
fn is_word(before: &str, behind: &str) -> bool {
    let in_word = |c: char| c.is_alphanumeric();
    // The last character of a percent escape is a letter or a digit, but not a part of a word.
    let escaped = before.len() >= 3
        && before.is_char_boundary(before.len() - 3)
        && before[before.len() - 3..].starts_with('%');
    (escaped || !before.ends_with(in_word)) && !behind.starts_with(in_word)
}
