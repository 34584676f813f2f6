//! The plan of a sweep: the configurations to run, and those that are left out, with the reason.

use std::collections::{BTreeMap, HashMap, HashSet};

use anyhow::{Context as _, Result, ensure};

use crate::console::say;
use crate::lattice::outcome::{Refused, Sweep, SweepEnding, SweepRow};
use crate::lattice::{Configuration, DesignPart, Lattice};
use crate::order::ParseSpec;
use zprobe_launch::Stop;
use zprobe_model::spec::{Engine, Refusal};
use zprobe_report::words::amount;
use zprobe_zoo::{Packages, may_show_known_bug};

/// The flags of `zprobe sweep` that choose configurations of an engine.
#[derive(Debug)]
pub struct SweepSelection<'a> {
    /// The engine of the sweep.
    pub engine: Engine,
    /// The source of the configurations.
    pub design: SweepDesign,
    /// The packages whose known bugs the pairwise design avoids.
    pub packages: Packages,
    /// The chosen parts of the design; empty for all parts.
    pub parts: &'a [DesignPart],
    /// The chosen ZeRO stages; empty for all stages.
    pub stages: &'a [u8],
    /// Chooses only configurations whose label or arguments contain all of these texts.
    pub filter: &'a [String],
    /// The largest number of configurations; `None` for no limit.
    pub limit: Option<usize>,
}

/// The source of the configurations of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SweepDesign {
    /// A covering design: every value of every axis, and pairs of values.
    Covering,
    /// A small design in which every pair of unusual values occurs.
    Pairwise,
    /// Random draws from all axes.
    Drawn {
        /// The number of configurations to draw.
        number: usize,
        /// The seed of the random draws.
        seed: u64,
    },
}

/// The plan of a sweep: the configurations to run, and the counts of those that are left out.
#[derive(Debug)]
pub struct SweepPlan {
    engine: Engine,
    /// The configurations that are run, in this order.
    pub chosen: Vec<Configuration>,
    /// The index of every configuration in the design, by its arguments.
    order: HashMap<Vec<String>, usize>,
    /// An earlier sweep, whose configurations are not run again; `None` without `--resume`.
    earlier: Option<Sweep>,
    /// The configurations of the design that zprobe refuses.
    pub refused: Vec<Refused>,
    /// The number of configurations that the filters leave out.
    filtered: usize,
    /// The number of configurations that `--limit` leaves out.
    beyond: usize,
}

impl SweepPlan {
    /// The plan for a choice. Configurations that an earlier sweep has run are left out; those that the earlier sweep
    /// could not run are tried again.
    pub fn new(
        choice: &SweepSelection<'_>,
        mut earlier: Option<Sweep>,
        spec: &ParseSpec<'_>,
    ) -> Result<Self> {
        if let Some(sweep) = &mut earlier {
            sweep.rows.retain(|row| {
                !matches!(row.outcome.ending, SweepEnding::NotRun | SweepEnding::Skipped)
            });
        }
        let rows = earlier.iter().flat_map(|sweep| &sweep.rows);
        let has_run: HashSet<_> = rows.map(|row| row.configuration.arguments()).collect();
        let mut plan = Self {
            engine: choice.engine,
            chosen: vec![],
            order: HashMap::new(),
            earlier,
            refused: vec![],
            filtered: 0,
            beyond: 0,
        };
        let mut wanted_yet = match choice.design {
            SweepDesign::Drawn { number, .. } => Some(number),
            SweepDesign::Covering | SweepDesign::Pairwise => None,
        };
        // Few of many draws may pass the filters, so that planning takes long and must be interruptible.
        let stop = Stop::listen().context("cannot listen to signals")?;
        for configuration in configurations(choice, spec) {
            ensure!(!stop.is_wanted(), "interrupted while the sweep was planned; nothing was run");
            if wanted_yet == Some(0) {
                break;
            }
            let arguments = configuration.arguments();
            let place = plan.order.len();
            if plan.order.insert(arguments.clone(), place).is_some() {
                continue;
            }
            if !wanted(&configuration, choice) {
                plan.filtered += 1;
                continue;
            } else if let Err(reason) = resolves(&configuration, spec) {
                plan.refuse(reason, &configuration);
                continue;
            } else if has_run.contains(&arguments) {
                // The configuration is part of the sweep, but is not run again.
            } else if choice.limit.is_some_and(|limit| plan.chosen.len() >= limit) {
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
            choice.engine,
            choice.engine,
        );
        Ok(plan)
    }

    /// The result of the sweep: the rows of this sweep and of the earlier one, in the order of the design. The rows
    /// of an earlier sweep with other versions are left out.
    pub(super) fn sweep(
        self,
        steps: usize,
        mut rows: Vec<SweepRow>,
        mut versions: BTreeMap<String, String>,
    ) -> Sweep {
        let not_tried = self.chosen.len() - rows.len();
        if let Some(earlier) = self.earlier {
            if versions.is_empty() || versions == earlier.versions {
                versions = earlier.versions;
                rows.extend(earlier.rows);
            } else {
                say(format_args!(
                    "warning: the earlier sweep ran {:?} and this one {versions:?}; the earlier {} are left \
                     out",
                    earlier.versions,
                    amount(earlier.rows.len(), "row"),
                ));
            }
        }
        rows.sort_by_key(|row| self.order.get(&row.configuration.arguments()).copied());
        Sweep { engine: self.engine, versions, steps, refused: self.refused, not_tried, rows }
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

    /// The number of configurations that are run, and the numbers that are left out for each reason, in words.
    pub fn summary(&self) -> String {
        let mut text = amount(self.chosen.len(), "configuration");
        if let Some(earlier) = &self.earlier {
            text += &format!(", {} run earlier", earlier.rows.len());
        }
        let refused: usize = self.refused.iter().map(|refused| refused.count).sum();
        for (count, what) in [
            (refused, "refused by zprobe"),
            (self.filtered, "left out by filters"),
            (self.beyond, "beyond --limit"),
        ] {
            if count > 0 {
                text += &format!(", {count} {what}");
            }
        }
        text
    }
}

/// The configurations of a design, in order. The number of random draws is limited, because filters may let no
/// configuration pass.
fn configurations(
    choice: &SweepSelection<'_>,
    spec: &ParseSpec<'_>,
) -> Box<dyn Iterator<Item = Configuration>> {
    let lattice = Lattice::of(choice.engine);
    match choice.design {
        SweepDesign::Drawn { number, seed } => Box::new(lattice.drawn(seed).take(DRAWS * number)),
        SweepDesign::Pairwise => {
            let accepts = |it: &Configuration| {
                let spec = spec(&it.arguments());
                wanted(it, choice)
                    && spec.is_ok_and(|spec| !may_show_known_bug(&spec, &choice.packages))
            };
            Box::new(lattice.pairwise(&accepts).into_iter())
        }
        SweepDesign::Covering => Box::new(lattice.covering().into_iter()),
    }
}

/// Number of draws for each wanted configuration.
const DRAWS: usize = 1000;

/// True if a configuration passes the filters.
fn wanted(configuration: &Configuration, choice: &SweepSelection<'_>) -> bool {
    let arguments = configuration.arguments();
    let (label, words) = (configuration.label(), arguments.join(" "));
    let of_stage = |stage: &u8| {
        let wanted = ["--stage".to_owned(), stage.to_string()];
        arguments.windows(2).any(|pair| pair == wanted)
    };
    (choice.parts.is_empty() || choice.parts.contains(&configuration.part))
        && (choice.stages.is_empty() || choice.stages.iter().any(of_stage))
        && choice.filter.iter().all(|text| label.contains(text) || words.contains(text))
}

/// Checks that `zprobe run` accepts a configuration; the error is the reason for a refusal.
fn resolves(configuration: &Configuration, spec: &ParseSpec<'_>) -> Result<(), String> {
    let resolved = spec(&configuration.arguments()).map(drop);
    resolved.map_err(|err| match err.downcast_ref::<Refusal>() {
        Some(refusal) => refusal.line(),
        None => format!("{err:#}"),
    })
}
