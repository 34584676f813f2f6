//! Planted secrets: zprobe's output contains none of them, whatever the form and the place of the secret.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod bench;
mod kept;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use bench::Bench;
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::string::string_regex;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::json;
use table::{ROWS, Row};

/// The place where a secret is planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// An environment variable of this name, whose value a rank repeated in four forms.
    Environment(&'static str),
    /// A value of the DeepSpeed file at this pointer, which a rank repeated in its own words.
    Config(&'static str),
    /// A fact of this name, with which the engine describes itself.
    Fact(&'static str),
    /// The version of a package.
    Version,
    /// A line of a rank's standard error.
    Log,
    /// Several lines of a rank's standard error, with nothing else around them.
    LogLines,
    /// A line of a rank's standard output.
    Stdout,
    /// The message with which a rank reports its failure.
    Message,
    /// The recorded end of a rank's standard error.
    Tail,
    /// The smallest command that shows a finding.
    Argument,
    /// An environment variable that engines read, which the report shows with its value.
    Variable(&'static str),
    /// A line of one log that marks a text as a secret, and a line of another log that repeats the text
    /// without a mark.
    Known,
    /// A name or a path, which is no secret, in a line of a rank's standard error.
    NameInLog,
    /// A name or a path in the message with which a rank reports its failure.
    NameInMessage,
    /// A name in an environment variable, which a rank repeated.
    NameVariable(&'static str),
}

impl Place {
    /// True if the value stays in exports that users make for themselves.
    fn is_name(self) -> bool {
        matches!(self, Self::NameInLog | Self::NameInMessage | Self::NameVariable(_))
    }
}

/// A row with the secret that was drawn for the row.
pub struct Planted {
    row: &'static Row,
    secret: String,
    /// The text of the row, with the secret in it.
    text: String,
    /// Parts of the secret, of [`WINDOW`] characters each, that another secret of this form does not have.
    telling: Vec<String>,
}

impl Planted {
    /// True if the secret needs a run of its own: half of a key redacts everything before or after it.
    fn is_alone(&self) -> bool {
        let marks = ["BEGIN", "END"].map(|mark| self.row.text.contains(mark));
        marks[0] != marks[1]
    }
}

/// The length of the parts that are searched for, in characters, so that half of a secret is found, too.
const WINDOW: usize = 10;

/// The seed of all secrets; another seed changes all secrets.
const SEED: &[u8; 32] = b"planted secrets of this campaign";

/// Every row with its secret.
fn planted() -> Vec<Planted> {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, SEED);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let mut draw = |pattern: &str| {
        let strategy = string_regex(pattern).unwrap();
        strategy.new_tree(&mut runner).unwrap().current()
    };
    let mut all = Vec::new();
    for row in ROWS {
        let (secret, other) = (draw(row.pattern), draw(row.pattern));
        let windows = |text: &str| -> BTreeSet<String> {
            let text: Vec<char> = bench::plain(text).chars().collect();
            text.windows(WINDOW.min(text.len())).map(|part| part.iter().collect()).collect()
        };
        let telling = windows(&secret).difference(&windows(&other)).cloned().collect();
        all.push(Planted { row, text: row.text.replace("{}", &secret), secret, telling });
    }
    all
}

/// The planted secrets that occur in any of the files, each with the paths of these files.
fn found<'a>(
    planted: impl Iterator<Item = &'a Planted>,
    files: &[(String, String)],
) -> BTreeMap<String, Vec<String>> {
    let files: Vec<(&String, String)> =
        files.iter().map(|(path, text)| (path, bench::plain(text))).collect();
    let mut found = BTreeMap::new();
    for it in planted {
        let places: BTreeSet<&str> = files
            .iter()
            .filter(|(_, text)| it.telling.iter().any(|part| text.contains(part)))
            .map(|(path, _)| path.as_str())
            .collect();
        if !places.is_empty() {
            let Row { form, place, text, .. } = it.row;
            let row = format!("{form}, {place:?}, `{text}`: {}", it.secret);
            found.insert(row, places.into_iter().map(str::to_owned).collect());
        }
    }
    found
}

#[test]
fn no_planted_secret_leaves_in_a_report_or_in_any_exported_form() {
    let all = planted();
    assert!(all.len() >= 200, "{}", all.len());
    for it in &all {
        assert!(!it.telling.is_empty(), "{} tells nothing", it.row.text);
    }
    let mut left: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let together: Vec<&Planted> = all.iter().filter(|it| !it.is_alone()).collect();
    let alone = all.iter().filter(|it| it.is_alone()).map(|it| vec![it]);
    for group in std::iter::once(together).chain(alone) {
        let bench = Bench::with(&group);
        let secrets = group.iter().copied().filter(|it| !it.row.place.is_name());
        let attached = found(group.iter().copied(), &bench.attachments());
        for (row, places) in attached.into_iter().chain(found(secrets, &bench.exports())) {
            left.entry(row).or_default().extend(places);
        }
    }
    let rows: Vec<String> =
        left.iter().map(|(row, places)| format!("{row} in {places:?}")).collect();
    assert!(left.is_empty(), "{} of {} left:\n{}", left.len(), all.len(), rows.join("\n"));
}

/// The files in which the words of a rank may stand, because they are for the user's own terminal.
const ON_A_TERMINAL: &[&str] = &["full", "brief"];

#[test]
fn the_words_of_a_rank_are_only_on_the_terminal_and_in_the_run_directory() {
    let bench = Bench::of("rank-dies", &[]);
    // Nothing shows that this word is a secret.
    let word = "whollyunlikelyword";
    bench.append(Some(1), &json!({"type": "failed", "message": format!("ValueError: no {word}")}));
    let tail = format!("Traceback\nValueError: no {word}");
    bench.append(None, &json!({"type": "stderr", "rank": 1, "tail": tail}));
    let line = format!("got {word}");
    bench.append(
        None,
        &json!({"type": "protocol-violated", "rank": 0, "violation": "not-json", "line": line}),
    );
    let exports = bench.exports();
    assert!(exports.len() > 10, "{}", exports.len());
    for (form, text) in exports {
        let is_for_a_terminal = ON_A_TERMINAL.contains(&form.as_str());
        assert_eq!(text.contains(word), is_for_a_terminal, "{form}:\n{text}");
        // A line of the concise form has no consequences of the finding.
        assert!(text.contains("ValueError") || form == "concise", "{form}:\n{text}");
    }
    assert!(bench.trace().contains(word));
}

#[test]
fn a_run_keeps_no_secret_of_its_configuration_and_its_rank_gets_it_all_the_same() {
    let bench = Bench::of("rank-dies", &[]);
    let secret = "wholly unlikely word".replace(' ', "");
    let config = json!({
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
        "bf16": {"enabled": true}, "zero_optimization": {"stage": 1},
        "comet": {"enabled": false, "api_key": secret},
    });
    fs::write(bench.dir().join("ds.json"), config.to_string()).unwrap();
    let rank = format!(
        "echo started with {secret} >&2; echo the monitor has {secret}; \
         env | grep -c {secret} > {}/seen-$RANK; exit 1",
        bench.dir().display(),
    );
    let output = bench.zprobe(&[
        "run",
        "--engine",
        "deepspeed",
        "--deepspeed-config",
        "ds.json",
        "--out",
        "out",
        "--export-html",
        "page.html",
        "--rank-program",
        "/bin/sh",
        "--",
        "-c",
        &rank,
    ]);
    assert_eq!(output.status.code(), Some(3), "{}", bench::said(&output));
    assert_eq!(fs::read_to_string(bench.dir().join("seen-0")).unwrap(), "1\n");
    let page = fs::read_to_string(bench.dir().join("page.html")).unwrap();
    let mut texts = vec![bench::said(&output), page];
    for entry in fs::read_dir(bench.dir().join("out")).unwrap() {
        texts.push(fs::read_to_string(entry.unwrap().path()).unwrap());
    }
    assert!(texts.len() > 6, "{}", texts.len());
    for text in &texts {
        assert!(!text.contains(&secret), "{text}");
    }
    let said = bench::said(&output).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("replaced by <secret> in the trace and the report"), "{said}");
}

#[test]
fn the_command_that_a_form_for_other_programs_tells_has_no_secrets() {
    let bench = Bench::of("rank-dies", &[]);
    for form in ["junit", "sarif", "github"] {
        let output = bench.zprobe(&[
            "diagnose",
            ".zprobe/runs/run",
            "--output-format",
            form,
            "--export-json",
            "out.json?password=whollyunlikelyword",
        ]);
        let text = bench::said(&output);
        assert!(!text.contains("whollyunlikelyword") && text.contains("ZP901"), "{form}: {text}");
    }
}

#[test]
fn the_command_that_makes_a_run_again_has_no_secrets() {
    let bench = Bench::of("rank-dies", &[]);
    for form in ["full", "concise", "json", "markdown", "junit", "sarif", "github"] {
        let output = bench.zprobe(&[
            "run",
            "--engine",
            "deepspeed",
            "--deepspeed-set",
            "comet.api_key=whollyunlikelyword",
            "--rank-program",
            "/bin/false",
            "--output-format",
            form,
            "--export-html",
            "page.html",
        ]);
        let page = fs::read_to_string(bench.dir().join("page.html")).unwrap();
        for text in [bench::said(&output), page] {
            assert!(!text.contains("whollyunlikelyword"), "{form}: {text}");
            assert!(text.contains("comet.api_key=") || form == "concise", "{form}: {text}");
        }
    }
}
