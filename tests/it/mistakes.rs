//! The mistakes of `fixtures/mistakes`: each can be planted in the training script that it names.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Deserialize;

/// The number of mistakes that the collection has to have at least.
const ENOUGH: usize = 25;

/// The content of `mistakes.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mistakes {
    mistake: Vec<Mistake>,
}

/// A mistake, as the head of `mistakes.toml` describes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mistake {
    name: String,
    script: String,
    world: usize,
    flags: String,
    wrong: String,
    finding: Finding,
    #[serde(default)]
    note: bool,
    #[serde(default)]
    ranks: Vec<usize>,
    #[serde(default)]
    microbatches: Vec<usize>,
    #[serde(default)]
    parameters: Vec<String>,
    says: String,
    edit: Vec<Edit>,
}

/// The content of `public.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bugs {
    bug: Vec<Bug>,
}

/// A bug of a released trainer, as the head of `public.toml` describes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bug {
    name: String,
    package: String,
    sources: Vec<String>,
    script: String,
    world: usize,
    #[serde(rename = "flags")]
    _flags: String,
    wrong: String,
    #[serde(rename = "finding")]
    _finding: Finding,
    #[serde(default)]
    bad: BTreeMap<String, String>,
    #[serde(default)]
    good: BTreeMap<String, String>,
    #[serde(rename = "fixed")]
    _fixed: Option<String>,
    #[serde(rename = "seen")]
    _seen: Option<String>,
    #[serde(default)]
    edit: Vec<Edit>,
}

/// The content of `blind.toml`.
#[derive(Deserialize)]
struct Blind {
    mistake: Vec<Change>,
    harmless: Vec<Change>,
}

/// A change of `blind.toml`: either a mistake or a harmless change.
#[derive(Deserialize)]
struct Change {
    name: String,
    script: String,
    edit: Vec<Edit>,
}

/// The kinds of findings, which the head of `mistakes.toml` explains.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case")]
enum Finding {
    NeverReduced,
    NotReduced,
    ReducedTooOften,
    ScheduledTooOften,
    Lost,
    EarlierSteps,
    NothingArrives,
    Weight,
    Factor,
    UnequalTokens,
    ExtraLoss,
    NotInOptimizer,
    TwiceInOptimizer,
    ChangedBeforeStep,
    UnequalMicrobatches,
    WindowsDiffer,
    StepSkipped,
    NotUsed,
}

/// A replacement of `old`, which occurs once in the file, by `new`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Edit {
    file: Option<String>,
    old: String,
    new: String,
}

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn mistakes() -> Vec<Mistake> {
    toml::from_str::<Mistakes>(&read("fixtures/mistakes/mistakes.toml")).unwrap().mistake
}

fn bugs() -> Vec<Bug> {
    toml::from_str::<Bugs>(&read("fixtures/mistakes/public.toml")).unwrap().bug
}

/// True for a script of `fixtures/frameworks`.
fn is_of_framework(script: &str) -> bool {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/frameworks").join(script).is_file()
}

/// The changes of `fixtures/frameworks/set.toml`, which has the form of `blind.toml`.
fn of_frameworks() -> Blind {
    toml::from_str(&read("fixtures/frameworks/set.toml")).unwrap()
}

fn blind() -> Blind {
    toml::from_str(&read("fixtures/mistakes/blind.toml")).unwrap()
}

/// The files that the edits change, by name, with their new texts.
fn planted<'a>(name: &str, script: &'a str, edits: &'a [Edit]) -> BTreeMap<&'a str, String> {
    let mut files = BTreeMap::new();
    let folder = if is_of_framework(script) { "fixtures/frameworks" } else { "examples/train" };
    for Edit { file, old, new } in edits {
        let file = file.as_deref().unwrap_or(script);
        let text = files.entry(file).or_insert_with(|| read(&format!("{folder}/{file}")));
        let found = text.matches(old.as_str()).count();
        assert_eq!(found, 1, "{name}: in {file} {found} times: {old}");
        assert_ne!(old, new, "{name}");
        *text = text.replacen(old.as_str(), new, 1);
    }
    files
}

#[test]
fn every_edit_has_one_place_and_leaves_python() {
    let mut sources: Vec<(String, String)> = Vec::new();
    let mut plant = |name: &str, script: &str, edits: &[Edit]| {
        let files = planted(name, script, edits).into_iter();
        sources.extend(files.map(|(file, text)| (format!("{name} in {file}"), text)));
    };
    for mistake in mistakes() {
        plant(&mistake.name, &mistake.script, &mistake.edit);
    }
    let Blind { mistake, harmless } = blind();
    assert!(mistake.len() >= 120 && harmless.len() >= 60);
    let frameworks = of_frameworks();
    let changes = mistake.iter().chain(&harmless);
    for change in changes.chain(&frameworks.mistake).chain(&frameworks.harmless) {
        plant(&change.name, &change.script, &change.edit);
    }
    for bug in bugs() {
        plant(&bug.name, &bug.script, &bug.edit);
    }
    let check =
        "import json, sys\nfor name, text in json.load(sys.stdin): compile(text, name, 'exec')";
    let mut python = Command::new("python3")
        .args(["-c", check])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    python.stdin.take().unwrap().write_all(&serde_json::to_vec(&sources).unwrap()).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn each_mistake_has_a_name_of_its_own_and_says_what_must_be_reported() {
    let mistakes = mistakes();
    assert!(mistakes.len() >= ENOUGH);
    let names: BTreeSet<&str> = mistakes.iter().map(|mistake| mistake.name.as_str()).collect();
    assert_eq!(names.len(), mistakes.len());
    for mistake in &mistakes {
        let name = &mistake.name;
        assert!(!mistake.edit.is_empty() && mistake.wrong.ends_with('.'), "{name}");
        assert!(!mistake.says.is_empty(), "{name}");
        assert!(mistake.ranks.iter().all(|&rank| rank < mistake.world), "{name}");
        assert!(mistake.parameters.iter().all(|pattern| !pattern.is_empty()), "{name}");
        let is_note =
            matches!(mistake.finding, Finding::ReducedTooOften | Finding::ScheduledTooOften);
        assert_eq!(mistake.note, is_note, "{name}");
    }
}

#[test]
fn flags_are_those_of_the_script_and_microbatches_are_within_the_step() {
    let common = read("examples/train/common.py");
    for mistake in mistakes() {
        let script = read(&format!("examples/train/{}", mistake.script));
        let words: Vec<&str> = mistake.flags.split_whitespace().collect();
        for flag in words.iter().filter(|word| word.starts_with("--")) {
            let quoted = format!("\"{flag}\"");
            let known = script.contains(&quoted) || common.contains(&quoted);
            assert!(known, "{}: {flag}", mistake.name);
        }
        let accumulate = words.iter().position(|word| *word == "--accumulate").unwrap();
        let microbatches: usize = words[accumulate + 1].parse().unwrap();
        assert!(mistake.microbatches.iter().all(|&one| one < microbatches), "{}", mistake.name);
    }
}

#[test]
fn all_kinds_of_findings_and_all_scripts_have_a_mistake() {
    let mistakes = mistakes();
    let kinds: BTreeSet<Finding> = mistakes.iter().map(|mistake| mistake.finding).collect();
    assert_eq!(kinds.len(), 18, "{kinds:?}");
    let scripts: BTreeSet<&str> = mistakes.iter().map(|mistake| mistake.script.as_str()).collect();
    assert_eq!(scripts.len(), 7, "{scripts:?}");
}

#[test]
fn public_bugs_have_sources_and_releases_of_their_package() {
    let bugs = bugs();
    let names: BTreeSet<&str> = bugs.iter().map(|bug| bug.name.as_str()).collect();
    assert_eq!(names.len(), bugs.len());
    for bug in &bugs {
        let name = &bug.name;
        assert!(bug.sources.iter().all(|link| link.starts_with("https://github.com/")), "{name}");
        assert!(!bug.sources.is_empty() && bug.wrong.ends_with('.') && bug.world > 0, "{name}");
        for releases in [&bug.bad, &bug.good] {
            assert!(releases.is_empty() || releases.contains_key(&bug.package), "{name}");
        }
    }
}
