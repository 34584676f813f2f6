//! Which configurations are run, and which are left out and why.

use std::collections::{HashMap, HashSet};

use anyhow::{Result, ensure};
use zprobe::lattice::outcome::{Ending, Refused, Sweep};
use zprobe::lattice::{Configuration, Lattice};
use zprobe::report::words::amount;
use zprobe::spec::Refusal;

use super::run::Done;
use crate::cli::{run, verbosity};

/// What is going to be run.
#[derive(Debug)]
pub struct Plan {
    /// In this order.
    pub chosen: Vec<Configuration>,
    /// The place of every configuration that was thought of, by its arguments.
    order: HashMap<Vec<String>, usize>,
    /// What an earlier sweep has run of the design.
    earlier: Option<Sweep>,
    /// What of the design is refused.
    pub refused: Vec<Refused>,
    /// How many the filters leave out.
    filtered: usize,
    /// How many come after `--limit`.
    beyond: usize,
}

impl Plan {
    /// What these arguments ask for, without what an earlier sweep has run; what it could not run is
    /// tried again.
    pub fn new(args: &super::Args, mut earlier: Option<Sweep>) -> Result<Self> {
        if let Some(sweep) = &mut earlier {
            sweep
                .rows
                .retain(|row| !matches!(row.outcome.ending, Ending::NotRun | Ending::Skipped));
        }
        let rows = earlier.iter().flat_map(|sweep| &sweep.rows);
        let has_run: HashSet<_> = rows.map(|row| row.configuration.arguments()).collect();
        let mut plan = Self {
            chosen: vec![],
            order: HashMap::new(),
            earlier,
            refused: vec![],
            filtered: 0,
            beyond: 0,
        };
        let mut wanted_yet = args.random;
        for configuration in design(args) {
            if wanted_yet == Some(0) {
                break;
            }
            let arguments = configuration.arguments();
            let place = plan.order.len();
            if plan.order.insert(arguments.clone(), place).is_some() {
                continue;
            }
            if !wanted(&configuration, args) {
                plan.filtered += 1;
                continue;
            } else if let Err(reason) = resolves(&configuration) {
                plan.refuse(reason, &configuration);
                continue;
            } else if has_run.contains(&arguments) {
                // It counts, and is not run again.
            } else if args.limit.is_some_and(|limit| plan.chosen.len() >= limit) {
                plan.beyond += 1;
            } else {
                plan.chosen.push(configuration);
            }
            wanted_yet = wanted_yet.map(|wanted| wanted - 1);
        }
        ensure!(
            !plan.chosen.is_empty() || !has_run.is_empty(),
            "no configuration of the {} engine is left to run; `zprobe sweep --engine {} --list` \
             shows them all",
            args.engine,
            args.engine,
        );
        Ok(plan)
    }

    /// What was run, together with what had been run before; in the order of the design. With other
    /// versions what was run before does not count.
    pub fn sweep(self, args: &super::Args, done: Done, not_tried: usize) -> Sweep {
        let mut rows = done.rows;
        let mut versions = done.versions;
        if let Some(earlier) = self.earlier {
            if versions.is_empty() || versions == earlier.versions {
                versions = earlier.versions;
                rows.extend(earlier.rows);
            } else {
                verbosity::say(format_args!(
                    "warning: the earlier sweep ran {:?} and this one {versions:?}; its {} are left \
                     out",
                    earlier.versions,
                    amount(earlier.rows.len(), "row"),
                ));
            }
        }
        rows.sort_by_key(|row| self.order.get(&row.configuration.arguments()).copied());
        let (engine, steps) = (args.engine, args.steps);
        Sweep { engine, versions, steps, refused: self.refused, not_tried, rows }
    }

    fn refuse(&mut self, reason: String, configuration: &Configuration) {
        match self.refused.iter_mut().find(|refused| refused.reason == reason) {
            Some(refused) => refused.count += 1,
            None => {
                let example = configuration.command();
                self.refused.push(Refused { reason, count: 1, example });
            }
        }
    }

    /// How many, and how many not.
    pub fn summary(&self) -> String {
        let mut text = amount(self.chosen.len(), "configuration");
        if let Some(earlier) = &self.earlier {
            text += &format!(", {} run before", earlier.rows.len());
        }
        let refused: usize = self.refused.iter().map(|refused| refused.count).sum();
        for (count, what) in [
            (refused, "refused by zprobe"),
            (self.filtered, "not asked for"),
            (self.beyond, "beyond --limit"),
        ] {
            if count > 0 {
                text += &format!(", {count} {what}");
            }
        }
        text
    }
}

/// What is thought of, in order. Of a draw no end: so many that filters which let nothing pass are
/// found out.
fn design(args: &super::Args) -> Box<dyn Iterator<Item = Configuration>> {
    let lattice = Lattice::of(args.engine);
    match args.random {
        Some(number) => Box::new(lattice.drawn(args.seed).take(DRAWS * number)),
        None if args.full => Box::new(lattice.product().into_iter()),
        None => Box::new(lattice.covering().into_iter()),
    }
}

/// Draws for each configuration that is wanted.
const DRAWS: usize = 1000;

/// Whether the filters let it pass.
fn wanted(configuration: &Configuration, args: &super::Args) -> bool {
    let arguments = configuration.arguments();
    let (label, words) = (configuration.label(), arguments.join(" "));
    let of_stage = |stage: &u8| {
        let wanted = ["--stage".to_owned(), stage.to_string()];
        arguments.windows(2).any(|pair| pair == wanted)
    };
    (args.part.is_empty() || args.part.contains(&configuration.part))
        && (args.stage.is_empty() || args.stage.iter().any(of_stage))
        && args.filter.iter().all(|text| label.contains(text) || words.contains(text))
}

/// Why `zprobe run` refuses it, if it does.
fn resolves(configuration: &Configuration) -> Result<(), String> {
    let parsed = run::Args::parse(&configuration.arguments()).map_err(|err| err.to_string())?;
    parsed.spec(None).map(drop).map_err(|err| match err.downcast_ref::<Refusal>() {
        Some(refusal) => refusal.line(),
        None => format!("{err:#}"),
    })
}

#[cfg(test)]
mod tests {
    use zprobe::spec::Engine;

    use super::*;

    #[test]
    fn every_configuration_resolves_or_is_refused_by_the_spec_and_not_by_the_command_line() {
        for &engine in Engine::ALL {
            let lattice = Lattice::of(engine);
            let bases = lattice.covering();
            for configuration in bases.iter().chain(&lattice.product()) {
                let arguments = configuration.arguments();
                let parsed = run::Args::parse(&arguments);
                assert!(parsed.is_ok(), "{arguments:?}: {}", parsed.err().expect("an error"));
            }
            let resolved = bases.iter().filter(|it| resolves(it).is_ok()).count();
            assert!(2 * resolved > bases.len(), "{engine}: {resolved} of {}", bases.len());
        }
    }
}
