//! How much memory a rank takes.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};

use super::contender::{Contender, RANKS};
use super::processes::{kilobytes, tree};
use super::scratch::Scratch;

/// Runs that are watched. A rank lives for some 20 ms, so that one run may be missed.
pub const RUNS: usize = 10;

/// The largest that was seen of any rank in any run, in kB.
#[derive(Clone, Copy, Default)]
pub struct Memory {
    /// Most memory that was ever resident, shared or not.
    pub peak_rss: u64,
    /// Resident memory, in which each shared page counts by its share.
    pub pss: u64,
}

impl Memory {
    /// Watches the ranks of a contender. This slows them down, so no run is timed.
    pub fn measure(contender: &Contender, scratch: &Scratch) -> Result<Self> {
        eprintln!("memory of {}", contender.name);
        let mut largest = Self::default();
        for _ in 0..RUNS {
            largest = largest.max(Self::of_one_run(contender, scratch)?);
        }
        ensure!(largest.pss > 0, "the ranks of {} were never seen in /proc", contender.name);
        Ok(largest)
    }

    fn of_one_run(contender: &Contender, scratch: &Scratch) -> Result<Self> {
        let mut running = contender.start(scratch)?;
        let roots = running.pids().collect();
        let mut seen: BTreeMap<u32, Self> = BTreeMap::new();
        let mut parents = BTreeSet::new();
        while !running.has_ended()? {
            for (pid, parent) in tree(&roots)? {
                parents.insert(parent);
                let largest = seen.entry(pid).or_default();
                *largest = largest.max(Self::now(pid));
            }
        }
        running.finish()?;
        // Ranks are the processes without children.
        seen.retain(|pid, _| !parents.contains(pid));
        if seen.len() != RANKS {
            // The ranks came and went unseen; what was seen is their host.
            return Ok(Self::default());
        }
        Ok(seen.into_values().fold(Self::default(), Self::max))
    }

    fn now(pid: u32) -> Self {
        Self {
            peak_rss: kilobytes(pid, "status", "VmHWM").unwrap_or(0),
            pss: kilobytes(pid, "smaps_rollup", "Pss").unwrap_or(0),
        }
    }

    fn max(self, other: Self) -> Self {
        Self { peak_rss: self.peak_rss.max(other.peak_rss), pss: self.pss.max(other.pss) }
    }
}
