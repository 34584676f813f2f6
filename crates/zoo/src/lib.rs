//! The zoo: real bugs of released engines and trainers. Each bug has releases that show it, releases that do not, and
//! the result that a run must have on each release: `zprobe run` for an engine, `zprobe exec` with a script for a
//! trainer.
//!
//! A bug is a file in `probes/zoo` and a row in [`registry`]. [`ZooRow::parse`] reads the file, [`Expectation::judge`]
//! compares a run's [`Report`](zprobe_report::Report) with the expected result, and [`name_known_bugs`] recognises
//! the bugs of the zoo in any run.

mod judge;
mod known;
mod packages;
mod read;
pub mod registry;
mod script;

use std::fmt;

use zprobe_model::spec::Engine;
use zprobe_report::RuleCode;

pub use judge::{Judgement, got};
pub use known::{BugConditions, TRAINERS, may_show_known_bug, name_known_bugs, phrases};
pub use packages::Packages;
pub use read::ReadError;
pub use script::BugScript;

/// A row of the zoo: a bug, or something else that is worth trying on several releases.
#[derive(Clone, Debug, PartialEq)]
pub struct ZooRow {
    /// The name of the row, which is also the name of its file.
    pub name: String,
    /// The bug in a few words.
    pub title: String,
    /// The addresses of pull requests, issues and other pages about the bug.
    pub links: Vec<String>,
    /// The engine that has the bug; [`Engine::Script`] where the bug is in a trainer.
    pub engine: Engine,
    /// The description of what goes wrong.
    pub summary: String,
    /// The cause of the bug: the engine's file and function.
    pub cause: String,
    /// The workaround for releases without the fix.
    pub workaround: String,
    /// The arguments of `zprobe run`, word by word; empty for a row with a script.
    pub run: Vec<String>,
    /// The script that shows the bug; `None` if the bug is in an engine.
    pub script: Option<BugScript>,
    /// The conditions that a run must meet for one of its findings to be this bug; `None` if the row has no
    /// conditions.
    pub known: Option<BugConditions>,
    /// The releases on which the row is tried.
    pub releases: Vec<Release>,
}

/// A set of packages, and the result that a run with them must have.
#[derive(Clone, Debug, PartialEq)]
pub struct Release {
    /// The packages of the environment; empty where the engine needs no Python.
    pub packages: Packages,
    /// The arguments after those of the row, for example a workaround.
    pub extra: Vec<String>,
    /// The result that the run must have.
    pub expect: Expectation,
}

/// The result that a run must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expectation {
    /// The verdict must be `clean`.
    Clean,
    /// The first finding must have this code.
    Finding(RuleCode),
    /// The verdict must be `crashed`, with the engine's own words.
    Crash {
        /// A part of the engine's message.
        message: String,
        /// The code that the first finding must have; `None` if the code does not matter.
        finding: Option<RuleCode>,
    },
}

impl ZooRow {
    /// The arguments of `zprobe run` for one of the releases, without `--python` and `--out`.
    pub fn arguments<'a>(&'a self, release: &'a Release) -> impl Iterator<Item = &'a str> {
        self.run.iter().chain(&release.extra).map(String::as_str)
    }
}

impl ZooRow {
    /// The bug in words, as Markdown: what goes wrong, on which releases, why, and what to do.
    pub fn explain(&self) -> String {
        let releases = self.releases.iter().map(|release| {
            let got = match &release.expect {
                Expectation::Clean => "clean".to_owned(),
                Expectation::Finding(code) => code.to_string(),
                Expectation::Crash { message, .. } => format!("crash: {message}"),
            };
            format!("- {}: {got}\n", release.label())
        });
        let affected = self.known.as_ref().map(|known| format!("In {}. ", known.affected_text()));
        format!(
            "# Known bug {}: {}\n\n{}{}\n\n## Cause\n\n{}\n\n## What to do\n\n{}\n\n## Tried on\n\n{}\n\
             Command: {}\n{}",
            self.name,
            self.title,
            affected.unwrap_or_default(),
            self.summary.trim(),
            self.cause.trim(),
            self.workaround.trim(),
            releases.collect::<String>(),
            self.command(),
            self.links.iter().map(|link| format!("See: {link}\n")).collect::<String>(),
        )
    }

    /// The command that shows the bug, as people type it.
    pub fn command(&self) -> String {
        match &self.script {
            None => {
                // The first release with the bug may need flags besides those of the row to show the bug.
                let shows = self.releases.iter().find(|it| it.expect != Expectation::Clean);
                let extra = shows.iter().flat_map(|release| &release.extra);
                let words: Vec<_> = self.run.iter().chain(extra).map(String::as_str).collect();
                format!("zprobe run {}", words.join(" "))
            }
            Some(script) => {
                let options = script.exec_options();
                let words = ["zprobe", "exec"].map(str::to_owned).into_iter().chain(options);
                let words = words.chain(["--", "python"].map(str::to_owned));
                words.chain(script.command()).collect::<Vec<_>>().join(" ")
            }
        }
    }
}

impl Release {
    /// The packages and extra arguments, for people: `deepspeed 0.18.9, torch 2.11.0`.
    pub fn label(&self) -> String {
        let packages =
            if self.packages.is_empty() { "zprobe".to_owned() } else { self.packages.to_string() };
        if self.extra.is_empty() {
            packages
        } else {
            format!("{packages} {}", self.extra.join(" "))
        }
    }

    /// Returns true if `text` is the version of one of the packages, or the `name==version` of one.
    pub fn matches(&self, text: &str) -> bool {
        self.packages.iter().any(|(name, version)| {
            let version = version.to_string();
            text == version || text.split_once("==") == Some((name, version.as_str()))
        })
    }
}

impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clean => f.pad("clean"),
            Self::Finding(code) => f.pad(code),
            Self::Crash { message, finding: None } => write!(f, "crash: {message}"),
            Self::Crash { message, finding: Some(code) } => write!(f, "{code}, crash: {message}"),
        }
    }
}
