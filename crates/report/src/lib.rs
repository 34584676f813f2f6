//! The report: built once by the crate `zprobe-diagnose`, rendered many ways.
//!
//! [`Report`] is `report.json`. Its fields are append-only within a schema version; the JSON Schema
//! is checked in as `schema/report.v1.schema.json`.

mod again;
pub mod blank;
mod contribution;
pub mod document;
mod exit;
mod form;
mod pointless;
mod precision;
pub mod render;
mod room;
mod rule_code;
pub mod suite;
pub mod timeline;
pub mod words;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::again::CONFIG_FILE;
pub use self::contribution::{Contribution, Elements, Possible};
pub use self::exit::Exit;
pub use self::form::Form;
pub use self::pointless::pointless;
pub use self::precision::{Over, Precision};
pub use self::rule_code::{Family, NotACode, RuleCode};
use zprobe_model::spec::{RunSpec, named_enum};
use zprobe_model::trace::{FlushReason, Frame, Outcome, Point};

/// Report on a run: all that zprobe has to say about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// Version of this format.
    pub schema: Schema,
    /// The verdict on the run.
    pub verdict: Verdict,
    /// Specification of the run, and the software that it ran on.
    pub run: Run,
    /// Findings: one per root cause, most upstream first.
    pub findings: Vec<Finding>,
    /// First departure from the plan; none where nothing is wrong, or where what is wrong shows in
    /// no buffer that could be read.
    #[serde(default)]
    pub first_divergence: Option<Divergence>,
    /// Every moment at which buffers were read, in the order of the journey.
    #[serde(default)]
    pub journey: Vec<Station>,
    /// Gradients that each buffer really holds.
    pub contributions: Vec<Contribution>,
    /// Number of entries of `contributions` that the report has no room for; those that are as
    /// planned make way first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub contributions_left_out: usize,
    /// Buffer norms of all ranks side by side, in the order of the journey.
    pub norms: Vec<Norms>,
    /// Loss and gradient norms of each step, as a training log would show them.
    #[serde(default)]
    pub steps: Vec<Step>,
    /// Ending of each rank, and the last thing that it did.
    pub ranks: Vec<Rank>,
    /// Every bucket flush.
    pub buckets: Vec<Flush>,
    /// Gradient hooks against the autograd graph.
    pub hooks: Hooks,
    /// Precision with which gradients were added up, in the order of the journey; dense data only.
    #[serde(default)]
    pub precision: Vec<Precision>,
    /// Smallest deviation that this run could have seen.
    pub power: Power,
    /// Weights of target tokens, microbatch by microbatch, in the recorded step of a script in which they
    /// are farthest from those of a mean.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<MicrobatchTokens>,
    /// Remarks on what is no error and worth knowing, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
    /// Parts of training that this run did not exercise: no verdict about these.
    pub not_exercised: Vec<String>,
    /// Number of secrets that were taken out of what was recorded: `<secret>` replaces each.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub masked: usize,
    /// Comparison of the repeats of a run that was repeated. The rest of the report is about the
    /// repeat that is shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<Repeats>,
    /// The smallest configuration that still shows a finding, if it was looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimised: Option<Minimised>,
}

/// True if nothing was counted.
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// Version of the report format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Schema {
    /// Number of the version, 1. Fields are only added within a version.
    pub version: u32,
}

impl Schema {
    /// The version that this zprobe writes.
    pub const CURRENT: Schema = Schema { version: 1 };
}

named_enum! {
    /// The answer to zprobe's question.
    pub enum Verdict {
        /// Every gradient arrived exactly once, with the right weight, in the right place.
        Clean = "clean",
        /// Something is wrong; see the findings.
        Findings = "findings",
        /// The engine under test crashed or hung before the question could be answered.
        Crashed = "crashed",
        /// The run ended without an answer: interrupted, or too little could be read.
        Inconclusive = "inconclusive",
    }
}

impl Verdict {
    /// The verdict on several runs together: findings weigh more than crashes, these more than doubt,
    /// because each hides the next. None on no runs.
    pub fn worst(verdicts: impl IntoIterator<Item = Self>) -> Option<Self> {
        const ASCENDING: [Verdict; 4] =
            [Verdict::Clean, Verdict::Inconclusive, Verdict::Crashed, Verdict::Findings];
        verdicts.into_iter().max_by_key(|verdict| ASCENDING.iter().position(|it| it == verdict))
    }
}

/// Specification of a run, and the software that it ran on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    /// The run's specification.
    pub spec: RunSpec,
    /// Versions of zprobe and of what the ranks ran.
    pub versions: BTreeMap<String, String>,
    /// Class that really wrapped the inner optimizer; none if no rank got that far.
    pub optimizer_class: Option<String>,
    /// The inner optimizer.
    pub inner_optimizer: Option<String>,
    /// Facts that the engine states about itself, by name; where a rank states something else than
    /// rank 0, its value is under that name with the rank in brackets.
    pub engine_facts: BTreeMap<String, String>,
    /// Parts of the engine that were not observed.
    pub not_observed: Vec<NotObserved>,
    /// Ending of the recording.
    pub ending: Ending,
    /// Command that makes the run again, without the interpreter, whose path is private. A DeepSpeed file that it
    /// names is in the bug report of `zprobe issue`. None where no flags say what was run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// Weights of the target tokens of a microbatch in the update.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MicrobatchTokens {
    /// Optimizer step.
    pub step: usize,
    /// Rank.
    pub rank: usize,
    /// Microbatch.
    pub microbatch: usize,
    /// Number of tokens with a weight.
    pub tokens: usize,
    /// The least weight of a token, as a multiple of the mean in the step.
    pub least: f64,
    /// The largest weight of a token, as a multiple of the mean in the step.
    pub most: f64,
    /// Share of all weights of the step that its tokens have together.
    pub share: f64,
}

/// Something that this release of an engine does not let be seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NotObserved {
    /// Name of what was not observed.
    pub what: String,
    /// Reason why it was not observed.
    pub why: String,
}

named_enum! {
    /// Ending of the recording of a run.
    pub enum Ending {
        /// Every rank ended, in whatever way.
        Complete = "complete",
        /// The user ended the run.
        Interrupted = "interrupted",
        /// The trace stops while ranks were still running: zprobe itself was killed, or the file
        /// was cut.
        CutOff = "cut-off",
    }
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// Rule code, for example `ZP101`. Never reused for anything else.
    pub code: RuleCode,
    /// Rule name, for example `boundary-leak`.
    pub name: String,
    /// Severity of the finding.
    pub severity: Severity,
    /// Sentence on what happened.
    pub message: String,
    /// First optimizer step affected.
    pub step: Option<usize>,
    /// Microbatch affected.
    pub microbatch: Option<usize>,
    /// Rank that is at fault, where one is.
    pub rank: Option<usize>,
    /// Parameter affected, where it is one.
    pub param: Option<String>,
    /// Flush affected, where it is one.
    pub bucket: Option<usize>,
    /// Evidence, one fact a line.
    pub evidence: Vec<String>,
    /// Consequences of the finding, which would be findings by themselves otherwise.
    pub consequences: Vec<Consequence>,
    /// Known bugs of released engines that look like this in such a run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known: Vec<KnownBug>,
    /// Reason why the engine cannot run this configuration here, where that is what was found: a
    /// limit of the ranks of this machine or of the software around the engine, which says nothing
    /// about gradients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
}

/// First departure of the journey from the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Divergence {
    /// Optimizer step.
    pub step: usize,
    /// Microbatch, inside the accumulation.
    pub microbatch: Option<usize>,
    /// Point of the buffer that departs; none where it is a gradient hook or a bucket.
    pub point: Option<Point>,
    /// Ranks on which it departs.
    pub ranks: Vec<usize>,
    /// Parameters concerned; none for all.
    pub params: Option<Vec<String>>,
    /// Flush, where it is a bucket.
    pub bucket: Option<usize>,
    /// Function of the engine that makes this buffer, where known; none where the buffer was changed outside of the
    /// engine.
    pub function: Option<String>,
    /// True if the gradients of a user's script changed between two backwards, outside of both.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outside_backward: bool,
    /// Number of stations of [`Report::journey`] before it, all as planned.
    pub right_before: usize,
}

/// A moment at which buffers were read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Station {
    /// Optimizer step.
    pub step: usize,
    /// Microbatch, inside the accumulation.
    pub microbatch: Option<usize>,
    /// Point of the journey.
    pub point: Point,
    /// Number of ranks whose buffer was read.
    pub ranks: usize,
    /// Ranks whose buffer is not as planned.
    pub departed: Vec<usize>,
}

/// A bug of a released engine (`probes/zoo`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KnownBug {
    /// Name of the bug: `zprobe zoo NAME` tries it.
    pub name: String,
    /// Description of the bug in a few words.
    pub title: String,
    /// Pull requests, issues and other places that tell of it.
    pub links: Vec<String>,
    /// Releases that have it.
    pub affected: String,
    /// The first release without it; none if no release is known to be.
    pub fixed: Option<String>,
    /// Cause of the bug: the engine's file and function.
    pub cause: String,
    /// Workaround for those who cannot have the fix.
    pub workaround: String,
    /// Settings that have the bug, and what goes wrong.
    #[serde(default)]
    pub summary: String,
    /// Package whose releases `fixed` counts; none if no release is known to be without the bug.
    #[serde(default)]
    pub package: Option<String>,
}

impl KnownBug {
    /// Description of the bug, with affected releases and the fix: `title (deepspeed <0.19.0; fixed
    /// in 0.19.0)`.
    pub fn description(&self) -> String {
        format!("{} ({}; {})", self.title, self.affected, self.fix())
    }

    /// The bug with its releases in a few words: `boundary-leak, in deepspeed >=0.18.5, <0.19.0; fixed in
    /// 0.19.0`, and the first place that tells of it.
    pub fn range(&self) -> String {
        let link = self.links.first().map(|link| format!("; {link}"));
        format!("{}, in {}; {}{}", self.name, self.affected, self.fix(), link.unwrap_or_default())
    }

    /// Command that installs a release without the bug, if there is one.
    pub fn upgrade(&self) -> Option<String> {
        let (package, release) = (self.package.as_ref()?, self.fixed.as_ref()?);
        Some(format!("pip install '{package}>={release}'"))
    }

    /// The fix in words: `fixed in 0.19.0`.
    pub fn fix(&self) -> String {
        match &self.fixed {
            Some(release) => format!("fixed in {release}"),
            None => "not fixed in any release that was tried".to_owned(),
        }
    }
}

/// A deviation that has its cause in a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Consequence {
    /// Code of the rule that saw it.
    pub code: RuleCode,
    /// Sentence on what the rule saw.
    pub message: String,
}

named_enum! {
    /// Severity of a finding.
    pub enum Severity {
        /// Training is wrong.
        Error = "error",
        /// Training is right, but something is not as it should be.
        Warning = "warning",
    }
}

/// Norm of one buffer on every rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Norms {
    /// Optimizer step.
    pub step: usize,
    /// Microbatch, for points inside the accumulation.
    pub microbatch: Option<usize>,
    /// Point of the gradient's journey.
    pub point: Point,
    /// True if all ranks hold the same bits; none where they need not.
    pub agree: Option<bool>,
    /// Norm by rank; none where it was not seen or is not finite.
    pub norms: Vec<Option<f64>>,
    /// Difference to rank 0 in percent; empty where ranks hold different parts.
    pub difference_percent: Vec<Option<f64>>,
}

impl Norms {
    /// Norms with their ranks, in ascending order.
    pub fn sorted(&self) -> Vec<(f64, usize)> {
        let known = self.norms.iter().enumerate().filter_map(|(rank, norm)| Some(((*norm)?, rank)));
        let mut sorted: Vec<(f64, usize)> = known.collect();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
        sorted
    }
}

/// Loss and gradient norms of a step, as a training log would show them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// Optimizer step.
    pub step: usize,
    /// Mean loss over the microbatches of all ranks; none where it was not seen or is not finite.
    pub loss: Option<f64>,
    /// Global norm of the gradient before clipping, as the engine of rank 0 computed it.
    pub gradient_norm: Option<f64>,
    /// Norm of what the inner optimizers of all ranks consumed, together.
    pub input_norm: Option<f64>,
}

/// Ending of a rank, and the last thing that it did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Rank {
    /// The rank.
    pub rank: usize,
    /// Process id; none if it was never started.
    pub pid: Option<u32>,
    /// Outcome of its process; none if that is not known.
    pub outcome: Option<Outcome>,
    /// True if the rank did everything that it was asked to do.
    pub finished: bool,
    /// Last thing that the rank did, in words.
    pub last: String,
    /// Account that the rank itself gave of a failure.
    pub failure: Option<String>,
    /// The end of its standard error, if it did not end well.
    pub stderr: Option<String>,
    /// Python stacks of the rank of a user's script when it crashed or was ended; that of the main
    /// thread first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stacks: Vec<Stack>,
}

/// A Python stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stack {
    /// Number of the thread: 0 for the main one.
    pub thread: usize,
    /// The frames, the innermost first.
    pub frames: Vec<Frame>,
}

impl Rank {
    /// Outcome of the process in words: `exit code 1`.
    pub fn ending(&self) -> String {
        match self.outcome {
            Some(Outcome::Code(code)) => format!("exit code {code}"),
            Some(Outcome::Signal(signal)) => format!("signal {signal}"),
            Some(Outcome::Reaped) => "ended by zprobe".to_owned(),
            Some(Outcome::Lost) => "lost with its machine".to_owned(),
            Some(Outcome::WithLauncher(signal)) => format!("signal {signal} to its launcher"),
            Some(Outcome::Unseen) | None => "no known end".to_owned(),
        }
    }
}

/// A bucket flush.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Flush {
    /// Optimizer step.
    pub step: usize,
    /// Microbatch.
    pub microbatch: usize,
    /// Number of the flush within the step.
    pub flush: usize,
    /// Ranks that flushed this bucket, in this way.
    pub ranks: Vec<usize>,
    /// Reason for the flush.
    pub reason: FlushReason,
    /// Elements in the bucket.
    pub elements: usize,
    /// Capacity in elements.
    pub capacity: usize,
    /// Parameters in the bucket.
    pub params: Vec<String>,
}

/// The smallest configuration that still shows a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Minimised {
    /// Code of the finding.
    pub code: RuleCode,
    /// Command line that runs the configuration.
    pub command: String,
    /// True if everything that could be taken out of it was tried; otherwise the runs were used up.
    pub complete: bool,
    /// Configurations that were tried on the way, in order.
    pub trials: Vec<Trial>,
}

/// A configuration that was tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Trial {
    /// Change to the smallest configuration so far.
    pub change: String,
    /// Codes of what was found, or else the verdict.
    pub said: String,
    /// True if the finding was still there, so that the search went on from here.
    pub kept: bool,
}

/// Repeats of the same run. They count from 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Repeats {
    /// The verdict on each repeat by itself.
    pub verdicts: Vec<Verdict>,
    /// The repeat that the report is about: the first of those with the worst verdict.
    pub shown: usize,
    /// Number of points of the journey, on all ranks, at which the repeats were compared bit for
    /// bit.
    pub compared: usize,
    /// Points at which some repeats differ from repeat 0, in the order of the journey.
    pub differences: Vec<RepeatDifference>,
}

/// A point of the journey at which repeats differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RepeatDifference {
    /// Optimizer step; none before the first.
    pub step: Option<usize>,
    /// Microbatch, inside the accumulation.
    pub microbatch: Option<usize>,
    /// Rank.
    pub rank: usize,
    /// Name of what differs.
    pub what: String,
    /// Repeats that are not like repeat 0.
    pub repeats: Vec<usize>,
}

/// Gradient hooks against the autograd graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Hooks {
    /// True if firings of hooks were seen; otherwise, as in a dataflow without hooks, `fired` is
    /// none.
    pub observed: bool,
    /// Numbers of `AccumulateGrad` nodes and of hooks that fired, by step, microbatch and rank.
    pub counts: Vec<HookCount>,
    /// The model's parameters, in flat order: those that `firings` is about.
    #[serde(default)]
    pub params: Vec<String>,
    /// Nodes and firings of each backward, parameter by parameter.
    #[serde(default)]
    pub firings: Vec<Firings>,
}

/// Hooks of one backward, parameter by parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Firings {
    /// Optimizer step.
    pub step: usize,
    /// Microbatch.
    pub microbatch: usize,
    /// Number among the backwards of the microbatch.
    #[serde(default)]
    pub part: usize,
    /// Ranks on which it was like this.
    pub ranks: Vec<usize>,
    /// By parameter: true if the graph has an `AccumulateGrad` node for it.
    pub reached: Vec<bool>,
    /// Number of gradients that autograd delivered, by parameter; none where that was not watched.
    pub arrived: Option<Vec<u32>>,
    /// Number of times that the hook fired, by parameter; none where the dataflow has no hooks.
    pub fired: Option<Vec<u32>>,
}

/// Hooks of one backward on one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HookCount {
    /// Optimizer step.
    pub step: usize,
    /// Microbatch.
    pub microbatch: usize,
    /// Number among the backwards of the microbatch.
    #[serde(default)]
    pub part: usize,
    /// Rank.
    pub rank: usize,
    /// Number of `AccumulateGrad` nodes in the graph.
    pub accumulate_grad_nodes: usize,
    /// Number of hooks that fired, over all parameters; none where the dataflow has no hooks.
    pub fired: Option<usize>,
    /// Parameters that the graph reaches but whose hook did not fire.
    pub silent: Vec<String>,
}

/// The smallest deviation that this run could have seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Power {
    /// Method by which weights were read.
    pub method: Method,
    /// Smallest change of a weight that would have been a finding, at the optimizer's input.
    pub smallest_weight_deviation: Option<f64>,
    /// Condition number of the least-squares problem; 1 for coded data.
    pub condition: Option<f64>,
    /// Smallest change of a single element, in units of one contribution; coded data only.
    pub smallest_element_deviation: Option<f64>,
    /// Sentence on the smallest deviation.
    pub statement: String,
}

named_enum! {
    /// Method by which contribution weights were read.
    pub enum Method {
        /// Walsh–Hadamard codes: exact.
        Coded = "coded",
        /// Least squares on the recorded local gradients.
        LeastSquares = "least-squares",
    }
}

impl Report {
    /// The exit code that goes with the verdict.
    pub fn exit(&self) -> Exit {
        self.verdict.into()
    }

    /// Reason why the engine cannot run this configuration here, and what to do, if everything that
    /// was found is a limit of this machine: then the run has no answer about the engine.
    pub fn limit(&self) -> Option<String> {
        let (first, others) = self.findings.split_first()?;
        let limit = first.limit.as_ref()?;
        let advice = first.known.first().map(|known| format!("; what to do: {}", known.workaround));
        others
            .iter()
            .all(|finding| finding.limit.is_some())
            .then(|| format!("{limit}{}", advice.unwrap_or_default()))
    }

    /// `report.json`, with a line feed at the end.
    ///
    /// # Errors
    /// Never for reports that the crate `zprobe-diagnose` builds.
    pub fn to_json(&self) -> serde_json::Result<String> {
        zprobe_model::visible::json(self)
    }
}
