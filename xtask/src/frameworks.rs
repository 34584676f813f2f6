//! Scripts of many frameworks under `zprobe exec`: scripts that are right, and the same scripts with planted mistakes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Error, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::changes::{Changes, Mistake};
use crate::engines::Environments;
use crate::page::Page;
use crate::{sweeps, workspace};

/// The page with the table of frameworks.
pub const PAGE: Page = Page { path: "docs/frameworks.md", command: "cargo xtask frameworks" };

/// The file with the rows of the table.
const ROWS: &str = "fixtures/frameworks/matrix.toml";

/// The program that starts the ranks of a script which does not start its ranks itself.
const RANKS: &str = "tests/engines/exec/ranks.py";

/// The files with mistakes, each with the folder of the scripts that it changes.
const SETS: [(&str, &str); 5] = [
    ("fixtures/mistakes/mistakes.toml", "examples/train"),
    ("fixtures/mistakes/blind.toml", "examples/train"),
    ("fixtures/mistakes/second/set.toml", "fixtures/mistakes/second"),
    ("fixtures/mistakes/third/set.toml", "fixtures/mistakes/third"),
    ("fixtures/frameworks/set.toml", "fixtures/frameworks"),
];

/// The sources of gradients: the name of the column, and the options of `zprobe exec`.
const MODES: [(&str, &[&str]); 2] = [("codes", &[]), ("observe", &["--observe"])];

/// The options of `cargo xtask frameworks`.
#[derive(clap::Args)]
pub struct Options {
    /// Only frameworks whose names contain one of these [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Run nothing: only make the page from the results found
    #[arg(long)]
    pub page: bool,

    /// Leave out runs that have results already
    #[arg(long)]
    resume: bool,
}

/// The content of [`ROWS`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rows {
    framework: Vec<Framework>,
}

/// A row of the table: a framework with a script.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Framework {
    name: String,
    /// The packages of the environment; the first one is the framework.
    packages: Vec<String>,
    script: String,
    /// The flags of the right script.
    flags: String,
    /// More flags for every run.
    #[serde(default)]
    variant: String,
    /// True if the script starts its ranks itself.
    #[serde(default)]
    launches: bool,
    /// The names of the mistakes to plant.
    mistakes: Vec<String>,
}

/// A run of a framework's script: the right script, or the script with a mistake.
struct Run<'a> {
    framework: &'a Framework,
    mistake: Option<&'a Mistake>,
    /// The name of the mode, and its options.
    mode: (&'static str, &'static [&'static str]),
    dir: PathBuf,
}

/// The answer of zprobe to a run.
struct Answer {
    verdict: String,
    codes: Vec<String>,
    /// The parts of the training that the verdict covers, and those that it does not cover.
    judged: String,
}

/// Runs the frameworks, and writes the page from all results found.
///
/// # Errors
/// If no environment can be made, or if zprobe cannot be started. Findings are results.
pub fn run(options: &Options) -> Result<()> {
    let rows = rows()?;
    let mistakes = mistakes()?;
    let dir = sweeps::dir("frameworks")?;
    let is_wanted = |it: &&Framework| {
        options.names.is_empty() || options.names.iter().any(|name| it.name.contains(name))
    };
    ensure!(
        rows.iter().any(|it| is_wanted(&it)),
        "no row of {ROWS} has a name with {}",
        options.names.join(" or ")
    );
    if !options.page {
        let environments = Environments::prepare()?;
        for framework in rows.iter().filter(is_wanted) {
            let packages: Vec<&str> = framework.packages.iter().map(String::as_str).collect();
            let python = environments.python_with(&packages)?;
            for run in framework.runs(&mistakes, &dir)? {
                if !(options.resume && run.report().is_file()) {
                    run.perform(&environments, &python)?;
                    eprintln!("{run}: {}", run.answer()?.said());
                }
            }
        }
    }
    // A row without all results stays as it is on the page.
    let page = PAGE.read()?;
    let kept = |start: String| page.lines().filter(move |line| line.starts_with(&start));
    let mut text = HEAD.to_owned();
    let mut missed = String::new();
    for framework in &rows {
        let runs = framework.runs(&mistakes, &dir)?;
        if runs.iter().all(|run| run.report().is_file()) {
            framework.row(&runs, &mut text, &mut missed)?;
            continue;
        }
        for (start, part) in [("| ", &mut text), ("- ", &mut missed)] {
            let end = if start == "| " { " |" } else { ", " };
            for line in kept(format!("{start}{}{end}", framework.name)) {
                writeln!(part, "{line}")?;
            }
        }
    }
    if !missed.is_empty() {
        text += "\nNot clean, not found or not named:\n\n";
        text += &missed;
    }
    PAGE.write(&text)
}

const HEAD: &str = "\
| framework | release | script | right: codes | right: `--observe` | mistakes: codes | mistakes: `--observe` | not judged |
|---|---|---|---|---|---|---|---|
";

fn rows() -> Result<Vec<Framework>> {
    let text = fs::read_to_string(workspace::root().join(ROWS))
        .with_context(|| format!("cannot read {ROWS}"))?;
    Ok(toml::from_str::<Rows>(&text).with_context(|| ROWS.to_owned())?.framework)
}

/// All mistakes, by name.
fn mistakes() -> Result<BTreeMap<String, Mistake>> {
    let mut all = BTreeMap::new();
    for (file, _) in SETS {
        let changes = Changes::read(&workspace::root().join(file)).map_err(Error::msg)?;
        for mistake in changes.mistake {
            all.entry(mistake.change.name.clone()).or_insert(mistake);
        }
    }
    Ok(all)
}

/// Copies the scripts into a directory. The scripts of the folders have different names.
fn copy_scripts(framework: &Framework, dir: &Path) -> Result<()> {
    let has_script =
        |folder: &&str| workspace::root().join(folder).join(&framework.script).is_file();
    let mut folders: Vec<&str> = SETS.iter().map(|(_, folder)| *folder).collect();
    folders.dedup();
    let folder = folders.into_iter().find(has_script);
    let folder = folder.with_context(|| format!("no folder has {}", framework.script))?;
    for entry in fs::read_dir(workspace::root().join(folder))? {
        let path = entry?.path();
        if path.extension().is_some_and(|it| it == "py" || it == "json") {
            let name = path.file_name().context("a script without a name")?;
            fs::copy(&path, dir.join(name))?;
        }
    }
    Ok(())
}

impl Framework {
    /// The runs of the framework, whose directories are below `dir`.
    fn runs<'a>(
        &'a self,
        mistakes: &'a BTreeMap<String, Mistake>,
        dir: &Path,
    ) -> Result<Vec<Run<'a>>> {
        let mut changes = vec![None];
        for name in &self.mistakes {
            let mistake = mistakes.get(name);
            changes.push(Some(mistake.with_context(|| format!("there is no mistake {name}"))?));
        }
        let run = |mistake: Option<&'a Mistake>, mode: (&'static str, _)| {
            let name = mistake.map_or("right", |it| &it.change.name);
            let dir = dir.join(&self.name).join(format!("{name}-{}", mode.0));
            Run { framework: self, mistake, mode, dir }
        };
        Ok(changes.into_iter().flat_map(|it| MODES.map(|mode| run(it, mode))).collect())
    }

    /// Adds the row of the framework to the table, and what is not right to the list below the table.
    fn row(&self, runs: &[Run<'_>], table: &mut String, missed: &mut String) -> Result<()> {
        let package = self.packages.first().context("a framework without packages")?;
        let release = package.replace("==", " ");
        let script = &self.script;
        let (mut right, mut found, mut judged) = (Vec::new(), Vec::new(), Vec::new());
        for (mode, _) in MODES {
            let (mut seen, mut named) = (0, 0);
            for run in runs.iter().filter(|run| run.mode.0 == mode) {
                let answer = run.answer()?;
                let Some(mistake) = run.mistake else {
                    if answer.verdict != "clean" {
                        writeln!(missed, "- {run}: {}", answer.said())?;
                    }
                    judged.push(answer.not_judged());
                    right.push(answer.verdict);
                    continue;
                };
                let is_named = answer.codes.iter().any(|it| mistake.names().contains(&it.as_str()));
                seen += usize::from(!answer.codes.is_empty());
                named += usize::from(is_named);
                if !is_named {
                    writeln!(missed, "- {run} (`{}`): {}", mistake.finding, answer.said())?;
                }
            }
            let all = self.mistakes.len();
            found.push(match named {
                _ if seen == named => format!("{named} of {all}"),
                named => format!("{seen} of {all}, {named} named"),
            });
        }
        judged.dedup();
        let (right, found, judged) = (right.join(" | "), found.join(" | "), judged.join("; "));
        let name = &self.name;
        writeln!(table, "| {name} | {release} | `{script}` | {right} | {found} | {judged} |")?;
        Ok(())
    }
}

impl Run<'_> {
    fn report(&self) -> PathBuf {
        self.dir.join("run/report.json")
    }

    /// Makes the run in a new directory.
    fn perform(&self, environments: &Environments, python: &Path) -> Result<()> {
        let Self { framework, dir, .. } = self;
        if dir.exists() {
            fs::remove_dir_all(dir).with_context(|| format!("cannot remove {}", dir.display()))?;
        }
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        copy_scripts(framework, dir)?;
        if let Some(mistake) = self.mistake {
            mistake.change.plant(dir).map_err(Error::msg)?;
        }
        let flags = self.mistake.map_or(&framework.flags, |it| &it.change.flags);
        let mut exec = environments.zprobe()?;
        exec.args(["exec", "--no-config", "--output-format", "concise", "--out", "run"]);
        exec.args(self.mode.1).arg("--").arg(python);
        if !framework.launches {
            let ranks = self.mistake.map_or(2, |it| it.change.world);
            exec.arg(workspace::root().join(RANKS)).arg(ranks.to_string());
        }
        exec.arg(&framework.script).args(flags.split_whitespace());
        exec.args(framework.variant.split_whitespace());
        exec.env("OMP_NUM_THREADS", "1").env("DS_ACCELERATOR", "cpu");
        exec.env("PYTHONDONTWRITEBYTECODE", "1");
        let output = exec.current_dir(dir).stdin(Stdio::null()).output();
        let output = output.context("cannot start zprobe")?;
        fs::write(dir.join("err"), &output.stderr)?;
        ensure!(
            self.report().is_file(),
            "{self}: no report, {}:\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    /// Reads the report of the run.
    fn answer(&self) -> Result<Answer> {
        let path = self.report();
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let report: Value = serde_json::from_str(&text)?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let findings = report["findings"].as_array().into_iter().flatten();
        Ok(Answer {
            verdict: text(&report["verdict"]),
            codes: findings.map(|it| text(&it["code"])).collect(),
            judged: text(&report["run"]["engine_facts"]["judged"]),
        })
    }
}

impl std::fmt::Display for Run<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = self.mistake.map_or("right", |it| &it.change.name);
        write!(f, "{}, `{what}`, {}", self.framework.name, self.mode.0)
    }
}

impl Answer {
    /// The verdict with the codes of the findings.
    fn said(&self) -> String {
        format!("{} {}", self.verdict, self.codes.join(", ")).trim_end().to_owned()
    }

    /// The parts of the training that the verdict does not cover; a dash if it covers everything.
    fn not_judged(&self) -> String {
        let not = self.judged.split_once("not judged: ").map(|(_, not)| not);
        not.unwrap_or("–").replace('|', "\\|")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_framework_has_a_script_and_three_mistakes_in_it() {
        let (rows, mistakes) = (rows().unwrap(), mistakes().unwrap());
        let names: BTreeSet<&str> = rows.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names.len(), rows.len());
        for framework in &rows {
            let dir = tempfile::tempdir().unwrap();
            let runs = framework.runs(&mistakes, Path::new("runs")).unwrap();
            assert!(framework.mistakes.len() >= 3, "{}", framework.name);
            assert_eq!(runs.len(), 2 + 2 * framework.mistakes.len());
            for mistake in runs.iter().filter_map(|run| run.mistake) {
                assert_eq!(mistake.change.script, framework.script, "{}", mistake.change.name);
                assert!(!mistake.names().is_empty(), "{}: {}", framework.name, mistake.finding);
                copy_scripts(framework, dir.path()).unwrap();
                mistake.change.plant(dir.path()).unwrap();
            }
        }
    }

    #[test]
    fn a_row_counts_what_is_found_and_what_is_named() {
        let (rows, mistakes) = (rows().unwrap(), mistakes().unwrap());
        let dir = tempfile::tempdir().unwrap();
        let framework = &rows[0];
        let runs = framework.runs(&mistakes, dir.path()).unwrap();
        for (number, run) in runs.iter().enumerate() {
            // The first mistake is found by its name with codes, and by another name with `--observe`.
            let code = run.mistake.map(|it| if number == 2 { it.names()[0] } else { "ZP999" });
            let code = code.filter(|_| number < 4);
            let findings: Vec<Value> =
                code.iter().map(|it| serde_json::json!({"code": it})).collect();
            let verdict = if code.is_some() { "findings" } else { "clean" };
            let facts = serde_json::json!({"judged": "weights; not judged: clipping"});
            let report = serde_json::json!({
                "verdict": verdict, "findings": findings, "run": {"engine_facts": facts},
            });
            fs::create_dir_all(run.dir.join("run")).unwrap();
            fs::write(run.report(), report.to_string()).unwrap();
        }
        let (mut table, mut missed) = (String::new(), String::new());
        framework.row(&runs, &mut table, &mut missed).unwrap();
        assert!(
            table.contains("| clean | clean | 1 of 4 | 1 of 4, 0 named | clipping |"),
            "{table}"
        );
        assert_eq!(missed.lines().count(), 7, "{missed}");
    }
}
