//! Searches for texts that are known to be private, in all forms in which a text may contain them: unchanged, escaped
//! for JSON or for a URL, or in base64.

use std::collections::BTreeMap;
use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};
use base64::Engine as _;
use base64::engine::general_purpose::{GeneralPurpose, STANDARD, URL_SAFE};

use super::Kind;

/// The smallest length of base64 (in characters) and of secrets of only letters or only digits (in bytes) that are
/// searched for inside of words. Shorter texts would be found by chance.
const LEAST_INSIDE: usize = 8;

/// A search for many texts at once. Of overlapping matches, the leftmost and longest match wins.
#[derive(Default)]
pub(super) struct Search {
    search: Option<AhoCorasick>,
    /// The kind of each text, and a flag that is true if the text must be a separate word to be found.
    kinds: Vec<(Kind, bool)>,
}

impl Search {
    /// Makes a search for these texts, in all of their forms.
    pub(super) fn new(texts: impl IntoIterator<Item = (String, Kind)>) -> Self {
        let mut known = BTreeMap::new();
        for (text, kind) in texts {
            let is_plain = text.len() < LEAST_INSIDE
                && (text.bytes().all(|byte| byte.is_ascii_digit())
                    || text.chars().all(char::is_alphabetic));
            for form in forms(&text, kind) {
                let alone = kind != Kind::Secret || is_plain;
                known.entry(form.to_ascii_lowercase()).or_insert((kind, alone));
            }
        }
        let (texts, kinds): (Vec<String>, Vec<(Kind, bool)>) = known.into_iter().unzip();
        let search = AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .match_kind(MatchKind::LeftmostLongest)
            .build(texts)
            .ok();
        Self { search: search.filter(|_| !kinds.is_empty()), kinds }
    }

    /// The byte ranges of all texts that are found.
    pub(super) fn find(&self, text: &str) -> Vec<(Range<usize>, Kind)> {
        let found = self.search.iter().flat_map(|search| search.find_iter(text));
        let found = found.map(|it| (it.range(), self.kinds[it.pattern().as_usize()]));
        let fits = |(range, (kind, alone)): &(Range<usize>, (Kind, bool))| {
            let is_name = matches!(kind, Kind::Secret | Kind::User | Kind::Host);
            !alone || is_apart(&text[..range.start], &text[range.end..], is_name)
        };
        found.filter(fits).map(|(range, (kind, _))| (range, kind)).collect()
    }
}

/// Returns true if a match is a separate word, or a complete path if `is_word` is false: `al` is not found in `total`,
/// and `/home/al` is not found in `/home/al-2`.
fn is_apart(before: &str, after: &str, is_word: bool) -> bool {
    // The last character of a percent escape is a letter or a digit, but not a part of a word.
    let escaped = before.len() >= 3 && before.as_bytes()[before.len() - 3] == b'%';
    let goes_on = |c: char| c.is_alphanumeric() || !is_word && matches!(c, '_' | '-');
    (is_word && escaped || !before.ends_with(char::is_alphanumeric)) && !after.starts_with(goes_on)
}

/// All forms of a text. Only secrets are also searched for in base64, where a text may begin at any of three byte
/// offsets.
fn forms(text: &str, kind: Kind) -> Vec<String> {
    let json = serde_json::Value::from(text).to_string();
    let json = json[1..json.len() - 1].to_owned();
    // A path in a URL may be escaped except for its slashes.
    let urls = ["-._~", "-._~/"].map(|stays| percent(text, stays));
    let mut forms = vec![text.to_owned(), json.replace('/', "\\/"), json];
    forms.extend(urls);
    if kind == Kind::Secret {
        let engines = [&STANDARD, &URL_SAFE].into_iter();
        forms.extend(engines.flat_map(|it| (0..3).filter_map(|shift| base64(text, shift, it))));
    }
    forms
}

fn percent(text: &str, stays: &str) -> String {
    let escaped = |c: char| match c.is_ascii_alphanumeric() || stays.contains(c) {
        true => c.to_string(),
        false => c.to_string().bytes().map(|byte| format!("%{byte:02X}")).collect(),
    };
    text.chars().map(escaped).collect()
}

/// The base64 characters of a text that follows `shift` other bytes, as far as the characters depend only on the text.
fn base64(text: &str, shift: usize, engine: &GeneralPurpose) -> Option<String> {
    let encoded = engine.encode([&vec![0; shift], text.as_bytes()].concat());
    let kept = encoded.get((8 * shift).div_ceil(6)..8 * (shift + text.len()) / 6)?;
    (kept.len() >= LEAST_INSIDE).then(|| kept.to_owned())
}
