//! `zprobe sweep`: runs one engine of one Python over a lattice of configurations.
//!
//! Every configuration is a run with the arguments that its row shows. The runs share a pool, which imports the
//! engine once.

pub mod matrix;
pub mod plan;
mod run;
pub mod table;

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

pub use self::run::SweepOptions;
use crate::lattice::outcome::{Sweep, SweepEnding};
use zprobe_model::spec::Engine;
use zprobe_report::Exit;
use zprobe_report::suite::{self, Status};

/// Reads an earlier sweep that a sweep of `engine`, with this number of steps, can continue.
pub fn earlier(path: &Path, engine: Engine, steps: usize) -> Result<Sweep> {
    let earlier = read(path)?;
    ensure!(
        (earlier.engine, earlier.steps) == (engine, steps),
        "--resume {}: the earlier sweep was of {} with {} steps; give the same --engine and --steps",
        path.display(),
        earlier.engine,
        earlier.steps,
    );
    Ok(earlier)
}

/// Reads an earlier sweep that was printed in JSON.
pub fn read(path: &Path) -> Result<Sweep> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| {
        format!(
            "{} is not the output of `zprobe sweep --output-format json`; make it again",
            path.display()
        )
    })
}

/// The exit code of the worst ending. A configuration that could not be run counts like a crash.
pub fn exit(endings: impl Iterator<Item = SweepEnding>) -> Exit {
    suite::exit(endings.map(|ending| match ending {
        SweepEnding::Findings => Status::Failed,
        SweepEnding::Crashed | SweepEnding::NotRun => Status::Crashed,
        SweepEnding::Inconclusive => Status::Inconclusive,
        SweepEnding::Clean => Status::Passed,
        SweepEnding::Skipped => Status::Skipped,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_weigh_more_than_crashes_and_these_more_than_doubt() {
        use SweepEnding::{Clean, Crashed, Findings, Inconclusive, NotRun, Skipped};
        let code = |endings: &[SweepEnding]| exit(endings.iter().copied()).code();
        assert_eq!(code(&[Clean, Crashed, Findings, Inconclusive]), 1);
        assert_eq!(code(&[Inconclusive, Crashed, Clean]), 3);
        assert_eq!(code(&[NotRun, Clean]), 3);
        assert_eq!(code(&[Clean, Inconclusive]), 4);
        assert_eq!(code(&[Clean]), 0);
        assert_eq!(code(&[Clean, Skipped]), 0);
        assert_eq!(code(&[Skipped, Skipped]), 2, "nothing was run");
    }
}
