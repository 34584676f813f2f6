//! The answer of a search, as programs read it.

use schemars::JsonSchema;
use serde::Serialize;

use super::git::short;
use zprobe_report::Schema;

/// End of a search, as `--output-format json` has it. Fields are only added within a schema version, which is
/// checked in as `schema/bisect.v1.schema.json`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Answer {
    /// Version of this schema.
    pub schema: Schema,
    /// Package whose releases or commits were tried.
    pub package: String,
    /// Packages that stayed the same, in words.
    pub beside: String,
    /// The finding, by its code and name.
    pub finding: String,
    /// True if the first release or commit without the finding was looked for.
    pub fixed: bool,
    /// Releases among which the first one is, the only one if there is one; none if the search was
    /// interrupted, or was over commits alone.
    pub first: Vec<String>,
    /// Number of releases from the one end to the other; 0 if only commits were searched.
    pub releases: usize,
    /// Releases that were tried, in their order.
    pub trials: Vec<Trial>,
    /// Releases that are as the old end although they come behind a changed one.
    pub old_again: Vec<String>,
    /// The search over commits, if there was one.
    pub commits: Option<Commits>,
    /// The reason why commits were not searched although it was asked for.
    pub no_commits: Option<String>,
}

/// A release that was tried.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Trial {
    /// The release.
    pub release: String,
    /// True if it shows the finding; none if it could not be tested.
    pub shows: Option<bool>,
    /// Result of the run in a few words, or the reason why there is none.
    pub said: String,
}

/// The search over commits.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Commits {
    /// Address of the repository that they are from.
    pub repository: String,
    /// Release over whose environment they were installed.
    pub release: String,
    /// Commits among which the first one is, the only one if there is one; none if the search was interrupted.
    pub first: Vec<Commit>,
    /// Number of commits behind the old end, up to the new one.
    pub count: usize,
    /// Commits that were tried, the oldest first.
    pub trials: Vec<CommitTrial>,
}

/// A commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Commit {
    /// Name of the commit, in full.
    pub id: String,
    /// The day on which it was committed, `2026-01-18`.
    pub date: String,
    /// The first line of its message.
    pub title: String,
    /// Number of the pull request that its title names.
    pub pull_request: Option<u64>,
}

/// A commit that was tried.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CommitTrial {
    /// The commit.
    #[serde(flatten)]
    pub commit: Commit,
    /// True if it shows the finding; none if it could not be tested.
    pub shows: Option<bool>,
    /// Result of the run in a few words, or the reason why there is none.
    pub said: String,
}

impl Answer {
    /// True if the first one, or those among which it is, are known.
    pub fn is_known(&self) -> bool {
        match &self.commits {
            Some(commits) => !commits.first.is_empty(),
            None => !self.first.is_empty(),
        }
    }
}

impl Commit {
    /// The commit in short, with its pull request: `1393f75dc2 (#7788)`.
    pub fn name(&self) -> String {
        let pull_request = self.pull_request.map(|number| format!(" (#{number})"));
        format!("{}{}", short(&self.id), pull_request.unwrap_or_default())
    }
}
