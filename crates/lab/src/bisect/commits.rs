//! The search over commits, in which git chooses the commits to try.

use std::fs;

use anyhow::{Context as _, Result, anyhow};
use pep440_rs::Version;

use super::answer::{Commit, CommitTrial, SearchedCommits};
use super::git::{Repository, WorkingClone, short};
use super::judge::{Judge, TrialVerdict};
use super::releases::estimate;
use super::search::ReleaseSearch;
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
    pub fn of_revisions(repository: &Repository, task: &BisectTask) -> Result<Self> {
        let commit = |end: &BisectEnd| match end {
            BisectEnd::Release(version) => repository.release(&version.to_string()),
            BisectEnd::Revision(name) => repository.commit(name),
        };
        let (good, bad) = (commit(&task.good)?, commit(&task.bad)?);
        let (old, new) = if task.fixed { (bad, good) } else { (good, bad) };
        let release = match &task.base_release {
            Some(release) => release.clone(),
            None => {
                let tag = repository.nearest_tag(&new);
                tag.as_ref().and_then(|tag| tag.parse().ok()).with_context(|| {
                    format!(
                        "no release tag comes before {}, so its requirements are unknown; name a \
                         release with --with {}==VERSION",
                        short(&new),
                        task.package
                    )
                })?
            }
        };
        Ok(Self { old, new, release })
    }
}

/// Searches for the first commit that behaves like the new end of the range.
///
/// # Errors
/// When an end contradicts its flag, or git fails.
pub fn search(
    runner: &BisectRunner<'_>,
    judge: &mut Judge,
    repository: &Repository,
    ends: &CommitEnds,
    first_parent: bool,
) -> Result<SearchedCommits> {
    let CommitEnds { old, new, release } = ends;
    let BisectTask { package, fixed, .. } = runner.task;
    let order = repository.between(old, new, first_parent)?;
    let scratch = Scratch::new(&runner.cache.checkouts().join(run_id()))?;
    let mut search = CommitSearch {
        runner,
        repository,
        clone: repository.cloned(&scratch.path().join(package))?,
        release: runner.packages(release),
        worker: runner.worker("commits"),
        tried: Vec::new(),
    };
    let trials = ReleaseSearch::trials(order.len() + 1, 1);
    say(format_args!(
        "{package} {} to {}: {} commits; {}",
        short(old),
        short(new),
        order.len(),
        estimate(trials, trials, 1, runner.task.order.repeats)
    ));
    let mut first = search.first(judge, (old, new), first_parent, *fixed)?;
    let place = |id: &str| order.iter().position(|it| it == id).map_or(0, |at| at + 1);
    first.sort_by_key(|id| place(id));
    search.tried.sort_by_key(|trial| place(&trial.commit.id));
    Ok(SearchedCommits {
        repository: repository.address(),
        release: release.to_string(),
        first: first.iter().map(|id| repository.described(id)).collect::<Result<_>>()?,
        count: order.len(),
        trials: search.tried,
    })
}

/// The state of a search over commits.
struct CommitSearch<'a> {
    runner: &'a BisectRunner<'a>,
    repository: &'a Repository,
    clone: WorkingClone,
    release: Packages,
    worker: Worker,
    tried: Vec<CommitTrial>,
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
            let commit = self.repository.described(id)?;
            let label = self.label(&commit);
            let Some(trial) = self.trial(&commit) else { return Ok(Vec::new()) };
            if is_bad {
                judge.learn(&trial.report, &label)?;
            }
            self.judged(judge, commit, trial, None).is_end(&label, is_bad)?;
        }
        let clone = WorkingClone::at(self.clone.dir());
        let found = clone.bisect((old, new), first_parent, &mut |id, left| {
            let commit = self.repository.described(id)?;
            let Some(trial) = self.trial(&commit) else { return Ok(None) };
            let verdict = self.judged(judge, commit, trial, left);
            Ok(Some(judge.mark(verdict.shows)))
        });
        match (found, clone.log()) {
            // A search that did not begin has no log; then the reason why it did not begin is the better error.
            (Err(error), Err(_)) => Err(error),
            (found, log) => {
                fs::write(self.runner.out.join(LOG), log? + "\n")
                    .with_context(|| format!("cannot write {LOG}"))?;
                found
            }
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
        let checkout = environment::CommitCheckout {
            package: &self.runner.task.package,
            id: &commit.id,
            checkout: self.clone.dir(),
        };
        self.runner.commit(&mut self.worker, checkout, &label, &self.release).ok()
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
        self.runner.say(&self.label(&commit), &verdict.in_words(), times, left);
        self.tried.push(CommitTrial { commit, verdict: verdict.clone() });
        verdict
    }

    fn label(&self, commit: &Commit) -> String {
        format!("{} {}", self.runner.task.package, commit.name())
    }
}
