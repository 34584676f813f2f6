//! The zoo: real bugs of released engines, each with the releases that have it, those that do not,
//! and what `zprobe run` must say about either.
//!
//! A bug is a file in `probes/zoo` and a row in [`registry`]. [`Row::parse`] reads one,
//! [`Expectation::judge`] compares what was expected with a run's [`Report`](crate::report::Report), and
//! [`name_known_bugs`] recognises the bugs of the zoo in anybody's run.

mod judge;
mod known;
mod read;
pub mod registry;

use std::fmt;

use crate::environment::Packages;
use crate::report::RuleCode;
use crate::spec::Engine;

pub use judge::{Judgement, got};
pub use known::{Known, name_known_bugs};
pub use read::ReadError;

/// One bug, or one other thing worth trying on several releases.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Its name, which is that of its file.
    pub name: String,
    /// What it is, in a few words.
    pub title: String,
    /// Pull requests, issues and other places that tell of it.
    pub links: Vec<String>,
    /// The engine that has it.
    pub engine: Engine,
    /// What goes wrong.
    pub summary: String,
    /// Why: the engine's file and function.
    pub cause: String,
    /// How to do without the fix.
    pub workaround: String,
    /// What the user types behind `zprobe run`, word by word.
    pub run: Vec<String>,
    /// What a run must be for one of its findings to be this bug; none where that is not said.
    pub known: Option<Known>,
    /// Where it is tried.
    pub releases: Vec<Release>,
}

/// One set of packages, and what to expect of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Release {
    /// Packages in the environment; none where the engine needs no Python.
    pub packages: Packages,
    /// Words behind those of the row: a workaround, for example.
    pub extra: Vec<String>,
    /// What the run must say.
    pub expect: Expectation,
}

/// What a run must say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expectation {
    /// The verdict `clean`.
    Clean,
    /// A first finding with this code.
    Finding(RuleCode),
    /// The verdict `crashed`, with the engine's own words.
    Crash {
        /// Part of what the engine said.
        message: String,
        /// Code of the first finding, where that is known as well.
        finding: Option<RuleCode>,
    },
}

impl Row {
    /// What follows `zprobe run` for one of the releases, without `--python` and `--out`.
    pub fn arguments<'a>(&'a self, release: &'a Release) -> impl Iterator<Item = &'a str> {
        self.run.iter().chain(&release.extra).map(String::as_str)
    }
}

impl Release {
    /// Packages and extra words, for people: `deepspeed 0.18.9, torch 2.11.0`.
    pub fn label(&self) -> String {
        let packages =
            if self.packages.is_empty() { "zprobe".to_owned() } else { self.packages.to_string() };
        if self.extra.is_empty() {
            packages
        } else {
            format!("{packages} {}", self.extra.join(" "))
        }
    }

    /// Whether one of its packages has this version, or is this `name==version`.
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
