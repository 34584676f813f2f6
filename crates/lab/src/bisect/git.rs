//! The git program: it says which commits there are, and chooses those to try.
//!
//! The user's repository is only read. What is checked out is a clone that shares its objects.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use super::search::Mark;

/// Variables by which git finds a repository, for example in a hook. Here its directory is always named.
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

/// Name of a commit as long as people read it.
const SHORT: usize = 10;

/// A repository of commits, which is only read.
#[derive(Debug)]
pub struct Repository {
    /// The git directory.
    dir: PathBuf,
    /// The name by which the user knows it.
    name: String,
}

/// A commit, as people read of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// The whole name.
    pub id: String,
    /// The day on which it was committed, `2026-01-18`.
    pub date: String,
    /// The first line of its message.
    pub title: String,
}

/// A clone in which commits are checked out.
#[derive(Debug)]
pub struct Clone {
    dir: PathBuf,
}

/// End of git's search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The commits among which the first new one is, the only one if there is one.
    First(Vec<String>),
    /// Nothing, since a trial ended the search.
    Ended,
}

/// The first characters of a commit's name.
pub fn short(id: &str) -> &str {
    id.get(..SHORT).unwrap_or(id)
}

impl Repository {
    /// The repository at `place`, a directory, or an address from which `copy` is brought up to date.
    ///
    /// # Errors
    /// When there is no git, no repository, or no way to it.
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
        // A directory inside of another repository, for example an environment.
        if let Ok(top) = here("--show-toplevel")
            && !here("--show-prefix")?.is_empty()
        {
            bail!("--git {place}: lies inside of the repository {top}; name that, if it is meant");
        }
        Ok(Self { dir: dir.into(), name })
    }

    /// The commit that a revision names.
    ///
    /// # Errors
    /// When it names none.
    pub fn commit(&self, revision: &str) -> Result<String> {
        self.found(revision).with_context(|| {
            let fetched = match self.is_shallow() {
                true => "it is shallow: `git fetch --unshallow --tags` brings the rest",
                false => "`git fetch --tags` brings what is new",
            };
            format!("{}: no commit is called {revision}; {fetched}", self.name)
        })
    }

    fn found(&self, revision: &str) -> Option<String> {
        let commit = format!("{revision}^{{commit}}");
        let words = ["rev-parse", "--verify", "--quiet", "--end-of-options", &commit];
        asked(&self.dir, &words).ok().filter(|it| !it.is_empty())
    }

    /// The commit of a release: its tag is the version, with or without a `v`.
    ///
    /// # Errors
    /// When there is no such tag.
    pub fn release(&self, version: &str) -> Result<String> {
        let tag = |name: String| self.found(&format!("refs/tags/{name}"));
        tag(format!("v{version}")).or_else(|| tag(version.to_owned())).with_context(|| {
            format!(
                "{}: no tag v{version} or {version}; `git fetch --tags` may bring it, or name the ends as \
                 revisions",
                self.name
            )
        })
    }

    /// The tag of a release from which a commit descends, the nearest one; none if there is none.
    pub fn nearest_tag(&self, commit: &str) -> Option<String> {
        asked(&self.dir, &["describe", "--tags", "--abbrev=0", "--match", "*[0-9].[0-9]*", commit])
            .ok()
    }

    /// Commits among which a search from the one to the other is, the newest last; with `first_parent`, of
    /// merges alone where there are some.
    ///
    /// # Errors
    /// When no search can be made between them.
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
            "{} comes before {}: exchange the ends, or look for the other change (--fixed, or without)",
            short(new),
            short(old)
        );
        let parents = first_parent.then_some("--first-parent");
        let not = format!("^{old}");
        let words = ["rev-list", "--topo-order", "--reverse"].into_iter().chain(parents);
        let words: Vec<&str> = words.chain([new, &not]).collect();
        Ok(asked(&self.dir, &words)?.lines().map(str::to_owned).collect())
    }

    /// A commit in words.
    ///
    /// # Errors
    /// When there is no such commit.
    pub fn described(&self, commit: &str) -> Result<Described> {
        let said = asked(&self.dir, &["show", "--no-patch", "--format=%H%n%cs%n%s", commit])?;
        let mut lines = said.lines().map(str::to_owned);
        let (id, date, title) = (lines.next(), lines.next(), lines.next());
        let (id, date) = id.zip(date).context("git describes no commit")?;
        Ok(Described { id, date, title: title.unwrap_or_default() })
    }

    /// The address of the repository that this one was cloned from; its own where it has none.
    pub fn address(&self) -> String {
        asked(&self.dir, &["config", "--get", "remote.origin.url"])
            .unwrap_or_else(|_| self.name.clone())
    }

    /// Clones the repository without copying its objects.
    ///
    /// # Errors
    /// When git cannot.
    pub fn cloned(&self, dir: &Path) -> Result<Clone> {
        let mut command = git(Path::new("."));
        command.args(["clone", "--quiet", "--shared", "--no-checkout", "--"]);
        done(command.arg(&self.dir).arg(dir))?;
        Ok(Clone::at(dir))
    }

    fn is_shallow(&self) -> bool {
        asked(&self.dir, &["rev-parse", "--is-shallow-repository"]).is_ok_and(|it| it == "true")
    }
}

impl Clone {
    /// The clone in a directory.
    pub fn at(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// The directory in which commits are checked out.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Checks a commit out, without anything that was built of another.
    ///
    /// # Errors
    /// When git cannot.
    pub fn check_out(&self, commit: &str) -> Result<()> {
        asked(&self.dir, &["checkout", "--quiet", "--force", "--detach", commit])?;
        asked(&self.dir, &["clean", "--quiet", "-ffdx"]).map(drop)
    }

    /// Has git look for the first new commit. `trial` tries a commit, given about how many more will follow; none
    /// ends the search.
    ///
    /// # Errors
    /// When git finds no way, and those of a trial.
    pub fn bisect(
        &self,
        (old, new): (&str, &str),
        first_parent: bool,
        trial: &mut dyn FnMut(&str, usize) -> Result<Option<Mark>>,
    ) -> Result<Found> {
        // The clone's working tree is only touched where a trial wants it.
        let mut start =
            vec!["bisect", "start", "--no-checkout", "--term-old=old", "--term-new=new"];
        start.extend(first_parent.then_some("--first-parent"));
        start.extend([new, old]);
        asked(&self.dir, &start)?;
        loop {
            let log = asked(&self.dir, &["bisect", "log"])?;
            let first = first_of(&log);
            if !first.is_empty() {
                return Ok(Found::First(first));
            }
            let next = asked(&self.dir, &["rev-parse", "--verify", "BISECT_HEAD"])?;
            let Some(mark) = trial(&next, self.steps(first_parent))? else {
                return Ok(Found::Ended);
            };
            let word = match mark {
                Mark::Old => "old",
                Mark::New => "new",
                Mark::Skipped => "skip",
            };
            let output = output(git(&self.dir).args(["bisect", word, &next]))?;
            // git ends with 2 where only skipped commits are left; the log has them.
            if !output.status.success() && output.status.code() != Some(2) {
                let said = String::from_utf8_lossy(&output.stdout);
                let why = said.lines().find(|line| !line.trim().is_empty());
                bail!(
                    "git bisect {word}: {}",
                    why.map_or_else(|| complaint(&output), str::to_owned)
                );
            }
        }
    }

    /// The log of git's search, for `git bisect replay`.
    ///
    /// # Errors
    /// When there was no search.
    pub fn log(&self) -> Result<String> {
        asked(&self.dir, &["bisect", "log"])
    }

    /// Number of trials after the next one, about; 0 where git does not say.
    fn steps(&self, first_parent: bool) -> usize {
        let parents = first_parent.then_some("--first-parent");
        let olds =
            asked(&self.dir, &["for-each-ref", "--format=^%(objectname)", "refs/bisect/old-*"]);
        let olds = olds.unwrap_or_default();
        let words: Vec<&str> = ["rev-list", "--bisect-vars"]
            .into_iter()
            .chain(parents)
            .chain(["refs/bisect/new"])
            .chain(olds.lines())
            .collect();
        let said = asked(&self.dir, &words).unwrap_or_default();
        let steps = said.lines().find_map(|line| line.strip_prefix("bisect_steps="));
        steps.and_then(|text| text.parse().ok()).unwrap_or(0)
    }
}

/// The commits that a log of `git bisect` names as the answer.
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

/// Brings a bare copy of a repository up to date.
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

/// The git program for a directory.
fn git(dir: &Path) -> Command {
    let mut command = Command::new("git");
    for name in LOCAL {
        command.env_remove(name);
    }
    command
        .arg("-C")
        .arg(dir)
        // The user's hooks, advice for her, and what she wants to see of commits, are about her own work.
        .args(["-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false"])
        .args(["-c", "log.showSignature=false"])
        .env("LC_ALL", "C")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_LFS_SKIP_SMUDGE", "1")
        .stdin(Stdio::null());
    command
}

/// The answer of git, without the line's end.
fn asked(dir: &Path, words: &[&str]) -> Result<String> {
    done(git(dir).args(words))
}

fn done(command: &mut Command) -> Result<String> {
    let output = output(command)?;
    ensure!(output.status.success(), "git: {}", complaint(&output));
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

fn output(command: &mut Command) -> Result<Output> {
    command.output().context("cannot start git, which --git needs; install it")
}

/// The reason for which git failed: its first error, since others follow from it.
fn complaint(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    let lines = || said.lines().map(str::trim).filter(|line| !line.is_empty());
    let told = lines()
        .find_map(|line| line.strip_prefix("fatal: ").or_else(|| line.strip_prefix("error: ")));
    told.or_else(|| lines().next()).map_or_else(|| output.status.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests;
