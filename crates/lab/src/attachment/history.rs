//! The releases that have a bug, as found by `zprobe bisect` or given by the reporter.

use serde::{Deserialize, Serialize};

use zprobe_model::visible;
use zprobe_report::Report;
use zprobe_report::render::markdown::escaped;

/// The known facts about the releases that have a bug.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// The answer of `zprobe bisect`; `None` if the reporter gave none.
    pub bisection: Option<Bisection>,
    /// The package and the first release with the bug; `None` if the reporter gave none.
    pub since: Option<String>,
}

/// The fields of the JSON answer of `zprobe bisect` that an issue needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bisection {
    /// The package whose releases were tried.
    pub package: String,
    /// The packages whose versions were fixed, as text: `torch 2.11.0`.
    #[serde(default)]
    pub beside: String,
    /// The code and the name of the finding, as in `ZP101 boundary-leak`.
    pub finding: String,
    /// True if the search was for the first release without the finding.
    #[serde(default)]
    pub fixed: bool,
    /// The candidates for the first release: more than one if some could not be tested.
    pub first: Vec<String>,
    /// The releases that were tried, the oldest first.
    #[serde(default)]
    pub trials: Vec<TriedRelease>,
    /// The answer of the search over commits; `None` if no commits were searched.
    #[serde(default)]
    pub commits: Option<CommitAnswer>,
}

/// The answer of a search over commits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitAnswer {
    /// The candidates for the first commit: more than one if some could not be tested.
    pub first: Vec<CandidateCommit>,
}

/// A commit of the package's repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CandidateCommit {
    /// The full hash of the commit.
    pub id: String,
    /// The first line of the commit's message.
    #[serde(default)]
    pub title: String,
}

/// A release that was tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TriedRelease {
    /// The version of the release.
    pub release: String,
    /// True if the release shows the finding; `None` if the release could not be tested.
    pub shows: Option<bool>,
    /// The result of the run in a few words.
    pub said: String,
}

impl Bisection {
    /// Refuses an interrupted bisection, and one about another finding or package than the report's.
    ///
    /// # Errors
    /// The reason why the answer does not fit the report.
    pub fn check(&self, report: &Report) -> Result<(), String> {
        if self.first.is_empty() && self.commits().is_empty() {
            return Err("the bisection was interrupted and has no answer; run it again".to_owned());
        }
        let main = report.findings.first().map_or_else(|| "nothing".to_owned(), |it| it.title());
        if self.finding != main {
            return Err(format!(
                "the bisection is about {}, but this run shows {main}",
                self.finding
            ));
        }
        if !report.run.versions.contains_key(&self.package) {
            return Err(format!(
                "the bisection is about releases of {}, which this run does not use",
                self.package
            ));
        }
        Ok(())
    }

    /// The candidates for the first commit; empty if no commits were searched.
    fn commits(&self) -> &[CandidateCommit] {
        self.commits.as_ref().map_or(&[], |commits| &commits.first)
    }

    /// The last tested release before the first one that changed: the last good one, or with `fixed` the last bad one.
    fn before(&self) -> Option<&str> {
        let end = self.trials.iter().position(|trial| self.first.contains(&trial.release));
        let before = self.trials[..end.unwrap_or(self.trials.len())].iter();
        let is_other = |trial: &&TriedRelease| trial.shows == Some(self.fixed);
        before.rev().find(is_other).map(|trial| trial.release.as_str())
    }

    /// The answer of the bisection in one sentence.
    fn sentence(&self) -> String {
        let (first, before) = match self.fixed {
            false => ("first bad release", "last good"),
            true => ("first release without it", "last bad"),
        };
        let releases = match &self.first[..] {
            [] => String::new(),
            [one] => format!("{first} of {}: {one}", self.package),
            several => format!(
                "{first} of {}: one of {}; some of them could not be tested",
                self.package,
                several.join(", ")
            ),
        };
        let before = self.before().map(|release| format!("; {before}: {release}"));
        let commit = match self.commits() {
            [] => String::new(),
            [one] => format!("{} ({})", one.id, one.title),
            several => {
                let ids: Vec<&str> = several.iter().map(|commit| commit.id.as_str()).collect();
                format!("one of {}; some of them could not be tested", ids.join(", "))
            }
        };
        let commits = match (releases.as_str(), commit.as_str()) {
            (_, "") => String::new(),
            ("", commit) => {
                format!("{} of {}: {commit}", first.replace("release", "commit"), self.package)
            }
            (_, commit) => format!("; {}: {commit}", first.replace("release", "commit")),
        };
        let beside = match self.beside.as_str() {
            "" => String::new(),
            beside => format!(" (with {beside})"),
        };
        format!("{releases}{}{commits}{beside}", before.unwrap_or_default())
    }

    /// The releases that were tried, as a Markdown table.
    fn table(&self) -> String {
        if self.trials.is_empty() {
            return String::new();
        }
        let mut text = format!("\n| {} | | |\n|---|---|---|\n", cell(&self.package));
        for trial in &self.trials {
            let word = match trial.shows {
                Some(true) => "bad",
                Some(false) => "good",
                None => "not tested",
            };
            text += &format!("| {} | {word} | {} |\n", cell(&trial.release), cell(&trial.said));
        }
        text
    }
}

fn cell(text: &str) -> String {
    escaped(&visible::text(text))
}

impl History {
    /// The first release with the bug, as in `since deepspeed 0.18.5`; `None` if it is unknown.
    pub fn since(&self) -> Option<String> {
        let found = self.bisection.as_ref().filter(|bisection| !bisection.fixed);
        let found = found.filter(|bisection| bisection.first.len() == 1);
        let found = found.map(|bisection| format!("{} {}", bisection.package, bisection.first[0]));
        found.or_else(|| self.since.clone()).map(|release| format!("since {release}"))
    }

    /// The releases that have the report's main finding in one sentence, and a Markdown table of the releases that were
    /// tried.
    pub fn told(&self, report: &Report) -> (String, String) {
        let known = report.findings.first().and_then(|main| main.known.first());
        match (&self.bisection, &self.since, known) {
            (Some(bisection), ..) => (cell(&bisection.sentence()), bisection.table()),
            (None, Some(since), _) => (format!("since {}", cell(since)), String::new()),
            (None, None, Some(bug)) => {
                (cell(&format!("{}; {}", bug.affected, bug.fix())), String::new())
            }
            (None, None, None) => ("the first bad release is not known".to_owned(), String::new()),
        }
    }

    /// True if no other release than that of the run is known to have the bug.
    pub fn is_unknown(&self, report: &Report) -> bool {
        let is_known = report.findings.first().is_some_and(|main| !main.known.is_empty());
        self.bisection.is_none() && self.since.is_none() && !is_known
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zprobe_model::spec::SpecRequest;
    use zprobe_report::blank::report;

    fn answer() -> Bisection {
        let trial = |release: &str, shows| TriedRelease {
            release: release.to_owned(),
            shows,
            said: "said | so".to_owned(),
        };
        Bisection {
            package: "deepspeed".to_owned(),
            beside: "torch 2.11.0".to_owned(),
            finding: "ZP101 boundary-leak".to_owned(),
            fixed: false,
            first: vec!["0.18.5".to_owned()],
            trials: vec![
                trial("0.18.3", Some(false)),
                trial("0.18.4", None),
                trial("0.18.5", Some(true)),
            ],
            commits: None,
        }
    }

    #[test]
    fn an_answer_names_the_first_bad_release_and_the_last_that_was_good() {
        let history = History { bisection: Some(answer()), since: None };
        let blank = report(SpecRequest::default().resolve().unwrap());
        let (sentence, table) = history.told(&blank);
        assert_eq!(
            sentence,
            "first bad release of deepspeed: 0.18.5; last good: 0.18.3 (with torch 2.11.0)"
        );
        assert!(table.contains("| 0.18.4 | not tested | said \\| so |"), "{table}");
        assert_eq!(history.since().unwrap(), "since deepspeed 0.18.5");
        let fixed = Bisection { fixed: true, ..answer() };
        let history = History { bisection: Some(fixed), since: None };
        assert_eq!(history.since(), None, "it is the first release without the bug");
    }

    #[test]
    fn an_answer_over_commits_names_the_first_bad_one() {
        let commit =
            CandidateCommit { id: "1393f75dca".to_owned(), title: "Fold it (#7788)".to_owned() };
        let commits = Some(CommitAnswer { first: vec![commit] });
        let said = Bisection { commits: commits.clone(), ..answer() }.sentence();
        assert!(
            said.contains("0.18.3; first bad commit: 1393f75dca (Fold it (#7788)) (with"),
            "{said}"
        );
        let alone = Bisection { first: Vec::new(), trials: Vec::new(), commits, ..answer() };
        assert!(alone.sentence().starts_with("first bad commit of deepspeed: 1393f75dca"));
        let history = History { bisection: Some(alone), since: None };
        let blank = report(SpecRequest::default().resolve().unwrap());
        assert_eq!((history.told(&blank).1, history.since()), (String::new(), None));
    }

    #[test]
    fn an_answer_about_something_else_is_refused() {
        let mut blank = report(SpecRequest::default().resolve().unwrap());
        assert!(answer().check(&blank).unwrap_err().contains("shows nothing"));
        let none = Bisection { first: Vec::new(), ..answer() };
        assert!(none.check(&blank).unwrap_err().contains("interrupted"));
        let nothing = Bisection { finding: "nothing".to_owned(), ..answer() };
        assert!(nothing.check(&blank).unwrap_err().contains("releases of deepspeed"));
        blank.run.versions.insert("deepspeed".to_owned(), "0.18.9".to_owned());
        assert!(nothing.check(&blank).is_ok());
    }

    #[test]
    fn keys_that_an_issue_does_not_need_are_passed_over() {
        let text = r#"{"package": "torch", "finding": "ZP104 x", "first": ["2.1"], "releases": 3, "old_again": []}"#;
        let read: Bisection = serde_json::from_str(text).unwrap();
        assert!(read.trials.is_empty() && !read.fixed);
    }
}
