//! Runs cases, several at a time, and shows the progress.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Error, Result};
use indicatif::{ProgressBar, ProgressStyle};

use super::{Campaign, Case, Options, Survival};

/// The results of a campaign.
pub struct Results {
    /// The name of the campaign.
    pub name: &'static str,
    /// The faults that zprobe met, in one line.
    pub faults: &'static str,
    /// The number of cases that were tried.
    pub tried: usize,
    /// The number of cases that this machine cannot make, for each reason.
    pub skipped: BTreeMap<String, usize>,
    /// Failures of zprobe: one line each, in the order of the case numbers.
    pub failures: Vec<String>,
    /// The time of the whole campaign.
    pub took: Duration,
}

/// Runs the cases of a campaign that have these numbers.
pub fn run(campaign: &Campaign, numbers: &[usize], options: &Options) -> Result<Results> {
    let start = Instant::now();
    let bar = ProgressBar::new(numbers.len() as u64).with_prefix(campaign.name);
    bar.set_style(ProgressStyle::with_template("{prefix:14} {bar:30} {pos}/{len} {msg}")?);
    let next = AtomicUsize::new(0);
    let said = Mutex::new((BTreeMap::new(), BTreeMap::new()));
    let work = || {
        while let Some(&number) = numbers.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = try_one(campaign, number, options.seed);
            bar.inc(1);
            // A poisoned lock means that a case panicked: the panic is reported below.
            let Ok(mut said) = said.lock() else { return };
            match outcome {
                Ok(Survival::Survived) => {}
                Ok(Survival::Skipped(reason)) => *said.0.entry(reason).or_default() += 1,
                Err(failure) => {
                    let again =
                        format!("--seed {} --only {}:{number}", options.seed, campaign.name);
                    let failure = one_line(&failure);
                    bar.suspend(|| eprintln!("not survived: {failure} ({again})"));
                    said.1.insert(number, format!("{failure} ({again})"));
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(work);
        }
    });
    bar.finish_and_clear();
    let (skipped, failures) = said.into_inner().ok().context("a case of the campaign panicked")?;
    Ok(Results {
        name: campaign.name,
        faults: campaign.faults,
        tried: numbers.len(),
        skipped,
        failures: failures.into_values().collect(),
        took: start.elapsed(),
    })
}

/// Tries a case. If zprobe does not survive, the directory of the case stays, so that it can be inspected.
fn try_one(campaign: &Campaign, number: usize, seed: u64) -> Result<Survival> {
    let mut case = Case::new(campaign, number, seed)?;
    let survival = (campaign.try_case)(&mut case)?;
    fs::remove_dir_all(&case.dir).context("cannot remove the directory of a case")?;
    Ok(survival)
}

/// A failure as one line that a terminal can show.
fn one_line(failure: &Error) -> String {
    const MOST: usize = 400;
    let whole: String = format!("{failure:#}").escape_debug().to_string();
    let line: String = whole.chars().take(MOST).collect();
    if line.len() < whole.len() { line + "…" } else { line }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    fn odd_ones_fail(case: &mut Case) -> Result<Survival> {
        match case.number {
            0 => Ok(Survival::Skipped("no zero here".to_owned())),
            number if number % 2 == 1 => bail!("{number}\nis odd"),
            _ => Ok(Survival::Survived),
        }
    }

    const CAMPAIGN: Campaign = Campaign {
        name: "test-of-the-runner",
        faults: "numbers",
        full: 5,
        short: 2,
        try_case: odd_ones_fail,
    };

    #[test]
    fn a_failure_is_a_line_that_says_how_to_make_it_again() {
        let results = run(&CAMPAIGN, &[0, 1, 2, 3, 4], &Options::short()).unwrap();
        assert_eq!((results.tried, results.skipped["no zero here"]), (5, 1));
        let again = "--seed 1 --only test-of-the-runner";
        let expected = [format!("1\\nis odd ({again}:1)"), format!("3\\nis odd ({again}:3)")];
        assert_eq!(results.failures, expected);
    }

    #[test]
    fn a_case_meets_the_same_chance_whenever_it_is_made() {
        let draw = |number, seed| Case::new(&CAMPAIGN, number, seed).unwrap().rng.u64(..);
        assert_eq!(draw(7, 1), draw(7, 1));
        assert_ne!(draw(7, 1), draw(8, 1));
        assert_ne!(draw(7, 1), draw(7, 2));
    }
}
