//! Time to verdict: from the start of a command to its end.

use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::super::contender::Contender;
use super::super::report::{self, ratio, time};
use super::super::sample::Sample;
use super::super::scratch::Scratch;
use super::super::seed_script::{Launcher, SeedScript};
use super::super::{in_turns, release_dir};

/// The numbers of ranks to measure.
const RANKS: [usize; 2] = [2, 4];

/// Text that every report contains if the run's weights were read, whatever the verdict.
const PROOF: &str = "Contribution weights";

/// Times of the three ways to a verdict, on one release of DeepSpeed with one number of ranks.
pub struct Verdicts {
    versions: String,
    ranks: usize,
    zprobe: Sample,
    torchrun: Sample,
    launcher: Sample,
}

/// Times zprobe and the script under both launchers, in turns, on every Python.
pub fn measure(scripts: &[SeedScript], runs: usize, scratch: &Scratch) -> Result<Vec<Verdicts>> {
    let release = release_dir()?;
    let mut settings = Vec::new();
    let mut contenders = Vec::new();
    for script in scripts {
        for ranks in RANKS {
            settings.push((script.versions.clone(), ranks));
            contenders.push(zprobe(&release, script, ranks, runs));
            contenders.push(script.under(Launcher::Torchrun, ranks, runs));
            contenders.push(script.under(Launcher::DeepSpeed, ranks, runs));
        }
    }
    let mut times = in_turns(&contenders, scratch)?.into_iter();
    let mut next = || times.next().unwrap_or_default();
    let verdicts = settings.into_iter().map(|(versions, ranks)| Verdicts {
        versions,
        ranks,
        zprobe: next(),
        torchrun: next(),
        launcher: next(),
    });
    Ok(verdicts.collect())
}

/// `zprobe run` as a user starts it, including diagnosis and report.
fn zprobe(release: &Path, script: &SeedScript, ranks: usize, runs: usize) -> Contender {
    let (zprobe, python) = (release.join("zprobe"), script.python().to_path_buf());
    let mut contender = Contender::new(
        format!("zprobe on {} with {ranks} ranks", script.versions),
        runs,
        move |scratch| {
            let mut command = Command::new(&zprobe);
            command.args(["run", "--engine", "deepspeed", "--stage", "1", "--ga", "4"]);
            command.arg("--nproc-per-node").arg(ranks.to_string());
            command.arg("--python").arg(&python).arg("--out").arg(scratch.empty("run")?);
            Ok(command)
        },
    );
    // The exit status is no proof of success: it is not 0 if the engine has the bug.
    contender.proof = Some(PROOF);
    contender
}

/// Writes the table with medians: one row for each release of DeepSpeed and number of ranks.
pub fn table(f: &mut fmt::Formatter<'_>, verdicts: &[Verdicts]) -> fmt::Result {
    let rows: Vec<Vec<String>> = verdicts.iter().map(Verdicts::row).collect();
    let head = [
        "time to verdict",
        "ranks",
        "runs",
        "zprobe run",
        "torchrun",
        "÷ zprobe",
        "deepspeed",
        "÷ zprobe",
    ];
    report::table(f, &head, &rows)
}

impl Verdicts {
    fn row(&self) -> Vec<String> {
        let zprobe = self.zprobe.median();
        let (torchrun, launcher) = (self.torchrun.median(), self.launcher.median());
        vec![
            self.versions.clone(),
            self.ranks.to_string(),
            self.zprobe.len().to_string(),
            time(zprobe),
            time(torchrun),
            ratio(torchrun / zprobe),
            time(launcher),
            ratio(launcher / zprobe),
        ]
    }
}
