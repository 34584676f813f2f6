//! The runs of a report besides the reported run: its repeats, and the search for the smallest configuration.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{RuleCode, Verdict};

/// The smallest configuration that still shows a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Minimised {
    /// The code of the finding.
    pub code: RuleCode,
    /// The command line that runs the configuration.
    pub command: String,
    /// True if every possible reduction of the configuration was tried; false if the limit on the number of runs was
    /// reached first.
    pub complete: bool,
    /// The configurations that were tried, in order.
    pub trials: Vec<Trial>,
}

/// A configuration that was tried in the search for the smallest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Trial {
    /// The change to the smallest configuration found so far.
    pub change: String,
    /// The codes of the trial's findings; the verdict if there were no findings.
    pub said: String,
    /// True if the trial still showed the finding, so that the search continued from this configuration.
    pub kept: bool,
}

/// The repeats of the same run, numbered from 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Repeats {
    /// The verdict on each repeat, by the number of the repeat.
    pub verdicts: Vec<Verdict>,
    /// The number of the repeat that the report is about: the first repeat with the worst verdict.
    pub shown: usize,
    /// The number of points of the journey, on all ranks, at which the repeats were compared bit for bit.
    pub compared: usize,
    /// The points at which some repeats differ from repeat 0, in the order of the journey.
    pub differences: Vec<RepeatDifference>,
}

/// A point of the journey at which some repeats differ from repeat 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RepeatDifference {
    /// The optimizer step, from 0; `None` for a point before the first step.
    pub step: Option<usize>,
    /// The microbatch, from 0; `None` for a point after the accumulation.
    pub microbatch: Option<usize>,
    /// The rank, from 0.
    pub rank: usize,
    /// The name of the buffer or value that differs.
    pub what: String,
    /// The numbers of the repeats that differ from repeat 0.
    pub repeats: Vec<usize>,
}
