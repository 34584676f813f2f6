//! The rules of gitleaks: patterns for the tokens of about 200 services.
//!
//! The rule set is an unchanged file of gitleaks (`gitleaks/README.md` names its source). A rule is tried if the text
//! contains one of its keywords; one search finds the keywords of all rules. The expression of a rule is compiled when
//! the rule is first tried.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{LazyLock, OnceLock};

use aho_corasick::AhoCorasick;
use regex::bytes::{Regex, RegexBuilder};
use serde::Deserialize;

/// The text of the rule set.
const RULES: &str = include_str!("gitleaks/gitleaks.toml");

/// The id of the rule for assignments to the name of a secret, which is not used. [`super::assigned`] reads assignments
/// instead, because it finds values of only letters, and more names than this rule.
const GENERIC: &str = "generic-api-key";

/// The end of most expressions: the characters that may follow a value in source code.
const END: &str = r#"(?:[\x60'"\s;]|\\[nr]|$)"#;

/// The replacement for [`END`]: in prose, a token may also end at a bracket, a comma or a full stop.
const END_IN_PROSE: &str = r"(?:[^\w=+/-]|$)";

/// The rule set, as its file has it.
#[derive(Deserialize)]
struct File {
    rules: Vec<Written>,
}

/// A rule, as its file has it. The exceptions of a rule are not read, because they are for examples in code.
#[derive(Deserialize)]
struct Written {
    id: String,
    regex: Option<String>,
    #[serde(default)]
    keywords: Vec<String>,
    entropy: Option<f64>,
    #[serde(rename = "secretGroup")]
    group: Option<usize>,
}

/// A rule in the form in which it is applied to texts.
struct Rule {
    expression: String,
    entropy: f64,
    group: Option<usize>,
    compiled: OnceLock<Option<Regex>>,
}

/// All rules, with one search for all keywords.
struct Rules {
    rules: Vec<Rule>,
    /// The search for all keywords; the number of a keyword is the index of its rules in `of_keyword`.
    keywords: Option<AhoCorasick>,
    of_keyword: Vec<Vec<usize>>,
    /// The indices of the rules without a keyword, which are always tried.
    always: Vec<usize>,
}

static ALL: LazyLock<Rules> = LazyLock::new(|| Rules::read(RULES));

/// The byte ranges of all secrets that a rule finds.
pub(super) fn find(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    for at in ALL.tried(text) {
        ALL.rules[at].find(text, &mut found);
    }
    found
}

impl Rules {
    fn read(text: &str) -> Self {
        // The rule set is part of the program; a test checks that all of its rules can be read.
        let written = toml::from_str::<File>(text).map(|file| file.rules).unwrap_or_default();
        let mut all =
            Self { rules: Vec::new(), keywords: None, of_keyword: Vec::new(), always: Vec::new() };
        let mut keywords: Vec<String> = Vec::new();
        for rule in written.into_iter().filter(|rule| rule.id != GENERIC) {
            let Some(expression) = rule.regex else { continue };
            let at = all.rules.len();
            for keyword in &rule.keywords {
                let keyword = keyword.to_lowercase();
                let known = keywords.iter().position(|known| *known == keyword);
                let place = known.unwrap_or_else(|| {
                    keywords.push(keyword);
                    all.of_keyword.push(Vec::new());
                    keywords.len() - 1
                });
                all.of_keyword[place].push(at);
            }
            if rule.keywords.is_empty() {
                all.always.push(at);
            }
            all.rules.push(Rule {
                expression: expression.replace(END, END_IN_PROSE),
                entropy: rule.entropy.unwrap_or(0.0),
                group: rule.group,
                compiled: OnceLock::new(),
            });
        }
        all.keywords = AhoCorasick::builder().ascii_case_insensitive(true).build(keywords).ok();
        all
    }

    /// The indices of the rules to try: the rules with a keyword in the text, and the rules without any keyword.
    fn tried(&self, text: &str) -> BTreeSet<usize> {
        let found = self.keywords.iter().flat_map(|all| all.find_overlapping_iter(text));
        let rules = found.flat_map(|found| &self.of_keyword[found.pattern().as_usize()]);
        rules.chain(&self.always).copied().collect()
    }
}

impl Rule {
    fn regex(&self) -> Option<&Regex> {
        // Character classes only contain ASCII characters, as in gitleaks.
        let compile = || RegexBuilder::new(&self.expression).unicode(false).build().ok();
        self.compiled.get_or_init(compile).as_ref()
    }

    fn find(&self, text: &str, found: &mut Vec<Range<usize>>) {
        let Some(regex) = self.regex() else { return };
        for matched in regex.captures_iter(text.as_bytes()) {
            let first = || (1..matched.len()).find_map(|group| matched.get(group));
            let group = self.group.map_or_else(first, |group| matched.get(group));
            let Some(secret) = group.or_else(|| matched.get(0)) else { continue };
            if entropy(secret.as_bytes()) >= self.entropy {
                // A match of bytes may begin or end inside of a character, so the range is extended to whole
                // characters.
                let inside = |at: &usize| text.is_char_boundary(*at);
                let start = (0..=secret.start()).rev().find(inside).unwrap_or(0);
                found.push(start..(secret.end()..).find(inside).unwrap_or(text.len()));
            }
        }
    }
}

/// The Shannon entropy of these bytes, in bits per byte.
fn entropy(bytes: &[u8]) -> f64 {
    let mut counts = [0_u32; 256];
    bytes.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    let total = bytes.len() as f64;
    let part = |count: &u32| f64::from(*count) / total;
    -counts.iter().filter(|count| **count > 0).map(part).map(|p| p * p.log2()).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_of_the_file_is_read_and_can_be_compiled() {
        let written = RULES.lines().filter(|line| line.starts_with("regex = ")).count();
        assert_eq!((written, ALL.rules.len()), (221, 220), "all but the generic one");
        for rule in &ALL.rules {
            assert!(rule.regex().is_some(), "{}", rule.expression);
        }
        assert!(ALL.keywords.is_some() && ALL.always.is_empty());
    }

    #[test]
    fn the_rule_set_is_the_one_that_its_readme_names() {
        use sha2::Digest as _;
        let readme = include_str!("gitleaks/README.md");
        for file in [RULES, include_str!("gitleaks/LICENSE")] {
            let sum: String =
                sha2::Sha256::digest(file).iter().map(|byte| format!("{byte:02x}")).collect();
            assert!(readme.contains(&sum), "{sum}");
        }
    }

    #[test]
    fn a_token_may_stand_in_prose() {
        let token = format!("glsa_{}_0a1b2c3d", "aB3dE5gH7jK9mN1pQ2rS4tU6vW8xY0zA");
        for text in [format!("({token})"), format!("{token}, then"), format!("{token}.")] {
            let found = find(&text);
            assert!(found.iter().any(|range| text[range.clone()] == token), "{text}: {found:?}");
        }
        assert!(find("the digest 44b0cd6e3d926afe of 12 elements").is_empty());
    }
}
