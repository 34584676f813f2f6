//! The memory of a rank.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use super::contender::Contender;
use super::processes::{kilobytes, tree};
use super::scratch::Scratch;

/// The number of runs that are watched: ranks live for some 20 ms, so a single run may be missed.
pub const RUNS: usize = 10;

/// The largest memory of any rank in any run, in kB; 0 if no run was seen, as may happen on a busy machine.
#[derive(Clone, Copy, Default)]
pub struct Memory {
    /// The peak resident memory, shared or not.
    pub peak_rss: u64,
    /// The resident memory, in which each shared page counts by the process's share.
    pub pss: u64,
    /// The sum of `pss` over all processes of a run: ranks, their host and the launcher.
    pub together: u64,
}

impl Memory {
    /// Watches the ranks of a contender in `runs` runs. Watching slows the ranks down, so these runs are not
    /// timed.
    pub fn measure(contender: &Contender, runs: usize, scratch: &Scratch) -> Result<Self> {
        eprintln!("memory of {}", contender.name);
        let mut largest = Self::default();
        for _ in 0..runs {
            largest = largest.max(Self::of_one_run(contender, scratch)?);
        }
        Ok(largest)
    }

    fn of_one_run(contender: &Contender, scratch: &Scratch) -> Result<Self> {
        let mut running = contender.start(scratch)?;
        let roots = running.pids().collect();
        let mut seen: BTreeMap<u32, Self> = BTreeMap::new();
        let (mut parents, mut together) = (BTreeSet::new(), 0);
        while !running.has_ended()? {
            let mut sum = 0;
            for (pid, parent) in tree(&roots)? {
                parents.insert(parent);
                let (now, largest) = (Self::now(pid), seen.entry(pid).or_default());
                *largest = largest.max(now);
                sum += now.pss;
            }
            together = together.max(sum);
        }
        running.finish()?;
        // The processes without children are the ranks.
        seen.retain(|pid, _| !parents.contains(pid));
        if seen.len() != contender.native_ranks {
            // The ranks came and went unseen; only their host was seen.
            return Ok(Self::default());
        }
        Ok(seen.into_values().fold(Self { together, ..Self::default() }, Self::max))
    }

    fn now(pid: u32) -> Self {
        Self {
            peak_rss: kilobytes(pid, "status", "VmHWM").unwrap_or(0),
            pss: kilobytes(pid, "smaps_rollup", "Pss").unwrap_or(0),
            together: 0,
        }
    }

    fn max(self, other: Self) -> Self {
        Self {
            peak_rss: self.peak_rss.max(other.peak_rss),
            pss: self.pss.max(other.pss),
            together: self.together.max(other.together),
        }
    }
}
