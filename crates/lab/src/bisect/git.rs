//! Calls of the git program, which lists the commits of a repository and chooses the commits to try.
//!
//! The user's repository is only read. Commits are checked out in a clone that shares its objects.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use super::answer::Commit;
use super::search::TrialMark;

/// The environment variables by which git finds a repository, for example in a hook. They are removed, because zprobe
/// names the directory in every call.
const LOCAL: [&str; 14] = [
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_CONFIG",
    "GIT_CONFIG_COUNT",
    "GIT_CONFIG_PARAMETERS",
    "GIT_DIR",
    "GIT_GRAFT_FILE",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_NO_REPLACE_OBJECTS",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
];

/// Number of characters of a commit's hash that people are shown.
const SHORT: usize = 10;

/// A repository of commits, which is only read.
#[derive(Debug)]
pub struct Repository {
    /// The git directory of the repository.
    dir: PathBuf,
    /// The directory or address by which the user named the repository.
    name: String,
}

/// A clone in which commits are checked out.
#[derive(Debug)]
pub struct WorkingClone {
    dir: PathBuf,
}

/// Tries a commit and returns its mark, or `None` to end the search. The second argument is the approximate number of
/// trials to follow; `None` where git names no number.
type TryCommit<'a> = dyn FnMut(&str, Option<usize>) -> Result<Option<TrialMark>> + 'a;

/// The abbreviated hash of a commit, ten characters long.
pub fn short(id: &str) -> &str {
    id.get(..SHORT).unwrap_or(id)
}

impl Repository {
    /// Opens the repository at `place`: a directory, or an address whose local copy in the directory `copy()` is
    /// brought up to date first.
    ///
    /// # Errors
    /// When git is not installed, or `place` is not a repository or cannot be reached.
    pub fn open(place: &str, copy: impl FnOnce() -> PathBuf) -> Result<Self> {
        let name = place.to_owned();
        if !Path::new(place).is_dir() {
            ensure!(
                is_address(place),
                "--git {place}: no such directory, and not the address of a repository"
            );
            let dir = copy();
            fetch(place, &dir)?;
            return Ok(Self { dir, name });
        }
        let here = |what: &str| asked(Path::new(place), &["rev-parse", what]);
        let dir =
            asked(Path::new(place), &["rev-parse", "--path-format=absolute", "--git-common-dir"])
                .with_context(|| format!("--git {place}: not a git repository"))?;
        // `place` may be a directory inside of another repository, for example an environment.
        if let Ok(top) = here("--show-toplevel")
            && !here("--show-prefix")?.is_empty()
        {
            bail!(
                "--git {place}: lies inside of the repository {top}; give that path if you mean that repository"
            );
        }
        Ok(Self { dir: dir.into(), name })
    }

    /// The hash of the commit that a revision names.
    ///
    /// # Errors
    /// When the revision names no commit.
    pub fn commit(&self, revision: &str) -> Result<String> {
        self.found(revision).with_context(|| {
            let fetched = match self.is_shallow() {
                true => "the clone is shallow: fetch the rest with `git fetch --unshallow --tags`",
                false => "if the commit is new, fetch it with `git fetch --tags`",
            };
            format!("{}: no commit is called {revision}; {fetched}", self.name)
        })
    }

    fn found(&self, revision: &str) -> Option<String> {
        let commit = format!("{revision}^{{commit}}");
        let words = ["rev-parse", "--verify", "--quiet", "--end-of-options", &commit];
        asked(&self.dir, &words).ok().filter(|it| !it.is_empty())
    }

    /// The commit of a release, whose tag is the version with or without a `v`.
    ///
    /// # Errors
    /// When the repository has no such tag.
    pub fn release(&self, version: &str) -> Result<String> {
        let tag = |name: String| self.found(&format!("refs/tags/{name}"));
        tag(format!("v{version}")).or_else(|| tag(version.to_owned())).with_context(|| {
            format!(
                "{}: no tag v{version} or {version}; try `git fetch --tags`, or name the ends as \
                 revisions",
                self.name
            )
        })
    }

    /// The nearest release tag at a commit or at an ancestor of the commit; `None` if there is no such tag.
    pub fn nearest_tag(&self, commit: &str) -> Option<String> {
        asked(&self.dir, &["describe", "--tags", "--abbrev=0", "--match", "*[0-9].[0-9]*", commit])
            .ok()
    }

    /// The commits after `old` up to `new`, the newest last. With `first_parent`, commits on merged branches are left
    /// out.
    ///
    /// # Errors
    /// When the ends are the same commit, have no common ancestor, or are in the wrong order.
    pub fn between(&self, old: &str, new: &str, first_parent: bool) -> Result<Vec<String>> {
        ensure!(old != new, "both ends are the commit {}", short(old));
        let bases = asked(&self.dir, &["merge-base", old, new]).unwrap_or_default();
        ensure!(
            !bases.is_empty(),
            "{}: {} and {} have no commit in common",
            self.name,
            short(old),
            short(new)
        );
        ensure!(
            bases != new,
            "{} comes before {}: exchange the ends, or search for the opposite change (add or omit --fixed)",
            short(new),
            short(old)
        );
        let parents = first_parent.then_some("--first-parent");
        let not = format!("^{old}");
        let words = ["rev-list", "--topo-order", "--reverse"].into_iter().chain(parents);
        let words: Vec<&str> = words.chain([new, &not]).collect();
        Ok(asked(&self.dir, &words)?.lines().map(str::to_owned).collect())
    }

    /// Describes a commit for people: its hash, day and title.
    ///
    /// # Errors
    /// When the repository has no such commit.
    pub fn described(&self, commit: &str) -> Result<Commit> {
        let text = asked(&self.dir, &["show", "--no-patch", "--format=%H%n%cs%n%s", commit])?;
        let mut lines = text.lines().map(str::to_owned);
        let (id, date, title) = (lines.next(), lines.next(), lines.next());
        let (id, date) = id.zip(date).context("git did not describe the commit")?;
        Ok(Commit::new(id, date, title.unwrap_or_default()))
    }

    /// The address of the remote `origin`, or the user's name for this repository if it has no such remote.
    pub fn address(&self) -> String {
        asked(&self.dir, &["config", "--get", "remote.origin.url"])
            .unwrap_or_else(|_| self.name.clone())
    }

    /// Clones the repository without copying its objects.
    ///
    /// # Errors
    /// When git fails.
    pub fn cloned(&self, dir: &Path) -> Result<WorkingClone> {
        let mut command = git(Path::new("."));
        command.args(["clone", "--quiet", "--shared", "--no-checkout", "--"]);
        done(command.arg(&self.dir).arg(dir))?;
        Ok(WorkingClone::at(dir))
    }

    fn is_shallow(&self) -> bool {
        asked(&self.dir, &["rev-parse", "--is-shallow-repository"]).is_ok_and(|it| it == "true")
    }
}

impl WorkingClone {
    /// The clone in the directory `dir`.
    pub fn at(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// The directory in which commits are checked out.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Checks a commit out, and removes all files that were built from another commit.
    ///
    /// # Errors
    /// When git fails.
    pub fn check_out(&self, commit: &str) -> Result<()> {
        asked(&self.dir, &["checkout", "--quiet", "--force", "--detach", commit])?;
        asked(&self.dir, &["clean", "--quiet", "-ffdx"]).map(drop)
    }

    /// Has `git bisect` search for the first new commit, and returns all candidates for it: more than one if some
    /// commits could not be tested. If `trial` ends the search, there is no candidate.
    ///
    /// # Errors
    /// When git cannot search between the ends, or a trial fails.
    pub fn bisect(
        &self,
        (old, new): (&str, &str),
        first_parent: bool,
        trial: &mut TryCommit<'_>,
    ) -> Result<Vec<String>> {
        // With `--no-checkout`, only a trial touches the clone's working tree.
        let mut start =
            vec!["bisect", "start", "--no-checkout", "--term-old=old", "--term-new=new"];
        start.extend(first_parent.then_some("--first-parent"));
        start.extend([new, old]);
        let mut progress = asked(&self.dir, &start)?;
        loop {
            let first = first_of(&self.log()?);
            if !first.is_empty() {
                return Ok(first);
            }
            let next = asked(&self.dir, &["rev-parse", "--verify", "BISECT_HEAD"])?;
            let Some(mark) = trial(&next, steps_left(&progress))? else { return Ok(Vec::new()) };
            let word = match mark {
                TrialMark::Old => "old",
                TrialMark::New => "new",
                TrialMark::Skipped => "skip",
            };
            let output = output(git(&self.dir).args(["bisect", word, &next]))?;
            progress = String::from_utf8_lossy(&output.stdout).into_owned();
            // git exits with 2 where only skipped commits are left, and names them in the log.
            if !output.status.success() && output.status.code() != Some(2) {
                let reason = progress.lines().find(|line| !line.trim().is_empty());
                bail!(
                    "git bisect {word}: {}",
                    reason.map_or_else(|| complaint(&output), str::to_owned)
                );
            }
        }
    }

    /// The log of git's search, for `git bisect replay`.
    ///
    /// # Errors
    /// When there was no search by `git bisect`.
    pub fn log(&self) -> Result<String> {
        asked(&self.dir, &["bisect", "log"])
    }
}

/// The number of trials after the next one, from git's output `Bisecting: 3 revisions left to test after this (roughly
/// 2 steps)`. `None` where git names no number, for example before the trial of a merge base.
fn steps_left(progress: &str) -> Option<usize> {
    let (_, rest) = progress.split_once("(roughly ")?;
    rest.split(' ').next()?.parse().ok()
}

/// The commits that the log of `git bisect` names as the answer.
fn first_of(log: &str) -> Vec<String> {
    let heads = ["# first new commit: [", "# possible first new commit: ["];
    let named = |line: &str| {
        let rest = heads.iter().find_map(|head| line.strip_prefix(head))?;
        Some(rest.split_once(']')?.0.to_owned())
    };
    log.lines().filter_map(named).collect()
}

/// True for the address of a repository: `https://host/name`, `git@host:name`.
fn is_address(text: &str) -> bool {
    let host = text.split_once(':').map(|(host, _)| host);
    host.is_some_and(|host| !host.is_empty() && !host.contains('/') && !host.starts_with('-'))
}

/// Brings a bare copy of a repository up to date, and makes the copy if it does not exist.
fn fetch(url: &str, dir: &Path) -> Result<()> {
    done(git(Path::new(".")).args(["init", "--quiet", "--bare", "--"]).arg(dir))?;
    asked(dir, &["config", "remote.origin.url", url])?;
    asked(
        dir,
        &[
            "fetch",
            "--quiet",
            "--prune",
            "--force",
            "origin",
            "+refs/heads/*:refs/heads/*",
            "+refs/tags/*:refs/tags/*",
        ],
    )
    .map(drop)
}

/// A git command for the directory `dir`, independent of the user's hooks and environment.
fn git(dir: &Path) -> Command {
    let mut command = Command::new("git");
    for name in LOCAL {
        command.env_remove(name);
    }
    command
        .arg("-C")
        .arg(dir)
        // The user's hooks, advice and display settings are meant for the user's own work.
        .args(["-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false"])
        .args(["-c", "log.showSignature=false"])
        .env("LC_ALL", "C")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_LFS_SKIP_SMUDGE", "1")
        .stdin(Stdio::null());
    command
}

/// The output of a git command, without the last line break.
fn asked(dir: &Path, words: &[&str]) -> Result<String> {
    done(git(dir).args(words))
}

fn done(command: &mut Command) -> Result<String> {
    let output = output(command)?;
    ensure!(output.status.success(), "git: {}", complaint(&output));
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

fn output(command: &mut Command) -> Result<Output> {
    command.output().context("cannot start git, which --git needs; install git")
}

/// The reason why git failed: its first error, since later errors follow from the first.
fn complaint(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let lines = || stderr.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines()
        .find_map(|line| line.strip_prefix("fatal: ").or_else(|| line.strip_prefix("error: ")));
    first.or_else(|| lines().next()).map_or_else(|| output.status.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests;
