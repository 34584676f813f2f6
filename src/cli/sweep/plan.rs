//! Which configurations are run, and which are left out and why.

use anyhow::{Result, ensure};
use zprobe::lattice::outcome::Refused;
use zprobe::lattice::{Configuration, Lattice};
use zprobe::report::words::amount;

use crate::cli::run;

/// What is going to be run.
#[derive(Debug)]
pub struct Plan {
    /// In this order.
    pub chosen: Vec<Configuration>,
    /// What of the design is refused.
    pub refused: Vec<Refused>,
    /// How many the filters leave out.
    filtered: usize,
    /// How many come after `--limit`.
    beyond: usize,
}

impl Plan {
    /// What these arguments ask for.
    pub fn new(args: &super::Args) -> Result<Self> {
        let lattice = Lattice::of(args.engine);
        let design = if args.full { lattice.product() } else { lattice.covering() };
        let mut plan = Self { chosen: vec![], refused: vec![], filtered: 0, beyond: 0 };
        for configuration in design {
            if !wanted(&configuration, args) {
                plan.filtered += 1;
            } else if let Err(reason) = resolves(&configuration) {
                plan.refuse(reason, &configuration);
            } else if args.limit.is_some_and(|limit| plan.chosen.len() >= limit) {
                plan.beyond += 1;
            } else {
                plan.chosen.push(configuration);
            }
        }
        ensure!(
            !plan.chosen.is_empty(),
            "no configuration of the {} engine is left to run; `zprobe sweep --engine {} --list` \
             shows them all",
            args.engine,
            args.engine,
        );
        Ok(plan)
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
    parsed.spec().map(drop).map_err(|err| format!("{err:#}"))
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
