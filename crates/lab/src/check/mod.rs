//! `zprobe check`: a suite of probes over warm ranks, with one verdict for CI.
//!
//! A case is a probe on one engine: a run with the arguments of the probe, over a pool, so that each engine is loaded
//! once. Engines that cannot run on this machine are skipped, with a message. The case of a user's training script is a
//! `zprobe exec`.

mod absent;
pub mod accept;
pub mod baseline;
pub mod probe;
mod run;
pub mod select;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use self::absent::UnavailableEngines;
use self::accept::AcceptedFindings;
use self::select::PlannedCase;
use super::recorded::write_new;
use super::{secrets, store};
use crate::console::say_recorded;
use zprobe_diagnose::rules;
use zprobe_engines as engines;
use zprobe_model::run_dir::{self, Claim};
use zprobe_model::spec::Engine;
use zprobe_report::suite::{Case, Status, Suite};

/// The name of the results in the directory of a check that has kept runs.
const SUITE_FILE: &str = "check.json";

/// Largest size of [`SUITE_FILE`], in bytes.
const MOST_SUITE: u64 = 1 << 30;

/// The results in the directory of a check, which is named by its path or by its name in `.zprobe/check`; `None` if the
/// name is not that of a check.
///
/// # Errors
/// When the results cannot be read.
pub fn checked(given: &Path) -> Result<Option<Suite>> {
    let is_check = |dir: &PathBuf| dir.join(SUITE_FILE).symlink_metadata().is_ok();
    let dirs = [given.to_owned(), Path::new(store::ROOT).join("check").join(given)];
    let Some(dir) = dirs.into_iter().find(is_check) else { return Ok(None) };
    let path = dir.join(SUITE_FILE);
    let text = run_dir::read_text(&path, MOST_SUITE)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let suite: Suite = serde_json::from_str(&text)
        .with_context(|| format!("cannot understand {}", path.display()))?;
    let pages = Suite::new(suite.cases.clone(), vec![], String::new(), page).pages;
    Ok(Some(Suite { pages, ..suite }))
}

/// The documentation of a rule, by the code of the rule.
fn page(code: &str) -> Option<&'static str> {
    rules::find(code).map(|rule| rule.doc)
}

/// A suite to check, with its options.
pub struct SuiteCheck<'a> {
    /// The engines that the user has named, which must therefore be able to run.
    pub named: &'a [Engine],
    /// The interpreter that has the real engines.
    pub python: &'a Path,
    /// The findings that are accepted.
    pub accepted: &'a AcceptedFindings,
    /// True if nothing is started after the first bad case.
    pub fail_fast: bool,
    /// The number of pools that run side by side.
    pub jobs: usize,
    /// The directory for the runs of bad cases; `None` for a new directory.
    pub out: Option<PathBuf>,
    /// True if the cases are all cases of the standard suite.
    pub is_whole: bool,
    /// The path of the configuration file, which stands in for a probe that has no file of its own.
    pub configuration: String,
}

impl SuiteCheck<'_> {
    /// Runs all cases that can run on this machine.
    pub fn suite(self, tasks: &[PlannedCase<'_>]) -> Result<Suite> {
        let start = Instant::now();
        let absent = UnavailableEngines::look(tasks, self.python);
        self.refuse_missing(&absent.engines)?;
        let out = self.out.clone().map_or_else(|| store::place("check"), Ok)?;
        let claim = Claim::new(&out)?;
        let mut cases = run::all(tasks, &absent, &self, &out)?;
        let notices = self.accepted.finish(&mut cases, self.is_whole)?;
        let is_kept = cases.iter().any(|case| case.run_dir.is_some());
        if is_kept {
            say_recorded(&out);
            claim.keep();
        }
        let unchecked = self.unchecked(&cases);
        let mut suite = Suite::new(cases, notices, self.configuration, page);
        if let Some(why) = unchecked {
            suite = suite.without_answer(why);
        }
        suite.seconds = start.elapsed().as_secs_f64();
        let suite = secrets::without(suite)?;
        if is_kept {
            write_new(&out.join(SUITE_FILE), &suite.to_json()?)?;
        }
        Ok(suite)
    }

    /// The reason why these cases give no answer about the intended engines; `None` if they do. The intended engines
    /// are the named ones, or else any real engine or a script: the native engine is part of zprobe, and says nothing
    /// about real ones.
    fn unchecked(&self, cases: &[Case]) -> Option<String> {
        let was_run = |engine: &Engine| {
            cases.iter().any(|case| case.engine == *engine && case.run_was_made())
        };
        if self.named.is_empty() {
            let real = Engine::CHOICES.iter().filter(|engine| engines::of(**engine).is_real());
            let mut meant = real.chain([&Engine::Script]);
            return meant.all(|engine| !was_run(engine)).then(|| {
                "no real engine was checked: only zprobe's own. Name the Python that has \
                 your engine with --python, or give --engine native to check zprobe's own"
                    .to_owned()
            });
        }
        let engine = self.named.iter().find(|engine| !was_run(engine))?;
        Some(format!("--engine {engine}: none of its probes was run"))
    }

    /// Refuses a suite if an engine that the user named cannot run.
    fn refuse_missing(&self, missing: &BTreeMap<Engine, String>) -> Result<()> {
        match missing.iter().find(|(engine, _)| self.named.contains(engine)) {
            Some((engine, reason)) => bail!("--engine {engine}: {reason}"),
            None => Ok(()),
        }
    }
}

/// Refuses to give a verdict on a suite if none of its cases was run.
pub fn refuse_nothing(suite: &Suite) -> Result<()> {
    if !suite.cases.iter().any(Case::run_was_made) {
        let reason = suite.cases.iter().find(|case| case.status == Status::NotRun);
        let reason = reason.and_then(|case| case.reason.as_deref()).unwrap_or("see above");
        bail!("nothing ran: {reason}");
    }
    Ok(())
}
