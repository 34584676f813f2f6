//! The fault campaign: zprobe's release programs under attack, and on failing machines.
//!
//! A [`Campaign`] is a number of cases. A case depends only on its number and on random choices that follow
//! from the seed and that number, so each case can be repeated by itself. Each case starts zprobe as a user
//! would, and returns whether zprobe survived. [`runner`] runs the cases, and [`table`] shows the results.

mod calls;
mod configurations;
mod fixtures;
mod hostile;
mod leftovers;
mod limits;
mod markup;
mod runner;
mod secrets;
mod signals;
mod table;
mod traces;

use std::fs;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context as _, Result, bail, ensure};
use fastrand::Rng;

use crate::page::Page;
use crate::workspace;

/// The page with the table of campaigns.
pub const PAGE: Page = Page { path: "docs/reliability.md", command: "cargo xtask chaos" };

/// One kind of fault, with all its cases.
struct Campaign {
    /// The name of the campaign on the command line.
    name: &'static str,
    /// The faults that zprobe meets, in one line.
    faults: &'static str,
    /// The number of cases.
    full: usize,
    /// The number of cases of the short form, spread evenly over all cases.
    short: usize,
    /// Tries a case. The error is the way in which zprobe did not survive the case.
    try_case: fn(&mut Case) -> Result<Survival>,
}

/// All campaigns, in the order in which they run.
const CAMPAIGNS: &[Campaign] = &[
    signals::CAMPAIGN,
    limits::CAMPAIGN,
    traces::CAMPAIGN,
    configurations::CAMPAIGN,
    secrets::CAMPAIGN,
    hostile::CAMPAIGN,
];

/// The outcome of a case that zprobe survived, or that was not made.
enum Survival {
    /// zprobe behaved as required.
    Survived,
    /// The case cannot be made on this machine, for this reason.
    Skipped(String),
}

/// A case, and everything that the case may use.
struct Case {
    /// The number of the case in the campaign, from 0.
    number: usize,
    /// The source of random choices, which are the same whenever the case is made.
    rng: Rng,
    /// An empty directory for the case.
    dir: PathBuf,
    /// The value of the environment variable by which the processes of the case are recognised: see
    /// [`leftovers`].
    mark: String,
}

impl Case {
    /// The case with this number in a campaign, with an empty directory.
    fn new(campaign: &Campaign, number: usize, seed: u64) -> Result<Self> {
        let name = format!("{}-{number}", campaign.name);
        let dir = workspace::target_dir()?.join("chaos").join(&name);
        if dir.exists() {
            fs::remove_dir_all(&dir).with_context(|| format!("cannot empty {}", dir.display()))?;
        }
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let start = name.bytes().fold(seed, |start, byte| {
            // FNV-1a: neighbouring cases get seeds that have nothing in common.
            (start ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let mark = format!("{}-{name}", std::process::id());
        Ok(Self { number, rng: Rng::with_seed(start), dir, mark })
    }

    /// One of the choices, drawn at random.
    fn one_of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.rng.usize(..choices.len())]
    }
}

/// The options of `cargo xtask chaos`.
#[derive(clap::Args)]
pub struct Options {
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// A few cases of each campaign, in seconds instead of minutes
    #[arg(long)]
    short: bool,

    /// Only this campaign, or this case of it; may be repeated
    #[arg(long, value_name = "CAMPAIGN[:NUMBER]")]
    only: Vec<Only>,

    /// Cases that run at the same time
    #[arg(long, value_name = "N", default_value_t = 2)]
    jobs: usize,

    /// Write the table into docs/reliability.md
    #[arg(long, conflicts_with_all = ["short", "only"])]
    write: bool,
}

impl Options {
    /// The options of the short form, which every run of the tests uses.
    pub fn short() -> Self {
        Self { seed: 1, short: true, only: Vec::new(), jobs: 2, write: false }
    }

    /// The numbers of the requested cases of a campaign.
    fn numbers(&self, campaign: &Campaign) -> Vec<usize> {
        let tried = if self.short { campaign.short } else { campaign.full };
        let all = || {
            // One of every `every` cases, and not always the first: similar cases lie at equal distances.
            let every = campaign.full / tried;
            (0..tried).map(|at| at * every + at.wrapping_mul(2_654_435_761) % every).collect()
        };
        let own: Vec<&Only> = self.only.iter().filter(|it| it.campaign == campaign.name).collect();
        match own.iter().map(|it| it.number).collect::<Option<Vec<usize>>>() {
            _ if self.only.is_empty() => all(),
            Some(numbers) => numbers,
            None => all(),
        }
    }
}

/// A campaign, or one case of a campaign.
#[derive(Clone)]
struct Only {
    campaign: &'static str,
    number: Option<usize>,
}

impl FromStr for Only {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, number) = text.split_once(':').map_or((text, None), |it| (it.0, Some(it.1)));
        let Some(campaign) = CAMPAIGNS.iter().find(|campaign| campaign.name == name) else {
            let names: Vec<&str> = CAMPAIGNS.iter().map(|campaign| campaign.name).collect();
            bail!("no campaign has this name; the campaigns are {}", names.join(", "));
        };
        let number = number.map(str::parse).transpose().context("not the number of a case")?;
        let last = campaign.full - 1;
        ensure!(number.is_none_or(|it| it <= last), "the cases of {name} are 0 to {last}");
        Ok(Self { campaign: campaign.name, number })
    }
}

/// Runs the campaigns, prints their results, and fails if zprobe did not survive a case.
pub fn run(options: &Options) -> Result<()> {
    ensure!(options.jobs > 0, "--jobs 0: must be at least 1");
    let mut results = Vec::new();
    for campaign in CAMPAIGNS {
        let numbers = options.numbers(campaign);
        if !numbers.is_empty() {
            results.push(runner::run(campaign, &numbers, options)?);
        }
    }
    let table = table::table(&results);
    println!("{table}");
    if options.write {
        PAGE.write(&format!("Seed {}.\n\n{table}", options.seed))?;
    }
    let failed: usize = results.iter().map(|result| result.failures.len()).sum();
    ensure!(failed == 0, "zprobe did not survive {failed} cases; they are listed above");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_form_tries_cases_from_all_over_a_campaign() {
        for campaign in CAMPAIGNS {
            let numbers = Options::short().numbers(campaign);
            assert_eq!(numbers.len(), campaign.short, "{}", campaign.name);
            assert!(numbers.is_sorted_by(|a, b| a < b) && numbers[0] == 0, "{}", campaign.name);
            assert!(numbers[numbers.len() - 1] < campaign.full, "{}", campaign.name);
            assert!(numbers[numbers.len() - 1] > campaign.full / 2, "{}", campaign.name);
        }
    }

    #[test]
    fn one_case_can_be_asked_for_and_only_if_it_is_there() {
        let only: Only = "signals:3".parse().unwrap();
        let options = Options { only: vec![only], ..Options::short() };
        let numbers: Vec<Vec<usize>> = CAMPAIGNS.iter().map(|it| options.numbers(it)).collect();
        assert_eq!(numbers.concat(), [3]);
        assert!("signals:100000".parse::<Only>().is_err());
        assert!("signal".parse::<Only>().is_err());
    }
}
