//! The findings of a report, with their consequences and the known bugs that cause them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::RuleCode;
use zprobe_model::spec::named_enum;

/// An error or a warning about the run, with its evidence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// The code of the rule, for example `ZP101`. A code is never reused for another rule.
    pub code: RuleCode,
    /// The name of the rule, for example `boundary-leak`.
    pub name: String,
    /// The severity of the finding.
    pub severity: Severity,
    /// One sentence that says what happened.
    pub message: String,
    /// The first optimizer step that is affected, from 0; `None` if the finding is not about a step.
    pub step: Option<usize>,
    /// The microbatch that is affected, from 0; `None` if the finding is not about one microbatch.
    pub microbatch: Option<usize>,
    /// The rank that is at fault; `None` if the finding is not about one rank.
    pub rank: Option<usize>,
    /// The name of the parameter that is affected; `None` if the finding is not about one parameter.
    pub param: Option<String>,
    /// The number of the bucket flush that is affected; `None` if the finding is not about one flush.
    pub bucket: Option<usize>,
    /// The evidence, one fact in each entry.
    pub evidence: Vec<String>,
    /// The consequences of the finding. Without this finding, each would be a finding of its own.
    pub consequences: Vec<Consequence>,
    /// The known bugs of released engines that cause this finding in such a run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known: Vec<KnownBug>,
    /// The reason why the engine cannot run this configuration on this machine, for example too many ranks or a missing
    /// feature of NCCL. Such a finding says nothing about gradients. `None` for all other findings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// The line of the user's script that the finding is about; `None` without a script, or if no such line was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<Location>,
}

/// A line of a user's script.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Location {
    /// The path of the file, relative to the working directory of the script; only the name of the file if the file is
    /// outside of that directory.
    pub file: String,
    /// The number of the line, from 1.
    pub line: usize,
}

/// A bug of a released engine (`probes/zoo`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KnownBug {
    /// The name of the bug: `zprobe zoo NAME` reproduces the bug.
    pub name: String,
    /// The description of the bug in a few words.
    pub title: String,
    /// The addresses of pull requests, issues and other pages about the bug.
    pub links: Vec<String>,
    /// The releases that have the bug, as `deepspeed >=0.18.5, <0.19.0`.
    pub affected: String,
    /// The first release without the bug; `None` if no release without the bug is known.
    pub fixed: Option<String>,
    /// The cause of the bug: the file and the function of the engine.
    pub cause: String,
    /// The workaround for users who cannot install the fix.
    pub workaround: String,
    /// The settings that are affected, and what goes wrong.
    #[serde(default)]
    pub summary: String,
    /// The package that `fixed` is a release of; `None` if no release without the bug is known.
    #[serde(default)]
    pub package: Option<String>,
    /// The command that installs a release without the bug; `None` if no such release is known.
    #[serde(default)]
    pub upgrade: Option<String>,
}

impl KnownBug {
    /// The description of the bug, with the affected releases and the fix: `title (deepspeed <0.19.0; fixed in
    /// 0.19.0)`.
    pub fn description(&self) -> String {
        format!("{} ({}; {})", self.title, self.affected, self.fix())
    }

    /// The name of the bug with its releases, `boundary-leak, in deepspeed >=0.18.5, <0.19.0; fixed in 0.19.0`, and the
    /// first link about the bug.
    pub fn range(&self) -> String {
        let link = self.links.first().map(|link| format!("; {link}"));
        format!("{}, in {}; {}{}", self.name, self.affected, self.fix(), link.unwrap_or_default())
    }

    /// The state of the fix in words: `fixed in 0.19.0`.
    pub fn fix(&self) -> String {
        match &self.fixed {
            Some(release) => format!("fixed in {release}"),
            None => "not fixed in any release that was tried".to_owned(),
        }
    }
}

/// A deviation that is caused by a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Consequence {
    /// The code of the rule that saw the deviation.
    pub code: RuleCode,
    /// One sentence that says what the rule saw.
    pub message: String,
}

named_enum! {
    /// The severity of a finding.
    pub enum Severity {
        /// The training computes wrong results.
        Error = "error",
        /// The training computes right results, but something is not as it should be.
        Warning = "warning",
    }
}
