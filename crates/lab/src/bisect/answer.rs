//! The result of a bisection, as programs read it.

use std::sync::LazyLock;

use regex::Regex;
use schemars::JsonSchema;
use serde::Serialize;

use super::git::short;
use super::judge::TrialVerdict;
use zprobe_report::Schema;

/// The number of a pull request in a commit's title, as GitHub writes it for squashed commits and for merge commits.
static PULL_REQUEST: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"\(#(\d+)\)\s*$|^Merge pull request #(\d+) ").ok());

/// The result of a bisection, as `--output-format json` prints it. Within a schema version, fields are only added;
/// the schema is checked in as `schema/bisect.v1.schema.json`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct BisectResult {
    /// The version of this schema.
    pub schema: Schema,
    /// The package whose releases or commits were tried.
    pub package: String,
    /// The packages that stayed the same in all trials, in words.
    #[serde(rename = "beside")]
    pub fixed_packages: String,
    /// The finding that was searched for, by its code and name.
    pub finding: String,
    /// True if the search was for the first release or commit without the finding.
    pub fixed: bool,
    /// The first changed release, or all candidates for it if some releases could not be tested. Empty if the search
    /// was interrupted, or if only commits were searched.
    pub first: Vec<String>,
    /// The number of releases in the search, both ends included; 0 if only commits were searched.
    pub releases: usize,
    /// The releases that were tried, in ascending order.
    pub trials: Vec<ReleaseTrial>,
    /// The releases that behave like the old end although they come after a changed release.
    pub old_again: Vec<String>,
    /// The search over commits; `None` if commits were not searched.
    pub commits: Option<SearchedCommits>,
    /// The reason why the commits were not searched although the user asked for them; `None` otherwise.
    pub no_commits: Option<String>,
}

/// A release that was tried.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ReleaseTrial {
    /// The version of the release.
    pub release: String,
    /// The verdict on the release.
    #[serde(flatten)]
    pub verdict: TrialVerdict,
}

/// The result of the search over commits.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SearchedCommits {
    /// The address of the repository that the commits are from.
    pub repository: String,
    /// The release whose environment had the requirements of the commits.
    pub release: String,
    /// The first changed commit, or all candidates for it if some commits could not be tested. Empty if the search
    /// was interrupted.
    pub first: Vec<Commit>,
    /// The number of commits after the old end, up to and including the new end.
    pub count: usize,
    /// The commits that were tried, the oldest first.
    pub trials: Vec<CommitTrial>,
}

/// A commit of the package's repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Commit {
    /// The full hash of the commit.
    pub id: String,
    /// The day on which the commit was committed, for example `2026-01-18`.
    pub date: String,
    /// The first line of the commit's message.
    pub title: String,
    /// The number of the pull request that the title names; `None` if the title names none.
    pub pull_request: Option<u64>,
}

/// A commit that was tried.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CommitTrial {
    /// The commit that was tried.
    #[serde(flatten)]
    pub commit: Commit,
    /// The verdict on the commit.
    #[serde(flatten)]
    pub verdict: TrialVerdict,
}

impl BisectResult {
    /// True if the search found the first changed release or commit, or the candidates for it.
    pub fn is_known(&self) -> bool {
        match &self.commits {
            Some(commits) => !commits.first.is_empty(),
            None => !self.first.is_empty(),
        }
    }
}

impl Commit {
    /// A commit with the pull request that its title names.
    pub fn new(id: String, date: String, title: String) -> Self {
        let found = PULL_REQUEST.as_ref().and_then(|pattern| pattern.captures(&title));
        let number =
            found.and_then(|found| found.get(1).or_else(|| found.get(2))?.as_str().parse().ok());
        Self { pull_request: number, id, date, title }
    }

    /// The abbreviated hash of the commit, with its pull request: `1393f75dc2 (#7788)`.
    pub fn name(&self) -> String {
        let pull_request = self.pull_request.map(|number| format!(" (#{number})"));
        format!("{}{}", short(&self.id), pull_request.unwrap_or_default())
    }
}
