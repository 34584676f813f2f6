//! The two runs of a comparison.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};

use crate::console::say_recorded;
use crate::limits::CANNOT_RUN;
use crate::order::Order;
use crate::queue::Queue;
use crate::recorded::diagnosis;
use crate::run::record;
use crate::store::{held, run_id};
use zprobe_model::trace::Trace;
use zprobe_report::Report;

/// A run of a comparison: side A or side B.
#[derive(Debug)]
pub struct Side {
    /// The name of the run in the comparison: its path or its flags.
    pub name: String,
    /// The report on the run.
    pub report: Report,
    /// The trace of the run; `None` if only a report was read, which has no parameters.
    pub trace: Option<Trace>,
}

impl Side {
    /// Reads a recorded run from its directory, or only a report from its file.
    pub fn recorded(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        if path.is_dir() {
            let (report, trace) = diagnosis(path)?;
            return Ok(Self { name, report, trace: Some(trace) });
        }
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
        let report: Report = serde_json::from_str(&text).with_context(|| {
            format!("{name} is not a report.json; give a run directory or its report.json")
        })?;
        Ok(Self { name, report, trace: None })
    }
}

/// Makes two runs, each named by its flags, in the directories `a` and `b` inside of `out`.
pub fn made(a: (&str, &Order), b: (&str, &Order), out: &Path) -> Result<(Side, Side)> {
    let (queue, _lock) = (Queue::unseen()?, held(out)?);
    let side = |(flags, order): (&str, &Order), name: &str| {
        let record = || record(order, &format!("{}-{name}", run_id()), &out.join(name), None);
        let (report, trace) = queue.job(name, record).map_err(|reason| {
            anyhow!(
                "--{name}: {reason}; nothing was compared, and the finished runs are in {}",
                out.display()
            )
        })??;
        let name = if flags.is_empty() { name } else { flags };
        Ok::<_, anyhow::Error>(Side { name: name.to_owned(), report, trace: Some(trace) })
    };
    let sides = (side(a, "a")?, side(b, "b")?);
    say_recorded(out);
    for (name, side) in [("--a", &sides.0), ("--b", &sides.1)] {
        if let Some(reason) = side.report.limit() {
            bail!("{name} \"{}\": {CANNOT_RUN}: {reason}; nothing was compared", side.name);
        }
    }
    Ok(sides)
}
