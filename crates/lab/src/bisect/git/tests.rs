//! Tests of searches with the real git, in small repositories in which a file of each commit tells how to mark the
//! commit.

use std::fs;

use super::*;

/// A repository in which each commit holds a file with one word, and its temporary directory.
struct Fixture {
    dir: tempfile::TempDir,
}

impl Fixture {
    /// A repository with a first commit, whose word is `old`.
    fn new() -> Self {
        let fixture = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(fixture.place()).unwrap();
        fixture.git(&["init", "--quiet", "--initial-branch", "main"]);
        fixture.commit("old", "begin");
        fixture
    }

    fn place(&self) -> PathBuf {
        self.dir.path().join("repository")
    }

    fn git(&self, words: &[&str]) -> String {
        let mut command = git(&self.place());
        command.args(["-c", "user.name=A", "-c", "user.email=a@example.org"]);
        command.args(["-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false"]);
        done(command.args(words)).unwrap()
    }

    /// Commits a file with this word, and returns the hash of the commit.
    fn commit(&self, word: &str, title: &str) -> String {
        fs::write(self.place().join("word"), word).unwrap();
        self.git(&["add", "word"]);
        self.git(&["commit", "--quiet", "--allow-empty", "-m", title]);
        self.head()
    }

    fn head(&self) -> String {
        self.git(&["rev-parse", "HEAD"])
    }

    fn open(&self) -> Repository {
        open(&self.place())
    }

    /// Searches between two commits, marking each commit by its word; returns the result and the tried commits.
    fn search(
        &self,
        old: &str,
        new: &str,
        first_parent: bool,
    ) -> Result<(Vec<String>, Vec<String>)> {
        let clone = self.open().cloned(&self.dir.path().join("clone")).unwrap();
        let mut tried = Vec::new();
        let found = clone.bisect((old, new), first_parent, &mut |id, _| {
            tried.push(id.to_owned());
            clone.check_out(id)?;
            let word = fs::read_to_string(clone.dir().join("word"))?;
            Ok(match word.as_str() {
                "old" => Some(TrialMark::Old),
                "new" => Some(TrialMark::New),
                "broken" => Some(TrialMark::Skipped),
                _ => None,
            })
        });
        Ok((found?, tried))
    }
}

fn open(place: &Path) -> Repository {
    Repository::open(place.to_str().unwrap(), || unreachable!("it is a directory")).unwrap()
}

/// A repository with a first commit and then one commit for each word, and the hashes of all commits.
fn line(words: &[&str]) -> (Fixture, Vec<String>) {
    let fixture = Fixture::new();
    let mut all = vec![fixture.head()];
    all.extend(
        words.iter().enumerate().map(|(at, word)| fixture.commit(word, &format!("no. {at}"))),
    );
    (fixture, all)
}

#[test]
fn git_finds_the_first_new_commit_with_few_trials() {
    let (fixture, all) = line(&["old", "old", "old", "new", "new", "new", "new"]);
    let (found, tried) = fixture.search(&all[0], &all[7], false).unwrap();
    assert_eq!(found, [all[4].clone()]);
    assert!(tried.len() <= 3, "{tried:?}");
}

#[test]
fn the_number_of_trials_to_follow_is_the_estimate_of_git() {
    let (fixture, all) = line(&["old", "old", "old", "new", "new", "new", "new"]);
    let clone = fixture.open().cloned(&fixture.dir.path().join("clone")).unwrap();
    let mut estimates = Vec::new();
    let found = clone.bisect((&all[0], &all[7]), false, &mut |id, left| {
        estimates.push(left);
        let is_new = all[4..].iter().any(|new| new == id);
        Ok(Some(if is_new { TrialMark::New } else { TrialMark::Old }))
    });
    assert_eq!(found.unwrap(), [all[4].clone()]);
    assert_eq!(estimates, [Some(2), Some(1), Some(0)]);
    assert_eq!(steps_left("Bisecting: a merge base must be tested\n"), None);
}

#[test]
fn commits_that_cannot_be_tested_are_named_where_they_matter() {
    let (fixture, all) = line(&["old", "broken", "broken", "new"]);
    let (mut first, _) = fixture.search(&all[0], &all[4], false).unwrap();
    first.sort();
    let mut expected = all[2..].to_vec();
    expected.sort();
    assert_eq!(first, expected);
}

#[test]
fn a_trial_without_a_mark_ends_the_search() {
    let (fixture, all) = line(&["old", "stop", "stop", "new", "new"]);
    assert!(fixture.search(&all[0], &all[5], false).unwrap().0.is_empty());
}

#[test]
fn of_a_merge_the_commit_on_the_branch_is_found_or_the_merge_itself() {
    let fixture = Fixture::new();
    let old = fixture.head();
    fixture.git(&["checkout", "--quiet", "-b", "branch"]);
    let culprit = fixture.commit("new", "on the branch");
    fixture.commit("new", "more on the branch");
    fixture.git(&["checkout", "--quiet", "main"]);
    fixture.git(&["commit", "--quiet", "--allow-empty", "-m", "meanwhile"]);
    fixture.git(&["merge", "--quiet", "--no-ff", "-m", "merge", "branch"]);
    let merge = fixture.head();
    let repository = fixture.open();
    assert_eq!(repository.between(&old, &merge, false).unwrap().len(), 4);
    assert_eq!(repository.between(&old, &merge, true).unwrap().len(), 2);
    assert_eq!(fixture.search(&old, &merge, false).unwrap().0, [culprit]);
    fs::remove_dir_all(fixture.dir.path().join("clone")).unwrap();
    assert_eq!(fixture.search(&old, &merge, true).unwrap().0, std::slice::from_ref(&merge));
}

#[test]
fn an_old_end_on_a_branch_of_its_own_is_searched_from_where_the_branches_part() {
    let fixture = Fixture::new();
    let base = fixture.head();
    fixture.git(&["checkout", "--quiet", "-b", "release"]);
    let release = fixture.commit("old", "only in the release");
    fixture.git(&["checkout", "--quiet", "main"]);
    fixture.commit("old", "still good");
    let culprit = fixture.commit("new", "the change");
    let new = fixture.commit("new", "later");
    let (found, tried) = fixture.search(&release, &new, false).unwrap();
    assert_eq!(found, std::slice::from_ref(&culprit));
    assert_eq!(tried[0], base);
    // The change was reverted on this branch only.
    fixture.git(&["checkout", "--quiet", "-b", "mended", &culprit]);
    let mended = fixture.commit("old", "mended on a branch");
    fs::remove_dir_all(fixture.dir.path().join("clone")).unwrap();
    let error = fixture.search(&mended, &new, false).unwrap_err().to_string();
    assert!(error.contains("merge base"), "{error}");
}

#[test]
fn the_repository_of_the_user_stays_as_it_is() {
    let (fixture, all) = line(&["old", "new", "new"]);
    fs::write(fixture.place().join("word"), "not committed").unwrap();
    let state = || {
        let refs = fixture.git(&["for-each-ref"]);
        (fixture.git(&["status", "--porcelain", "--branch"]), refs, fixture.head())
    };
    let before = state();
    fixture.search(&all[0], &all[3], false).unwrap();
    assert_eq!(state(), before);
    assert!(!fixture.place().join(".git/BISECT_LOG").exists());
}

#[test]
fn nothing_that_was_built_of_a_commit_is_there_when_the_next_is_checked_out() {
    let (fixture, all) = line(&["new"]);
    let clone = fixture.open().cloned(&fixture.dir.path().join("clone")).unwrap();
    clone.check_out(&all[1]).unwrap();
    fs::create_dir(clone.dir().join("build")).unwrap();
    fs::write(clone.dir().join("build/module.py"), "").unwrap();
    fs::write(clone.dir().join("word"), "changed by the build").unwrap();
    clone.check_out(&all[0]).unwrap();
    assert_eq!(fs::read_to_string(clone.dir().join("word")).unwrap(), "old");
    assert!(!clone.dir().join("build").exists());
}

#[test]
fn ends_between_which_there_is_no_search_are_refused() {
    let (fixture, all) = line(&["new"]);
    fixture.git(&["checkout", "--quiet", "--orphan", "other"]);
    let stranger = fixture.commit("new", "another beginning");
    let repository = fixture.open();
    for (old, new, words) in [
        (&all[1], &all[0], "exchange the ends"),
        (&all[0], &all[0], "both ends are the commit"),
        (&all[0], &stranger, "have no commit in common"),
    ] {
        let error = repository.between(old, new, false).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn releases_are_tags_and_revisions_are_what_git_knows() {
    let (fixture, all) = line(&["old", "new"]);
    fixture.git(&["tag", "v0.1.0", &all[0]]);
    fixture.git(&["tag", "-a", "-m", "annotated", "0.2.0", &all[1]]);
    let repository = fixture.open();
    assert_eq!(repository.release("0.1.0").unwrap(), all[0]);
    assert_eq!(repository.release("0.2.0").unwrap(), all[1]);
    assert_eq!(repository.commit("main~1").unwrap(), all[1]);
    assert_eq!(repository.nearest_tag(&all[2]).as_deref(), Some("0.2.0"));
    let error = repository.release("0.3.0").unwrap_err().to_string();
    assert!(error.contains("no tag v0.3.0 or 0.3.0"), "{error}");
    for name in ["no-such-branch", "--all", ""] {
        let error = repository.commit(name).unwrap_err().to_string();
        assert!(error.contains("no commit is called"), "{error}");
    }
    let described = repository.described(&all[2]).unwrap();
    assert_eq!((described.id.as_str(), described.title.as_str()), (all[2].as_str(), "no. 1"));
}

#[test]
fn a_place_that_is_no_repository_is_refused() {
    let (fixture, _) = line(&[]);
    let inside = fixture.place().join("inside");
    fs::create_dir(&inside).unwrap();
    fs::write(inside.join("file"), "").unwrap();
    for (place, words) in [
        (fixture.dir.path(), "not a git repository"),
        (&inside, "lies inside of the repository"),
        (&fixture.dir.path().join("nowhere"), "no such directory"),
    ] {
        let opened = Repository::open(place.to_str().unwrap(), || unreachable!());
        let error = format!("{:#}", opened.unwrap_err());
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn an_address_is_copied_once_and_then_brought_up_to_date() {
    let (fixture, _) = line(&[]);
    let url = format!("file://{}", fixture.place().display());
    let copy = || fixture.dir.path().join("copy.git");
    assert_eq!(Repository::open(&url, copy).unwrap().commit("main").unwrap(), fixture.head());
    let next = fixture.commit("new", "published later");
    fixture.git(&["tag", "v1.0"]);
    let repository = Repository::open(&url, copy).unwrap();
    assert_eq!(
        (repository.commit("main").unwrap(), repository.release("1.0").unwrap()),
        (next.clone(), next)
    );
    assert_eq!(repository.address(), url);
    assert!(
        ["https://host/name", "git@host:name", "ssh://host/name"].iter().all(|it| is_address(it))
    );
    assert!(!["name", "./a:b", "--upload-pack=x:y", ":x"].iter().any(|it| is_address(it)));
}
