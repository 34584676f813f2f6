//! The first release of a package in which a run shows a finding, or the first in which it no longer does.
//!
//! Both ends are tried first: the finding of the bad one is what is looked for, and the good one must not show
//! it. A release counts as bad if it shows the same rule with the same weights. One that crashes, or shows the
//! rule with other weights, cannot be tested and is skipped.

mod search;
mod signature;
mod words;

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};
use pep440_rs::Version;
use serde::Serialize;

use self::search::{Mark, Search};
pub use self::signature::{Seen, Signature};
pub use self::words::render;
use super::order::{Order, Ranks};
use super::queue::{NotStarted, Queue};
use super::store;
use super::worker::Worker;
use crate::console::say;
use crate::environment::{Cache, Installer, Packages, releases};
use crate::report::Report;
use crate::zoo::got;

/// Releases that are to be searched, and the run that tells good ones from bad ones.
pub struct Question {
    /// The run; its interpreter is replaced by that of each release.
    pub order: Order,
    /// Package whose releases are tried.
    pub package: String,
    /// Packages that stay the same.
    pub beside: Packages,
    /// A release without the finding.
    pub good: Version,
    /// A release with the finding.
    pub bad: Version,
    /// The finding, if it is known from an earlier run.
    pub signature: Option<Signature>,
    /// Number of releases that are tried side by side.
    pub jobs: usize,
    /// Directory for the runs; none for a new one.
    pub out: Option<PathBuf>,
}

/// End of a search.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// Package whose releases were tried.
    pub package: String,
    /// Packages that stayed the same, in words.
    pub beside: String,
    /// The finding, by its code and name.
    pub finding: String,
    /// True if the first release without the finding was looked for.
    pub fixed: bool,
    /// Releases among which the first one is, the only one if there is one; none if the search was
    /// interrupted.
    pub first: Vec<String>,
    /// Number of releases from the one end to the other.
    pub releases: usize,
    /// Releases that were tried, in their order.
    pub trials: Vec<Trial>,
    /// Releases that are as the old end although they come behind a changed one.
    pub old_again: Vec<String>,
}

/// A release that was tried.
#[derive(Clone, Debug, Serialize)]
pub struct Trial {
    /// The release.
    pub release: String,
    /// True if it shows the finding; none if it could not be tested.
    pub shows: Option<bool>,
    /// Result of the run in a few words, or the reason why there is none.
    pub said: String,
}

/// Looks for the first release.
///
/// # Errors
/// When the releases are not known, an end is not what it is said to be, or nothing can be run.
pub fn first(question: &Question) -> Result<Answer> {
    let installer = Installer::find();
    let all = between(releases(&question.package, &installer)?, question)?;
    let out = question.out.clone().map_or_else(|| store::place("bisect"), Ok)?;
    let trials = Trials { question, cache: Cache::locate()?, installer, out };
    let fixed = question.bad < question.good;
    let mut search = Search::new(all.len());
    let mut said: Vec<Option<(Option<bool>, String)>> = vec![None; all.len()];
    let mut signature = question.signature.clone();
    let queue = Queue::new(all.len())?.announcing();
    say(format_args!(
        "{} releases of {}: {} to {}",
        all.len(),
        question.package,
        all[0],
        all[all.len() - 1]
    ));
    loop {
        let next = search.next(question.jobs);
        let Some(&last) = next.last() else { break };
        let reports = trials.all(&queue, &next, &all);
        let is_ends = last == all.len() - 1 && said[last].is_none();
        if is_ends && signature.is_none() {
            let bad = if fixed { 0 } else { last };
            let place = next.iter().position(|it| *it == bad).unwrap_or(0);
            if let Ok(Ok(report)) = &reports[place] {
                signature = Some(Signature::of(report).with_context(|| {
                    format!(
                        "{} {} is {}: no bad release; choose another --bad",
                        question.package,
                        all[bad],
                        got(report)
                    )
                })?);
            }
        }
        for (&at, report) in next.iter().zip(reports) {
            let (shows, words) = match (report, &signature) {
                (Err(_), _) => return Ok(answer(question, &search, &all, said, signature, true)),
                (Ok(Err(error)), _) => (None, format!("{error:#}")),
                (Ok(Ok(report)), Some(signature)) => match signature.seen_in(&report) {
                    Seen::Same => (Some(true), got(&report)),
                    Seen::Absent => (Some(false), got(&report)),
                    Seen::Unclear(reason) => (None, reason),
                },
                (Ok(Ok(report)), None) => (None, got(&report)),
            };
            queue.say(format_args!(
                "{} {}: {}",
                question.package,
                all[at],
                in_words(shows, &words)
            ));
            search.mark(
                at,
                match shows {
                    Some(shows) if shows == fixed => Mark::Old,
                    Some(_) => Mark::New,
                    None => Mark::Skipped,
                },
            );
            said[at] = Some((shows, words));
        }
        if is_ends {
            are_ends(question, &all, &said)?;
        }
    }
    Ok(answer(question, &search, &all, said, signature, false))
}

/// A trial in words.
fn in_words(shows: Option<bool>, said: &str) -> String {
    let word = match shows {
        Some(true) => "bad",
        Some(false) => "good",
        None => "skipped",
    };
    format!("{word}: {said}")
}

/// Releases from the one end to the other, in ascending order.
fn between(all: Vec<Version>, question: &Question) -> Result<Vec<Version>> {
    let Question { package, good, bad, .. } = question;
    for end in [good, bad] {
        ensure!(
            all.contains(end),
            "{package} {end}: there is no such release for this Python; the newest is {}",
            all.iter().max().map(Version::to_string).unwrap_or_default(),
        );
    }
    let (first, last) = if good < bad { (good, bad) } else { (bad, good) };
    let mut chosen: Vec<Version> = all.into_iter().filter(|it| first <= it && it <= last).collect();
    chosen.sort();
    chosen.dedup();
    ensure!(chosen.len() > 1, "{package} {good} is both --good and --bad");
    Ok(chosen)
}

/// Refuses ends that are not what they are said to be.
fn are_ends(
    question: &Question,
    all: &[Version],
    said: &[Option<(Option<bool>, String)>],
) -> Result<()> {
    for (end, flag, shows) in [(&question.good, "--good", false), (&question.bad, "--bad", true)] {
        let at = all.iter().position(|it| it == end);
        let Some((got, words)) = at.and_then(|at| said[at].as_ref()) else { continue };
        if *got != Some(shows) {
            let is = in_words(*got, words);
            bail!("{} {end} is not what {flag} says: {is}; choose another", question.package);
        }
    }
    Ok(())
}

fn answer(
    question: &Question,
    search: &Search,
    all: &[Version],
    said: Vec<Option<(Option<bool>, String)>>,
    signature: Option<Signature>,
    interrupted: bool,
) -> Answer {
    let names = |at: Vec<usize>| at.into_iter().map(|at| all[at].to_string()).collect();
    let among = search.among().filter(|_| !interrupted);
    let trials = said.into_iter().zip(all).filter_map(|(said, release)| {
        let (shows, said) = said?;
        Some(Trial { release: release.to_string(), shows, said })
    });
    Answer {
        package: question.package.clone(),
        beside: question.beside.to_string(),
        finding: signature.map(|it| it.title()).unwrap_or_default(),
        fixed: question.bad < question.good,
        first: names(among.map(Iterator::collect).unwrap_or_default()),
        releases: all.len(),
        trials: trials.collect(),
        old_again: names(search.old_again()),
    }
}

/// Trials of releases.
struct Trials<'a> {
    question: &'a Question,
    cache: Cache,
    installer: Installer,
    out: PathBuf,
}

impl Trials<'_> {
    /// Reports on these releases, side by side; the reason instead where a release cannot be run.
    fn all(
        &self,
        queue: &Queue,
        chosen: &[usize],
        all: &[Version],
    ) -> Vec<Result<Result<Report>, NotStarted>> {
        // Each round has workers of its own, whose directories must be new.
        let round = chosen.first().map(|at| all[*at].to_string()).unwrap_or_default();
        let worker = |number| Worker::new(self.out.join(format!("worker-{round}-{number}")));
        let label = |at: &usize| format!("{} {}", self.question.package, all[*at]);
        queue.all(
            chosen,
            (self.question.jobs, worker),
            |_, at| label(at),
            |worker, at| {
                let report = self.report(worker, &all[*at], &|step| {
                    queue.say(format_args!("{}: {step}", label(at)));
                });
                if report.is_err() && (queue.is_interrupted() || worker.was_stopped()) {
                    return Err(NotStarted::Interrupted);
                }
                Ok(report)
            },
        )
    }

    fn report(
        &self,
        worker: &mut Worker,
        release: &Version,
        progress: &dyn Fn(&str),
    ) -> Result<Report> {
        let Question { order, package, beside, .. } = self.question;
        let own = [(package.clone(), release.clone())];
        let beside = beside.iter().map(|(name, version)| (name.to_owned(), version.clone()));
        let packages: Packages = beside.chain(own).collect();
        let python = self
            .cache
            .provide(&packages, &self.installer, &mut |step| progress(step))
            .map_err(|error| {
                let text = error.to_string();
                anyhow::anyhow!("no environment: {}", text.lines().next().unwrap_or_default())
            })?;
        let order = Order { ranks: Ranks::Warm(python), ..order.clone() };
        worker.report(order, &self.out.join(release.to_string()))
    }
}
