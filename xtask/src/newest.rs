//! Runs on the newest releases of engines and trainers, each listed once in a table that the page keeps.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::engines::{Environments, TESTED};
use crate::page::Page;
use crate::{sweeps, workspace};

/// The page with the table of releases.
pub const PAGE: Page = Page { path: "docs/newest.md", command: "cargo xtask newest" };

/// The head of the table.
const HEAD: &str =
    "| package | release | with | runs | result | date |\n|---|---|---|---|---|---|\n";

/// The options of `cargo xtask newest`.
#[derive(clap::Args)]
pub struct Options {
    /// Only these packages [default: all packages of the table]
    #[arg(value_name = "PACKAGE", value_parser = PACKAGES.map(|it| it.name))]
    packages: Vec<String>,
}

/// A package whose releases are run.
struct Package {
    name: &'static str,
    /// The other packages of its environment, in the versions of the tests.
    with: &'static [&'static str],
    runs: Runs,
}

/// The runs on a release of a package.
enum Runs {
    /// The standard suites of these engines.
    Suites(&'static [&'static str]),
    /// Scripts of `examples/train` that use the package, each with its flags.
    Scripts(&'static [Script]),
}

/// A script that is run with two ranks.
struct Script {
    file: &'static str,
    flags: &'static str,
    /// True for a script that torchrun starts; false for a script that starts its ranks itself.
    has_launcher: bool,
}

const PACKAGES: [Package; 7] = [
    Package { name: "deepspeed", with: &["torch"], runs: Runs::Suites(&["deepspeed"]) },
    Package {
        name: "torch",
        with: &[],
        runs: Runs::Suites(&["ddp", "fsdp2", "pipeline", "zero-redundancy"]),
    },
    Package {
        name: "transformers",
        with: &["torch", "accelerate"],
        runs: Runs::Scripts(&[launched("hf_trainer.py", "--accumulate 3 --steps 5 --no-report")]),
    },
    Package {
        name: "accelerate",
        with: &["torch"],
        runs: Runs::Scripts(&[launched("accelerate_loop.py", "--accumulate 3 --steps 5")]),
    },
    Package {
        name: "lightning",
        with: &["torch"],
        runs: Runs::Scripts(&[
            own("lightning_module.py", "--devices 2 --accumulate 3 --steps 5"),
            own("lightning_manual.py", "--devices 2 --steps 5"),
        ]),
    },
    Package {
        name: "peft",
        with: &["torch", "transformers", "accelerate"],
        runs: Runs::Scripts(&[launched("peft_lora.py", "--accumulate 3 --steps 5")]),
    },
    Package {
        name: "trl",
        with: &["torch", "transformers", "accelerate"],
        runs: Runs::Scripts(&[launched("trl_sft.py", "--accumulate 3 --steps 5")]),
    },
];

const TORCHRUN: &str = "-m torch.distributed.run --standalone --nproc-per-node 2";

const fn launched(file: &'static str, flags: &'static str) -> Script {
    Script { file, flags, has_launcher: true }
}

const fn own(file: &'static str, flags: &'static str) -> Script {
    Script { file, flags, has_launcher: false }
}

/// Runs all releases that are newer than the newest of the table, and adds their rows to the table.
///
/// # Errors
/// If a run has a finding that is no known bug of the zoo; the rows are written nevertheless.
pub fn run(options: &Options) -> Result<()> {
    let environments = Environments::prepare()?;
    let mut table = PAGE.read()?;
    if !table.starts_with(HEAD) {
        HEAD.clone_into(&mut table);
    }
    let mut unexplained = Vec::new();
    let is_wanted = |it: &&Package| {
        options.packages.is_empty() || options.packages.iter().any(|name| name == it.name)
    };
    for package in PACKAGES.iter().filter(is_wanted) {
        let listed = releases(package.name)?;
        let new = newer(&listed, &known(&table, package.name)).with_context(|| {
            format!("the index lists none of the releases of {} in {}", package.name, PAGE.path)
        })?;
        if new.is_empty() {
            eprintln!("{}: nothing newer than {}", package.name, PAGE.path);
        }
        for release in new {
            let packages = package.environment(release)?;
            eprintln!("{}", packages.join(" "));
            let python = environments
                .python_with(&packages.iter().map(String::as_str).collect::<Vec<_>>())?;
            let result = package.run(&environments, &python)?;
            let row = row(package, &packages, &result, &today()?);
            eprint!("{row}");
            table += &row;
            // Each row is kept, even if a later release cannot be run.
            PAGE.write(&table)?;
            if !result.unexplained.is_empty() {
                unexplained.push(format!("{} {release}", package.name));
            }
        }
    }
    ensure!(
        unexplained.is_empty(),
        "the zoo does not know the findings on {}; see {}",
        unexplained.join(", "),
        PAGE.path
    );
    Ok(())
}

/// The row of a release.
fn row(package: &Package, packages: &[String], result: &Findings, date: &str) -> String {
    let (own, with) =
        packages.split_first().map_or(("", &[][..]), |(own, with)| (own.as_str(), with));
    let release = own.rsplit("==").next().unwrap_or_default();
    let with: Vec<_> = with.iter().map(|it| it.replace("==", " ")).collect();
    format!(
        "| {} | {release} | {} | {} | {} | {date} |\n",
        package.name,
        with.join(", "),
        package.runs,
        result.to_string().replace('|', "\\|"),
    )
}

/// The releases of a package, the newest first, as pip lists them: without pre-releases.
fn releases(package: &str) -> Result<Vec<String>> {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "index", "versions", "--disable-pip-version-check", package]);
    let output = pip.stdin(Stdio::null()).output().context("cannot start python3 -m pip")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let listed = said.lines().find_map(|line| line.trim().strip_prefix("Available versions:"));
    let complaint = String::from_utf8_lossy(&output.stderr);
    let listed =
        listed.with_context(|| format!("pip lists no releases of {package}: {complaint}"))?;
    Ok(listed.split(',').map(|it| it.trim().to_owned()).collect())
}

/// The releases of a package that the table has.
fn known<'a>(table: &'a str, package: &str) -> Vec<&'a str> {
    let cells = table.lines().map(|line| line.split('|').map(str::trim).skip(1));
    cells.filter_map(|mut row| (row.next()? == package).then(|| row.next())?).collect()
}

/// The releases to run, oldest first: those listed before the first known one, or only the newest release if
/// none is known. `None` if the index lists no known release, so that new releases cannot be told from old ones.
fn newer<'a>(listed: &'a [String], known: &[&str]) -> Option<Vec<&'a str>> {
    let newest = listed.iter().position(|it| known.contains(&it.as_str()));
    let new = if known.is_empty() { listed.len().min(1) } else { newest? };
    Some(listed[..new].iter().rev().map(String::as_str).collect())
}

/// Today's date in UTC.
fn today() -> Result<String> {
    let output = Command::new("date").args(["-u", "+%F"]).output().context("cannot start date")?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

impl Package {
    /// The packages of the environment of a release, the package itself first.
    fn environment(&self, release: &str) -> Result<Vec<String>> {
        let pin = |name: &&str| {
            let tested = TESTED.iter().find(|it| it.split("==").next() == Some(*name));
            tested
                .map(|it| (*it).to_owned())
                .with_context(|| format!("no tested release of {name}"))
        };
        let own = Ok(format!("{}=={release}", self.name));
        [own].into_iter().chain(self.with.iter().map(pin)).collect()
    }

    /// Makes all runs of the package with this interpreter.
    fn run(&self, environments: &Environments, python: &Path) -> Result<Findings> {
        let dir = sweeps::dir("newest")?;
        let mut findings = Findings::default();
        match self.runs {
            Runs::Suites(engines) => {
                let out = fresh(&dir.join("suite"))?;
                let mut check = environments.zprobe()?;
                check
                    .args(["check", "--no-config", "--output-format", "json", "--python"])
                    .arg(python);
                check.args(engines.iter().flat_map(|it| ["--engine", it])).arg("--out").arg(&out);
                let output = check
                    .current_dir(&dir)
                    .stdin(Stdio::null())
                    .stderr(Stdio::inherit())
                    .output()
                    .context("cannot start zprobe")?;
                let suite: Value = serde_json::from_slice(&output.stdout).with_context(|| {
                    format!("zprobe check ended with {}; see the messages above", output.status)
                })?;
                findings.read_suite(&suite);
            }
            Runs::Scripts(scripts) => {
                for script in scripts {
                    let out = fresh(&dir.join("script"))?;
                    let report = script.run(environments, python, &dir, &out)?;
                    findings.read_report(script.file, &report);
                }
            }
        }
        Ok(findings)
    }
}

/// A path at which nothing exists: what an earlier run left there is removed.
fn fresh(dir: &Path) -> Result<std::path::PathBuf> {
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    }
    Ok(dir.to_owned())
}

impl Script {
    /// Runs the script under `zprobe exec`, and returns the report; a verdict in words if there is no report.
    fn run(
        &self,
        environments: &Environments,
        python: &Path,
        dir: &Path,
        out: &Path,
    ) -> Result<Value> {
        let mut exec = environments.zprobe()?;
        exec.args(["exec", "--no-config", "--output-format", "concise", "--out"]).arg(out);
        exec.arg("--").arg(python);
        let launcher = if self.has_launcher { TORCHRUN } else { "" };
        exec.args(launcher.split_whitespace());
        exec.arg(workspace::root().join("examples/train").join(self.file));
        exec.args(self.flags.split_whitespace());
        exec.env("OMP_NUM_THREADS", "1").env("PYTHONDONTWRITEBYTECODE", "1");
        let status =
            exec.current_dir(dir).stdin(Stdio::null()).status().context("cannot start zprobe")?;
        let Ok(report) = fs::read_to_string(out.join("report.json")) else {
            // A release with which the script does not even begin to train is a result, too.
            return Ok(json!({"verdict": format!("no report, {status}")}));
        };
        Ok(serde_json::from_str(&report)?)
    }
}

impl fmt::Display for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Suites(engines) => write!(f, "suite of {}", engines.join(", ")),
            Self::Scripts(scripts) => {
                let files: Vec<_> = scripts.iter().map(|it| it.file).collect();
                f.write_str(&files.join(", "))
            }
        }
    }
}

/// The findings of all runs on a release.
#[derive(Default)]
struct Findings {
    runs: usize,
    clean: usize,
    skipped: usize,
    /// The runs in which each known bug of the zoo was found.
    known: BTreeMap<String, Vec<String>>,
    /// The findings that no known bug explains, each with its run.
    unexplained: Vec<String>,
}

impl Findings {
    /// Adds the cases of a suite.
    fn read_suite(&mut self, suite: &Value) {
        for case in suite["cases"].as_array().into_iter().flatten() {
            let name = format!("{}/{}", text(&case["engine"]), text(&case["probe"]));
            match text(&case["status"]) {
                "skipped" => self.skipped += 1,
                status => {
                    self.add(&name, status == "passed", &case["findings"], text(&case["got"]))
                }
            }
        }
    }

    /// Adds the report on a script.
    fn read_report(&mut self, script: &str, report: &Value) {
        let verdict = text(&report["verdict"]);
        self.add(script, verdict == "clean", &report["findings"], verdict);
    }

    /// Adds a run. A run that is not clean has findings, or only `got`, its end in words.
    fn add(&mut self, run: &str, is_clean: bool, findings: &Value, got: &str) {
        self.runs += 1;
        self.clean += usize::from(is_clean);
        if is_clean {
            return;
        }
        let findings = findings.as_array().map(Vec::as_slice).unwrap_or_default();
        if findings.is_empty() {
            self.unexplained.push(format!("{run}: {got}"));
        }
        for finding in findings {
            let bugs = finding["known"].as_array().map(Vec::as_slice).unwrap_or_default();
            if bugs.is_empty() {
                let (code, message) = (text(&finding["code"]), text(&finding["message"]));
                self.unexplained.push(format!("{run}: {code} {message}"));
            }
            for bug in bugs {
                let runs = self.known.entry(text(&bug["name"]).to_owned()).or_default();
                if runs.last().is_none_or(|last| last != run) {
                    runs.push(run.to_owned());
                }
            }
        }
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} clean", self.clean, self.runs)?;
        if self.skipped > 0 {
            write!(f, ", {} skipped", self.skipped)?;
        }
        for (bug, runs) in &self.known {
            write!(f, "; known: {bug} ({})", runs.join(", "))?;
        }
        for finding in &self.unexplained {
            write!(f, "; **unexplained**: {finding}")?;
        }
        Ok(())
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_after_the_newest_of_the_table_are_run_from_the_oldest_on() {
        let listed = ["1.3", "1.2", "1.1", "1.0"].map(str::to_owned);
        assert_eq!(newer(&listed, &["1.1", "1.0"]).unwrap(), ["1.2", "1.3"]);
        assert_eq!(newer(&listed, &[]).unwrap(), ["1.3"]);
        assert!(newer(&listed, &["1.3"]).unwrap().is_empty());
        assert!(newer(&listed, &["0.9"]).is_none());
    }

    #[test]
    fn the_table_has_the_releases_of_its_rows() {
        let package = &PACKAGES[0];
        let packages = package.environment("9.0").unwrap();
        let row = row(package, &packages, &Findings::default(), "2026-01-01");
        let table = format!("{HEAD}{row}");
        assert_eq!(known(&table, package.name), ["9.0"], "{table}");
        assert!(known(&table, "torch").is_empty(), "{table}");
    }

    #[test]
    fn findings_that_the_zoo_does_not_know_are_unexplained() {
        let mut findings = Findings::default();
        let known = json!([{"code": "ZP101", "message": "known", "known": [{"name": "leak"}]}]);
        let new = json!([{"code": "ZP102", "message": "new", "known": []}]);
        findings.read_suite(&json!({"cases": [
            {"engine": "ddp", "probe": "a", "status": "passed", "findings": known},
            {"engine": "ddp", "probe": "b", "status": "failed", "findings": known},
            {"engine": "ddp", "probe": "c", "status": "skipped", "findings": []},
        ]}));
        assert!(findings.unexplained.is_empty());
        findings.read_report("a.py", &json!({"verdict": "findings", "findings": new}));
        findings.read_report("b.py", &json!({"verdict": "crashed", "findings": []}));
        let expected = "1 of 4 clean, 1 skipped; known: leak (ddp/b); **unexplained**: a.py: ZP102 new; \
                        **unexplained**: b.py: crashed";
        assert_eq!(findings.to_string(), expected);
    }

    #[test]
    fn every_package_has_an_environment_and_its_scripts_exist() {
        for package in &PACKAGES {
            package.environment("1.0").unwrap();
            assert!(TESTED.iter().any(|it| it.starts_with(&format!("{}==", package.name))));
            if let Runs::Scripts(scripts) = package.runs {
                for script in scripts {
                    let path = workspace::root().join("examples/train").join(script.file);
                    assert!(path.is_file(), "{}", path.display());
                }
            }
        }
    }
}
