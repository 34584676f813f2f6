//! The first release of a package, and the first commit, in which a run shows a finding, or no longer does.
//!
//! Both ends are tried first: the finding of the bad one is what is looked for, and the good one must not show
//! it. A release or commit counts as bad if it shows the same rule with the same weights. One that cannot be
//! installed, crashes, or shows the rule with other weights, cannot be tested and is skipped.
//!
//! `search` chooses among releases, which are a line; git chooses among commits, which are not.

mod answer;
mod commits;
mod git;
mod judge;
mod releases;
mod search;
mod signature;
mod trials;
mod words;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use pep440_rs::Version;

pub use self::answer::{Answer, Commit, CommitTrial, Commits, Trial};
use self::git::Repository;
use self::judge::Judge;
pub use self::signature::{Seen, Signature};
use self::trials::Trials;
pub use self::words::render;
use super::order::Order;
use super::store;
use crate::environment::Installer;
use zprobe_report::Schema;
use zprobe_zoo::Packages;

/// Releases or commits that are to be searched, and the run that tells good ones from bad ones.
pub struct Question {
    /// The run; its interpreter is replaced by that of each trial.
    pub order: Order,
    /// Package whose releases or commits are tried.
    pub package: String,
    /// Packages that stay the same.
    pub beside: Packages,
    /// An end without the finding.
    pub good: End,
    /// An end with the finding.
    pub bad: End,
    /// True if the first without the finding is looked for, so that the bad end is the older one.
    pub fixed: bool,
    /// Repository with the commits, if they are to be searched.
    pub git: Option<Source>,
    /// Release over whose environment commits are installed; none for the one before the new end.
    pub over: Option<Version>,
    /// The finding, if it is known from an earlier run.
    pub signature: Option<Signature>,
    /// Number of releases that are tried side by side.
    pub jobs: usize,
    /// Directory for the runs; none for a new one.
    pub out: Option<PathBuf>,
}

/// An end of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// A release: `0.18.5`.
    Release(Version),
    /// Anything else that git knows a commit by.
    Revision(String),
}

/// A repository of commits, as the user names it.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its directory, or its address.
    pub place: String,
    /// True to search the first parents of merges alone.
    pub first_parent: bool,
}

impl From<&str> for End {
    /// Numbers with a dot are a release: a commit's name may be a number, too.
    fn from(text: &str) -> Self {
        let is_number =
            text.starts_with(|first: char| first.is_ascii_digit()) && text.contains('.');
        match text.parse() {
            Ok(version) if is_number => Self::Release(version),
            _ => Self::Revision(text.to_owned()),
        }
    }
}

/// Looks for the first release, and then for the first commit where there is a repository of them.
///
/// # Errors
/// When the releases or commits are not known, an end is not what it is said to be, or nothing can be run.
pub fn first(question: &Question) -> Result<Answer> {
    let Question { package, good, bad, fixed, .. } = question;
    let installer = Installer::find();
    let out = question.out.clone().map_or_else(|| store::place("bisect"), Ok)?;
    let trials = Trials::new(question, installer, out)?;
    // What cannot be searched is known before the first trial.
    let repository = question
        .git
        .as_ref()
        .map(|source| Repository::open(&source.place, || trials.cache.repository(&source.place)));
    let repository = repository.transpose()?;
    let all = match (good, bad) {
        (End::Release(good), End::Release(bad)) => {
            Some(releases::between(package, good, bad, &trials.installer)?)
        }
        _ => None,
    };
    let mut ends = match (&repository, &all) {
        (Some(repository), None) => Some(commits::Ends::of_revisions(repository, question)?),
        _ => None,
    };
    fs::create_dir_all(&trials.out)
        .with_context(|| format!("cannot create {}", trials.out.display()))?;
    let mut judge = Judge::new(question.signature.clone(), *fixed);
    let releases = all.map(|all| releases::search(&trials, &mut judge, all)).transpose()?;
    let mut no_commits = None;
    if let (Some(repository), Some((old, new))) =
        (&repository, releases.as_ref().and_then(releases::Found::edge))
    {
        // The releases are found, and that is not lost.
        match commits::Ends::of_releases(repository, old, new) {
            Ok(found) => ends = Some(found),
            Err(error) => no_commits = Some(format!("{error:#}")),
        }
    }
    let commits = match (&repository, ends, &question.git) {
        (Some(repository), Some(ends), Some(Source { first_parent, .. })) => {
            match commits::search(&trials, &mut judge, repository, &ends, *first_parent) {
                Err(error) if releases.is_some() => {
                    no_commits = Some(format!("{error:#}"));
                    None
                }
                found => Some(found?),
            }
        }
        _ => None,
    };
    Ok(Answer {
        schema: Schema::CURRENT,
        package: package.clone(),
        beside: question.beside.to_string(),
        finding: judge.finding(),
        fixed: *fixed,
        first: releases.as_ref().map(releases::Found::first).unwrap_or_default(),
        releases: releases.as_ref().map_or(0, releases::Found::count),
        trials: releases.as_ref().map(releases::Found::trials).unwrap_or_default(),
        old_again: releases.as_ref().map(releases::Found::old_again).unwrap_or_default(),
        commits,
        no_commits,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_with_a_dot_is_a_release_and_all_else_a_revision() {
        for text in ["0.18.5", "2.13", "0.19.0rc1", "2.15.0.dev20260801"] {
            assert!(matches!(End::from(text), End::Release(_)), "{text}");
        }
        for text in ["v0.18.5", "1393f75", "12345678", "123a4567", "master", "HEAD~3", "0.18.5^"] {
            assert_eq!(End::from(text), End::Revision(text.to_owned()));
        }
    }
}
