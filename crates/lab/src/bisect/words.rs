//! The result of a bisection as a block of text to paste.

use std::fmt::Write as _;
use std::sync::LazyLock;

use anyhow::Result;
use regex::Regex;

use super::answer::{BisectResult, Commit, SearchedCommits};
use super::judge::TrialVerdict;
use crate::table::to_json;
use zprobe_report::Form;
use zprobe_report::Verdict;
use zprobe_report::render::WIDTH;
use zprobe_report::words::amount;

/// The address of a repository on GitHub: `https://github.com/OWNER/NAME.git`, `git@github.com:OWNER/NAME`.
static GITHUB: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"(?:@|//)github\.com[:/]([\w.-]+)/([\w.-]+?)(?:\.git)?/?$").ok());

/// Renders an answer in one of [`Form::OF_A_TABLE`]; `command` is the command line that repeats the search.
///
/// # Errors
/// When JSON cannot be written, which does not happen with an answer.
pub fn render(answer: &BisectResult, command: &str, form: Form) -> Result<String> {
    if form == Form::Json {
        return to_json(answer);
    }
    let mut text = String::new();
    if answer.releases > 0 {
        text += &(headline(answer) + "\n");
    }
    if let Some(commits) = &answer.commits {
        text += &commit_headline(answer, commits);
    }
    text += "\n";
    let releases = answer.trials.iter().map(|it| (it.release.clone(), &it.verdict));
    table(&mut text, releases.collect());
    if let Some(commits) = &answer.commits {
        if !answer.trials.is_empty() {
            text += "\n";
        }
        let trials = commits.trials.iter().map(|it| (it.commit.name(), &it.verdict));
        table(&mut text, trials.collect());
    }
    if !answer.old_again.is_empty() {
        let _ = writeln!(
            text,
            "\nnote: the bug comes and goes: {} behaves like the old end again",
            answer.old_again.join(", ")
        );
    }
    if let Some(other) = hiding(answer) {
        let _ = writeln!(
            text,
            "\nnote: {} has {other}, which may hide {}",
            answer.first[0], answer.finding
        );
    }
    if let Some(reason) = &answer.no_commits {
        let _ = writeln!(text, "\nnote: commits were not searched: {reason}");
    }
    let _ = writeln!(text, "\n{}\n{command}", tried(answer));
    Ok(if form == Form::Markdown { format!("```\n{text}```\n") } else { text })
}

/// The other finding of the first release without the searched finding; `None` if that release is clean.
fn hiding(answer: &BisectResult) -> Option<&str> {
    let [only] = answer.first.as_slice() else { return None };
    let first = answer.trials.iter().find(|trial| trial.release == *only)?;
    let outcome = &first.verdict.outcome;
    (answer.fixed && *outcome != Verdict::Clean.to_string()).then_some(outcome)
}

/// Appends a table of the trials, one line each. A long crash message is cut; JSON has the full message.
fn table(text: &mut String, trials: Vec<(String, &TrialVerdict)>) {
    let width = trials.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
    for (name, verdict) in trials {
        let _ = writeln!(text, "{}", cut(format!("  {name:width$}  {}", verdict.in_words())));
    }
}

/// The line, cut to the width of a report.
fn cut(line: String) -> String {
    match line.char_indices().nth(WIDTH - 1) {
        Some((at, _)) if line.chars().count() > WIDTH => format!("{}…", line[..at].trim_end()),
        _ => line,
    }
}

/// A line with the number of trials, and with the packages that all trials had in common.
fn tried(answer: &BisectResult) -> String {
    let of = |trials: usize, all: usize, noun: &str| format!("{trials} of {}", amount(all, noun));
    let releases =
        (answer.releases > 0).then(|| of(answer.trials.len(), answer.releases, "release"));
    // The old end is tried, but is not among the commits that may be the first.
    let commits = answer
        .commits
        .as_ref()
        .map(|commits| of(commits.trials.len(), commits.count + 1, "commit"));
    let parts: Vec<String> = releases.into_iter().chain(commits).collect();
    let fixed_packages = match answer.fixed_packages.as_str() {
        "" => String::new(),
        packages => format!(" with {packages}"),
    };
    let over = answer.commits.as_ref().map(|commits| {
        format!("; commits with the requirements of {} {}", answer.package, commits.release)
    });
    format!("tried {}{fixed_packages}{}", parts.join(" and "), over.unwrap_or_default())
}

/// The result for the releases, in one sentence.
fn headline(answer: &BisectResult) -> String {
    let BisectResult { package, finding, .. } = answer;
    let what = what(answer);
    match answer.first.as_slice() {
        [] => format!("interrupted before the first release {what} {finding} was known"),
        [only] => format!("{package} {only} is the first release {what} {finding}"),
        [others @ .., last] => format!(
            "the first release {what} {finding} is one of {package} {} and {last}, only one of which \
             could be tested",
            others.join(", ")
        ),
    }
}

/// The result for the commits, with the details of the first commit or of all candidates.
fn commit_headline(answer: &BisectResult, commits: &SearchedCommits) -> String {
    let BisectResult { package, finding, .. } = answer;
    let what = what(answer);
    // If releases were searched, their sentence has named the finding already.
    let (of, finding) = if answer.releases > 0 {
        (String::new(), "it")
    } else {
        (format!(" of {package}"), finding.as_str())
    };
    match commits.first.as_slice() {
        [] => format!("interrupted before the first commit {what} {finding} was known\n"),
        [only] => format!(
            "commit {}{of} is the first {what} {finding}\n{}",
            only.name(),
            about(only, &commits.repository)
        ),
        all => {
            let mut text = format!(
                "the first commit{of} {what} {finding} is one of these {}, only one of which could be tested\n",
                all.len()
            );
            for commit in all {
                let _ = writeln!(text, "  {}  {}  {}", commit.name(), commit.date, commit.title);
            }
            text
        }
    }
}

fn what(answer: &BisectResult) -> &'static str {
    if answer.fixed { "without" } else { "with" }
}

/// The title, the day, the hash and, on GitHub, the page of a commit.
fn about(commit: &Commit, repository: &str) -> String {
    let mut text = format!("  {}\n  {}  {}\n", commit.title, commit.date, commit.id);
    let project = GITHUB.as_ref().and_then(|it| it.captures(repository));
    if let Some(project) = project {
        let (owner, name) = (&project[1], &project[2]);
        let page = match commit.pull_request {
            Some(number) => format!("pull/{number}"),
            None => format!("commit/{}", commit.id),
        };
        let _ = writeln!(text, "  https://github.com/{owner}/{name}/{page}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::answer::{CommitTrial, ReleaseTrial};
    use super::*;
    use zprobe_report::Schema;

    fn verdict(shows: Option<bool>, outcome: &str) -> TrialVerdict {
        TrialVerdict { shows, outcome: outcome.to_owned() }
    }

    fn trial(release: &str, shows: Option<bool>, outcome: &str) -> ReleaseTrial {
        ReleaseTrial { release: release.to_owned(), verdict: verdict(shows, outcome) }
    }

    fn commit(id: &str, title: &str) -> Commit {
        Commit::new(id.repeat(4), "2026-01-18".to_owned(), title.to_owned())
    }

    fn answer() -> BisectResult {
        BisectResult {
            schema: Schema::CURRENT,
            package: "deepspeed".to_owned(),
            fixed_packages: "torch 2.11.0".to_owned(),
            finding: "ZP101 boundary-leak".to_owned(),
            fixed: false,
            first: vec!["0.18.5".to_owned()],
            releases: 6,
            trials: vec![
                trial("0.18.4", Some(false), "clean"),
                trial("0.18.5", Some(true), "ZP101 boundary-leak"),
                trial("0.18.9", Some(true), "ZP101 boundary-leak"),
            ],
            old_again: vec![],
            commits: None,
            no_commits: None,
        }
    }

    const COMMAND: &str = "zprobe bisect --package deepspeed --good 0.18.4 --bad 0.18.9";

    #[test]
    fn an_answer_is_a_block_to_paste() {
        let mut answer = answer();
        insta::assert_snapshot!("found", render(&answer, COMMAND, Form::Full).unwrap());
        let long = "crashed: RuntimeError: Output 0 of SplitBackward0 is a view and is being modified in place";
        answer.trials[1] = trial("0.18.5", None, long);
        answer.first.push("0.18.6".to_owned());
        answer.old_again.push("0.18.8".to_owned());
        answer.no_commits = Some("deepspeed.git: no tag v0.18.6 or 0.18.6".to_owned());
        insta::assert_snapshot!("skipped", render(&answer, COMMAND, Form::Full).unwrap());
    }

    #[test]
    fn another_finding_in_the_first_release_without_the_one_that_is_looked_for_is_a_note() {
        let mut answer = BisectResult { fixed: true, ..answer() };
        let note = "note: 0.18.5 has ZP105 wrongly-scaled, which may hide ZP101 boundary-leak\n";
        for (fixed, outcome, expected) in [
            (true, "ZP105 wrongly-scaled", true),
            (true, "clean", false),
            (false, "ZP105 wrongly-scaled", false),
        ] {
            answer.fixed = fixed;
            answer.trials[1] = trial("0.18.5", Some(!fixed), outcome);
            let text = render(&answer, COMMAND, Form::Full).unwrap();
            assert_eq!(text.contains(note), expected, "{text}");
        }
    }

    #[test]
    fn a_commit_stands_behind_its_release_with_its_title_and_its_pull_request() {
        let mut answer = answer();
        let first = commit("1393f75dc2", "Choose the right optimizer (#7788)");
        let tried = |commit: &Commit, shows, outcome: &str| CommitTrial {
            commit: commit.clone(),
            verdict: verdict(shows, outcome),
        };
        let broken = commit("b35d9eb01a", "Move files");
        answer.commits = Some(SearchedCommits {
            repository: "git@github.com:deepspeedai/DeepSpeed.git".to_owned(),
            release: "0.18.5".to_owned(),
            first: vec![first.clone()],
            count: 34,
            trials: vec![
                tried(&broken, None, "no environment: it was not built"),
                tried(&first, Some(true), "ZP101 boundary-leak"),
            ],
        });
        insta::assert_snapshot!("commit", render(&answer, COMMAND, Form::Full).unwrap());
        (answer.first, answer.trials, answer.releases) = (vec![], vec![], 0);
        let Some(commits) = &mut answer.commits else { unreachable!() };
        commits.first.insert(0, broken);
        insta::assert_snapshot!("commits-alone", render(&answer, COMMAND, Form::Markdown).unwrap());
        let Some(commits) = &mut answer.commits else { unreachable!() };
        commits.first.clear();
        assert!(!answer.is_known());
    }
}
