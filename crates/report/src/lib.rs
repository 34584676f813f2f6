//! The report on a run, built once by the crate `zprobe-diagnose` and rendered in many forms.
//!
//! [`Report`] is `report.json`. Within a schema version, fields are only added. The JSON Schema is checked in as
//! `schema/report.v1.schema.json`.

mod again;
pub mod blank;
mod contribution;
pub mod document;
mod exit;
mod finding;
mod form;
mod hooks;
mod journey;
mod own_words;
mod pointless;
mod power;
mod precision;
mod rank;
pub mod render;
mod repeats;
mod room;
mod rule_code;
mod run;
pub mod suite;
pub mod timeline;
pub mod words;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::again::CONFIG_FILE;
pub use self::contribution::{Contribution, Elements, MicrobatchTokens, Possible};
pub use self::exit::Exit;
pub use self::finding::{Consequence, Finding, KnownBug, Location, Severity};
pub use self::form::Form;
pub use self::hooks::{Firings, Flush, HookCount, Hooks};
pub use self::journey::{Divergence, Norms, Station, Step};
pub use self::own_words::OwnWords;
pub use self::pointless::pointless;
pub use self::power::{Method, Power};
pub use self::precision::{Over, Precision};
pub use self::rank::{Rank, Stack};
pub use self::repeats::{Minimised, RepeatDifference, Repeats, Trial};
pub use self::rule_code::{Family, NotACode, RuleCode};
pub use self::run::{Ending, NotObserved, Run};
use zprobe_model::spec::named_enum;

/// The report on a run: the verdict, the findings, and the measurements that they follow from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// The version of the report format.
    pub schema: Schema,
    /// The verdict on the run.
    pub verdict: Verdict,
    /// The specification of the run, and the software that it ran on.
    pub run: Run,
    /// The findings: one for each root cause, the most upstream first.
    pub findings: Vec<Finding>,
    /// The first departure from the plan; `None` if nothing is wrong, or if no buffer that could be read shows the
    /// error.
    #[serde(default)]
    pub first_divergence: Option<Divergence>,
    /// Every moment at which buffers were read, in the order of the gradient's journey.
    #[serde(default)]
    pub journey: Vec<Station>,
    /// The gradients that each buffer really holds, with their weights.
    pub contributions: Vec<Contribution>,
    /// The number of entries of `contributions` that were left out to limit the size of the report; entries that are as
    /// planned are left out first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub contributions_left_out: usize,
    /// The norms of the buffers of all ranks, in the order of the gradient's journey.
    pub norms: Vec<Norms>,
    /// The loss and the gradient norms of each step, as a training log would show them.
    #[serde(default)]
    pub steps: Vec<Step>,
    /// The outcome and the last action of each rank.
    pub ranks: Vec<Rank>,
    /// The bucket flushes of all ranks.
    pub buckets: Vec<Flush>,
    /// The gradient hooks that fired, compared with the nodes of the autograd graph.
    pub hooks: Hooks,
    /// The precision with which gradients were summed, in the order of the gradient's journey; for dense data only.
    #[serde(default)]
    pub precision: Vec<Precision>,
    /// The smallest deviation that this run could have detected.
    pub power: Power,
    /// The weights of the target tokens in each microbatch, in the recorded step of a script in which the weights
    /// differ most from those of a mean.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<MicrobatchTokens>,
    /// Remarks that are worth knowing but describe no error, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
    /// The parts of training that this run did not exercise: the verdict says nothing about these parts.
    pub not_exercised: Vec<String>,
    /// The number of secrets that were removed from the recording; `<secret>` replaces each secret.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub masked: usize,
    /// The comparison of the repeats of a run that was made several times; `None` for a single run. The rest of the
    /// report is about one of the repeats, [`Repeats::shown`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<Repeats>,
    /// The smallest configuration that still shows a finding; `None` if no such configuration was searched for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimised: Option<Minimised>,
}

/// True if a count is 0.
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// The version of the report format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Schema {
    /// The version number, currently 1. Within a version, fields are only added.
    pub version: u32,
}

impl Schema {
    /// The version of the format that this zprobe writes.
    pub const CURRENT: Schema = Schema { version: 1 };
}

named_enum! {
    /// The answer to the question whether a run summed its gradients correctly.
    pub enum Verdict {
        /// Every gradient arrived exactly once, with the right weight, in the right place.
        Clean = "clean",
        /// The findings say what is wrong.
        Findings = "findings",
        /// The engine under test crashed or hung before the gradients could be judged.
        Crashed = "crashed",
        /// The run was interrupted, or too few buffers could be read, so there is no answer.
        Inconclusive = "inconclusive",
    }
}

impl Verdict {
    /// The worst verdict of several runs: `Findings` outweighs `Crashed`, and `Crashed` outweighs `Inconclusive`.
    /// `None` if there are no runs.
    pub fn worst(verdicts: impl IntoIterator<Item = Self>) -> Option<Self> {
        const ASCENDING: [Verdict; 4] =
            [Verdict::Clean, Verdict::Inconclusive, Verdict::Crashed, Verdict::Findings];
        verdicts.into_iter().max_by_key(|verdict| ASCENDING.iter().position(|it| it == verdict))
    }
}

impl Report {
    /// The exit code that corresponds to the verdict.
    pub fn exit(&self) -> Exit {
        self.verdict.into()
    }

    /// The reason why the engine cannot run this configuration on this machine, and what to do; `None` unless every
    /// finding is such a limit. A run with only such findings says nothing about the engine.
    pub fn limit(&self) -> Option<String> {
        let (first, others) = self.findings.split_first()?;
        let limit = first.limit.as_ref()?;
        let advice = first.known.first().map(|known| format!("; what to do: {}", known.workaround));
        others
            .iter()
            .all(|finding| finding.limit.is_some())
            .then(|| format!("{limit}{}", advice.unwrap_or_default()))
    }

    /// The content of `report.json`, with a line feed at the end.
    ///
    /// # Errors
    /// Reports that the crate `zprobe-diagnose` builds never cause an error.
    pub fn to_json(&self) -> serde_json::Result<String> {
        zprobe_model::visible::json(self)
    }
}
