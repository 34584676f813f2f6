//! The search over commits, in which git chooses the commits to try.

use std::fs;
use std::sync::LazyLock;

use anyhow::{Context as _, Result, anyhow};
use pep440_rs::Version;
use regex::Regex;

use super::answer::{Commit, CommitTrial, SearchedCommits};
use super::git::{Found, Repository, WorkingClone, short};
use super::judge::{Judge, TrialVerdict};
use super::trials::{BisectRunner, FinishedTrial};
use super::{BisectEnd, BisectTask};
use crate::console::say;
use crate::environment;
use crate::scratch::Scratch;
use crate::store::run_id;
use crate::worker::Worker;
use zprobe_zoo::Packages;

/// The file in the directory of the runs that holds the log of git's search.
const LOG: &str = "git-bisect.log";

/// The number of a pull request in a commit's title, as GitHub writes it for squashed commits and for merge commits.
static PULL_REQUEST: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"\(#(\d+)\)\s*$|^Merge pull request #(\d+) ").ok());

/// The two ends of a search over commits.
#[derive(Debug)]
pub struct CommitEnds {
    /// The commit at the old end.
    old: String,
    /// The commit at the new end.
    new: String,
    /// The release whose environment has the requirements of the commits.
    release: Version,
}

impl CommitEnds {
    /// The commits of two releases as the ends. All commits are tried in the environment of the new release, which
    /// has their requirements.
    ///
    /// # Errors
    /// When a release has no tag in the repository.
    pub fn of_releases(repository: &Repository, old: &Version, new: &Version) -> Result<Self> {
        let commit = |version: &Version| repository.release(&version.to_string());
        Ok(Self { old: commit(old)?, new: commit(new)?, release: new.clone() })
    }

    /// The commits of two ends that are not both releases.
    ///
    /// # Errors
    /// When an end is not in the repository, or no release is known in whose environment the commits can be
    /// installed.
    pub fn of_revisions(repository: &Repository, question: &BisectTask) -> Result<Self> {
        let commit = |end: &BisectEnd| match end {
            BisectEnd::Release(version) => repository.release(&version.to_string()),
            BisectEnd::Revision(name) => repository.commit(name),
        };
        let (good, bad) = (commit(&question.good)?, commit(&question.bad)?);
        let (old, new) = if question.fixed { (bad, good) } else { (good, bad) };
        let release = match &question.over {
            Some(release) => release.clone(),
            None => {
                let tag = repository.nearest_tag(&new);
                tag.as_ref().and_then(|tag| tag.parse().ok()).with_context(|| {
                    format!(
                        "no release tag comes before {}, so its requirements are unknown; name a \
                         release with --with {}==VERSION",
                        short(&new),
                        question.package
                    )
                })?
            }
        };
        Ok(Self { old, new, release })
    }
}

/// Searches for the first commit that behaves like the new end.
///
/// # Errors
/// When an end contradicts its flag, or git fails.
pub fn search(
    trials: &BisectRunner<'_>,
    judge: &mut Judge,
    repository: &Repository,
    ends: &CommitEnds,
    first_parent: bool,
) -> Result<SearchedCommits> {
    let CommitEnds { old, new, release } = ends;
    let BisectTask { package, fixed, .. } = trials.question;
    let order = repository.between(old, new, first_parent)?;
    let scratch = Scratch::new(&trials.cache.checkouts().join(run_id()))?;
    let mut walk = CommitSearch {
        trials,
        repository,
        clone: repository.cloned(&scratch.path().join(package))?,
        release: trials.packages(release),
        worker: trials.worker("commits"),
        tried: Vec::new(),
    };
    say(format_args!("{package} {} to {}: {} commits", short(old), short(new), order.len()));
    let mut first = walk.first(judge, (old, new), first_parent, *fixed)?;
    let place = |id: &str| order.iter().position(|it| it == id).map_or(0, |at| at + 1);
    first.sort_by_key(|id| place(id));
    walk.tried.sort_by_key(|(commit, _)| place(&commit.id));
    Ok(SearchedCommits {
        repository: repository.address(),
        release: release.to_string(),
        first: first.iter().map(|id| described(repository, id)).collect::<Result<_>>()?,
        count: order.len(),
        trials: walk
            .tried
            .into_iter()
            .map(|(commit, TrialVerdict { shows, said })| CommitTrial { commit, shows, said })
            .collect(),
    })
}

/// A commit, with the pull request that its title names.
fn described(repository: &Repository, id: &str) -> Result<Commit> {
    let it = repository.described(id)?;
    let pull_request = pull_request(&it.title);
    Ok(Commit { id: it.id, date: it.date, title: it.title, pull_request })
}

/// The number of the pull request that a title names.
fn pull_request(title: &str) -> Option<u64> {
    let found = PULL_REQUEST.as_ref()?.captures(title)?;
    found.get(1).or_else(|| found.get(2))?.as_str().parse().ok()
}

/// The state of a search over commits.
struct CommitSearch<'a> {
    trials: &'a BisectRunner<'a>,
    repository: &'a Repository,
    clone: WorkingClone,
    release: Packages,
    worker: Worker,
    tried: Vec<(Commit, TrialVerdict)>,
}

impl CommitSearch<'_> {
    /// Tries both ends, and then the commits that git chooses. The result is empty if the user has ended the search.
    fn first(
        &mut self,
        judge: &mut Judge,
        (old, new): (&str, &str),
        first_parent: bool,
        fixed: bool,
    ) -> Result<Vec<String>> {
        let (bad, good) = if fixed { (old, new) } else { (new, old) };
        for (id, is_bad) in [(bad, true), (good, false)] {
            let commit = described(self.repository, id)?;
            let label = self.label(&commit);
            let Some(trial) = self.trial(&commit) else { return Ok(Vec::new()) };
            if is_bad {
                judge.learn(&trial.report, &label)?;
            }
            self.judged(judge, commit, trial, None).is_end(&label, is_bad)?;
        }
        let clone = WorkingClone::at(self.clone.dir());
        let found = clone.bisect((old, new), first_parent, &mut |id, left| {
            let commit = described(self.repository, id)?;
            let Some(trial) = self.trial(&commit) else { return Ok(None) };
            let verdict = self.judged(judge, commit, trial, Some(left));
            Ok(Some(judge.mark(verdict.shows)))
        });
        let found = match (found, clone.log()) {
            // A search that did not begin has no log; then the reason why it did not begin is the better error.
            (Err(error), Err(_)) => return Err(error),
            (found, log) => {
                fs::write(self.trials.out.join(LOG), log? + "\n")
                    .with_context(|| format!("cannot write {LOG}"))?;
                found?
            }
        };
        match found {
            Found::First(first) => Ok(first),
            Found::Ended => Ok(Vec::new()),
        }
    }

    /// Tries a commit; `None` if the user has ended the search.
    fn trial(&mut self, commit: &Commit) -> Option<FinishedTrial> {
        let label = self.label(commit);
        if let Err(error) = self.clone.check_out(&commit.id) {
            return Some(FinishedTrial::without_run(anyhow!(
                "the commit cannot be checked out: {error:#}"
            )));
        }
        let checkout = environment::Commit {
            package: &self.trials.question.package,
            id: &commit.id,
            checkout: self.clone.dir(),
        };
        self.trials.commit(&mut self.worker, checkout, &label, &self.release).ok()
    }

    /// Prints the verdict on a trial and keeps it.
    fn judged(
        &mut self,
        judge: &Judge,
        commit: Commit,
        trial: FinishedTrial,
        left: Option<usize>,
    ) -> TrialVerdict {
        let times = trial.times();
        let verdict = judge.verdict(trial.report);
        self.trials.say(&self.label(&commit), &verdict.in_words(), times, left);
        self.tried.push((commit, verdict.clone()));
        verdict
    }

    fn label(&self, commit: &Commit) -> String {
        format!("{} {}", self.trials.question.package, commit.name())
    }
}
