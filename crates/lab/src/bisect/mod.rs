//! `zprobe bisect`: searches for the first release of a package, and the first commit, in which a run shows a finding
//! or no longer shows it.
//!
//! The search tries the good and the bad end first: the bad end gives the finding to search for, which the good
//! end must not show. A release or commit counts as bad if it shows the same rule with the same weights. It is skipped
//! if it cannot be installed, crashes, or shows the rule with other weights.
//!
//! `search` chooses among releases, which form a line; git chooses among commits, which may branch.

mod answer;
mod commits;
mod git;
mod judge;
mod releases;
mod search;
mod signature;
mod trials;
mod words;

use std::path::PathBuf;

use anyhow::Result;
use pep440_rs::Version;

pub use self::answer::{BisectResult, Commit, CommitTrial, ReleaseTrial, SearchedCommits};
use self::git::Repository;
use self::judge::Judge;
pub use self::judge::TrialVerdict;
pub use self::signature::{FindingSignature, SignatureMatch};
use self::trials::BisectRunner;
pub use self::words::render;
use super::order::Order;
use super::store;
use crate::environment::Installer;
use zprobe_report::Schema;
use zprobe_zoo::Packages;

/// The input of a bisection: the releases or commits to search, and the run that tells good ones from bad ones.
pub struct BisectTask {
    /// The order of the run; each trial replaces its interpreter.
    pub order: Order,
    /// The package whose releases or commits are tried.
    pub package: String,
    /// The packages that stay the same in all trials.
    pub fixed_packages: Packages,
    /// The end without the finding.
    pub good: BisectEnd,
    /// The end with the finding.
    pub bad: BisectEnd,
    /// True if the search is for the first release or commit without the finding, so that the bad end is the older
    /// one.
    pub fixed: bool,
    /// The repository with the commits; `None` if only releases are searched.
    pub git: Option<GitSource>,
    /// The release whose environment has the requirements of the commits; `None` for the nearest release before the new
    /// end of the range.
    pub base_release: Option<Version>,
    /// The finding, if it is known from an earlier run.
    pub signature: Option<FindingSignature>,
    /// The number of releases that are tried side by side.
    pub jobs: usize,
    /// The directory for the runs; `None` for a new directory.
    pub out: Option<PathBuf>,
}

/// An end of the range that a bisection searches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BisectEnd {
    /// A release: `0.18.5`.
    Release(Version),
    /// A revision: any other name that git knows a commit by.
    Revision(String),
}

/// A repository of commits, as the user named it with `--git`.
#[derive(Clone, Debug)]
pub struct GitSource {
    /// The directory or the address of the repository.
    pub place: String,
    /// True to follow only the first parents of merges.
    pub first_parent: bool,
}

impl From<&str> for BisectEnd {
    /// Reads a number with a dot as a release; a number without a dot may be the hash of a commit.
    fn from(text: &str) -> Self {
        let is_number =
            text.starts_with(|first: char| first.is_ascii_digit()) && text.contains('.');
        match text.parse() {
            Ok(version) if is_number => Self::Release(version),
            _ => Self::Revision(text.to_owned()),
        }
    }
}

/// Searches for the first changed release, and then for the first changed commit if the user named a repository.
///
/// # Errors
/// When the releases or commits cannot be listed, an end contradicts its flag, or nothing can be run.
pub fn first(task: &BisectTask) -> Result<BisectResult> {
    let BisectTask { package, good, bad, fixed, .. } = task;
    let installer = Installer::find();
    let out = task.out.clone().map_or_else(|| store::place("bisect"), Ok)?;
    let runner = BisectRunner::new(task, installer, out)?;
    // An unusable repository or end is reported before the first trial.
    let repository = task
        .git
        .as_ref()
        .map(|source| Repository::open(&source.place, || runner.cache.repository(&source.place)));
    let repository = repository.transpose()?;
    let all = match (good, bad) {
        (BisectEnd::Release(good), BisectEnd::Release(bad)) => {
            Some(releases::between(package, good, bad, &runner.installer)?)
        }
        _ => None,
    };
    let mut ends = match (&repository, &all) {
        (Some(repository), None) => Some(commits::CommitEnds::of_revisions(repository, task)?),
        _ => None,
    };
    let _lock = store::held(&runner.out)?;
    let mut judge = Judge::new(task.signature.clone(), *fixed);
    let releases = all.map(|all| releases::search(&runner, &mut judge, all)).transpose()?;
    let mut no_commits = None;
    if let (Some(repository), Some((old, new))) =
        (&repository, releases.as_ref().and_then(releases::SearchedReleases::edge))
    {
        // The result for the releases is kept, even if their commits cannot be searched.
        match commits::CommitEnds::of_releases(repository, old, new) {
            Ok(found) => ends = Some(found),
            Err(error) => no_commits = Some(format!("{error:#}")),
        }
    }
    let commits = match (&repository, ends, &task.git) {
        (Some(repository), Some(ends), Some(GitSource { first_parent, .. })) => {
            match commits::search(&runner, &mut judge, repository, &ends, *first_parent) {
                Err(error) if releases.is_some() => {
                    no_commits = Some(format!("{error:#}"));
                    None
                }
                found => Some(found?),
            }
        }
        _ => None,
    };
    Ok(BisectResult {
        schema: Schema::CURRENT,
        package: package.clone(),
        fixed_packages: task.fixed_packages.to_string(),
        finding: judge.finding(),
        fixed: *fixed,
        first: releases.as_ref().map(releases::SearchedReleases::first).unwrap_or_default(),
        releases: releases.as_ref().map_or(0, releases::SearchedReleases::count),
        trials: releases.as_ref().map(releases::SearchedReleases::trials).unwrap_or_default(),
        old_again: releases.as_ref().map(releases::SearchedReleases::old_again).unwrap_or_default(),
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
            assert!(matches!(BisectEnd::from(text), BisectEnd::Release(_)), "{text}");
        }
        for text in ["v0.18.5", "1393f75", "12345678", "123a4567", "master", "HEAD~3", "0.18.5^"] {
            assert_eq!(BisectEnd::from(text), BisectEnd::Revision(text.to_owned()));
        }
    }
}
