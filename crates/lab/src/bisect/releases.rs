//! The search over the releases of a package.

use anyhow::{Context as _, Result, ensure};
use pep440_rs::Version;

use super::judge::{Judge, TrialVerdict};
use super::search::ReleaseSearch;
use super::trials::BisectRunner;
use super::{BisectTask, ReleaseTrial};
use crate::console::say;
use crate::environment::{Installer, releases};

/// The result of the search over releases.
pub struct SearchedReleases {
    /// The state of the search when it ended.
    search: ReleaseSearch,
    /// The releases of the search in ascending order, both ends included.
    all: Vec<Version>,
    /// The verdict on each release; `None` for a release that was not tried.
    verdicts: Vec<Option<TrialVerdict>>,
    /// True if the user has ended the search.
    is_interrupted: bool,
}

/// The releases of a package from the one end to the other, in ascending order.
///
/// # Errors
/// When the releases cannot be listed, or an end is not among them.
pub fn between(
    package: &str,
    good: &Version,
    bad: &Version,
    installer: &Installer,
) -> Result<Vec<Version>> {
    let pre = good.any_prerelease() || bad.any_prerelease();
    chosen(package, good, bad, releases(package, pre, installer)?)
}

/// The releases in `all` that lie between the ends.
fn chosen(
    package: &str,
    good: &Version,
    bad: &Version,
    mut all: Vec<Version>,
) -> Result<Vec<Version>> {
    all.sort();
    all.dedup();
    for end in [good, bad] {
        ensure!(
            all.contains(end),
            "{package} {end}: there is no such release for this Python; {}",
            around(end, &all)
        );
    }
    let (first, last) = if good < bad { (good, bad) } else { (bad, good) };
    all.retain(|it| first <= it && it <= last);
    Ok(all)
}

/// The existing releases around a version that does not exist, in words.
fn around(version: &Version, all: &[Version]) -> String {
    let before = all.iter().rfind(|it| *it < version);
    let after = all.iter().find(|it| *it > version);
    match (before, after) {
        (Some(before), Some(after)) => format!("the nearest are {before} and {after}"),
        (Some(newest), None) => format!("the newest is {newest}"),
        (None, Some(oldest)) => format!("the oldest is {oldest}"),
        (None, None) => "the package has no releases".to_owned(),
    }
}

/// The least and the most seconds of a run on two cores, in the bisections of docs/bisect.md.
const RUN: (usize, usize) = (15, 60);

/// The most seconds that it took to make an environment in these bisections.
const ENVIRONMENT: usize = 150;

/// The approximate number of trials and their time in minutes. Of the releases, `missing` have no environment yet.
pub fn estimate(trials: usize, missing: usize, jobs: usize, repeats: usize) -> String {
    let least = RUN.0 * repeats * trials.div_ceil(jobs);
    let most = RUN.1 * repeats * trials + ENVIRONMENT * missing.min(trials);
    let minutes = |seconds: usize| seconds.div_ceil(60);
    format!("about {trials} trials, {} to {} minutes", minutes(least), minutes(most))
}

/// Searches for the first new release in `all`.
///
/// # Errors
/// When an end contradicts its flag.
pub fn search(
    runner: &BisectRunner<'_>,
    judge: &mut Judge,
    all: Vec<Version>,
) -> Result<SearchedReleases> {
    let BisectTask { package, jobs, fixed, .. } = runner.task;
    let (oldest, last) = (0, all.len() - 1);
    let missing = all.iter().filter(|it| !runner.cache.has(&runner.packages(it))).count();
    let repeats = runner.task.order.repeats;
    say(format_args!(
        "{package} {} to {}: {} releases; {}",
        all[oldest],
        all[last],
        all.len(),
        estimate(ReleaseSearch::trials(all.len(), *jobs), missing, *jobs, repeats)
    ));
    let mut found = SearchedReleases {
        search: ReleaseSearch::new(all.len()),
        verdicts: vec![None; all.len()],
        all,
        is_interrupted: false,
    };
    let bad = if *fixed { oldest } else { last };
    loop {
        let next = found.search.next(*jobs);
        if next.is_empty() {
            return Ok(found);
        }
        let is_ends = next.contains(&last) && found.verdicts[last].is_none();
        let label = |at: usize, all: &[Version]| format!("{package} {}", all[at]);
        let chosen: Vec<&Version> = next.iter().map(|&at| &found.all[at]).collect();
        let Ok(made) = runner.releases(&chosen).into_iter().collect::<Result<Vec<_>, _>>() else {
            found.is_interrupted = true;
            return Ok(found);
        };
        if is_ends {
            let place = next
                .iter()
                .position(|it| *it == bad)
                .context("the bad end is the first or the last release")?;
            judge.learn(&made[place].report, &label(bad, &found.all))?;
        }
        let mut times = Vec::new();
        for (&at, trial) in next.iter().zip(made) {
            times.push(trial.times());
            let verdict = judge.verdict(trial.report);
            found.search.mark(at, judge.mark(verdict.shows));
            found.verdicts[at] = Some(verdict);
        }
        let left = found.search.left(*jobs);
        for (place, (&at, times)) in next.iter().zip(times).enumerate() {
            let Some(verdict) = &found.verdicts[at] else { continue };
            // The estimate is shown with the last trial of the round, because it counts from the end of the round.
            let left = (place + 1 == next.len()).then_some(left);
            runner.say(&label(at, &found.all), &verdict.in_words(), times, left);
        }
        if is_ends {
            for end in [oldest, last] {
                let Some(verdict) = &found.verdicts[end] else { continue };
                verdict.is_end(&label(end, &found.all), end == bad)?;
            }
        }
    }
}

impl SearchedReleases {
    /// The first new release, or all candidates for it; empty if the search was interrupted.
    pub fn first(&self) -> Vec<String> {
        let among = self.search.among().filter(|_| !self.is_interrupted);
        among.into_iter().flatten().map(|at| self.all[at].to_string()).collect()
    }

    /// The last old release and the first new release that were tried; `None` if the search was interrupted.
    pub fn edge(&self) -> Option<(&Version, &Version)> {
        let among = self.search.among().filter(|_| !self.is_interrupted)?;
        Some((&self.all[among.start() - 1], &self.all[*among.end()]))
    }

    /// The number of releases in the search, both ends included.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// The releases that were tried, in ascending order.
    pub fn trials(&self) -> Vec<ReleaseTrial> {
        let tried = self.verdicts.iter().zip(&self.all);
        tried
            .filter_map(|(verdict, release)| {
                Some(ReleaseTrial { release: release.to_string(), verdict: verdict.clone()? })
            })
            .collect()
    }

    /// The releases that behave like the old end although they come after a changed release.
    pub fn old_again(&self) -> Vec<String> {
        self.search.old_again().into_iter().map(|at| self.all[at].to_string()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_estimated_in_minutes_and_missing_environments_take_longer() {
        assert_eq!(estimate(5, 0, 1, 1), "about 5 trials, 2 to 5 minutes");
        assert_eq!(estimate(5, 9, 1, 1), "about 5 trials, 2 to 18 minutes");
        assert_eq!(estimate(5, 2, 2, 3), "about 5 trials, 3 to 20 minutes");
    }

    fn versions(all: &str) -> Vec<Version> {
        all.split(' ').map(|it| it.parse().unwrap()).collect()
    }

    fn between(good: &str, bad: &str) -> Result<Vec<Version>> {
        let all = versions("0.19.0 0.18.9 0.18.10 0.18.9 0.18.8 0.19.1");
        chosen("deepspeed", &good.parse().unwrap(), &bad.parse().unwrap(), all)
    }

    #[test]
    fn the_releases_between_the_ends_are_in_ascending_order_whichever_end_is_the_older() {
        let expected = versions("0.18.9 0.18.10 0.19.0");
        assert_eq!(between("0.18.9", "0.19.0").unwrap(), expected);
        assert_eq!(between("0.19.0", "0.18.9").unwrap(), expected);
    }

    #[test]
    fn an_end_that_is_no_release_is_refused_with_the_nearest_ones() {
        for (end, words) in [
            ("0.18.11", "the nearest are 0.18.10 and 0.19.0"),
            ("1.0", "the newest is 0.19.1"),
            ("0.1", "the oldest is 0.18.8"),
        ] {
            let error = between("0.18.9", end).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("deepspeed {end}: ")) && error.ends_with(words),
                "{error}"
            );
        }
    }
}
