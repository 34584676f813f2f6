//! The report on a run, built once by the crate `zprobe-diagnose` and rendered in many forms.
//!
//! [`Report`] is `report.json`. Within a schema version, fields are only added. The JSON Schema is checked in as
//! `schema/report.v1.schema.json`.

mod again;
pub mod blank;
mod contribution;
pub mod document;
mod exit;
mod form;
mod own_words;
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
pub use self::own_words::OwnWords;
pub use self::pointless::pointless;
pub use self::precision::{Over, Precision};
pub use self::rule_code::{Family, NotACode, RuleCode};
use zprobe_model::spec::{RunSpec, named_enum};
use zprobe_model::trace::{FlushReason, Frame, Outcome, Point};

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

/// The specification of a run, and the software that it ran on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    /// The complete specification of the run.
    pub spec: RunSpec,
    /// The versions of zprobe and of the packages that the ranks ran, by name.
    pub versions: BTreeMap<String, String>,
    /// The class that really wrapped the inner optimizer; `None` if no rank got as far as choosing one.
    pub optimizer_class: Option<String>,
    /// The class of the inner optimizer; `None` if no rank got as far as choosing one.
    pub inner_optimizer: Option<String>,
    /// The facts that the engine states about itself, by name. If a rank states another value than rank 0, ` (rank 1)`
    /// or the like is appended to the name of its value.
    pub engine_facts: BTreeMap<String, String>,
    /// The parts of the engine that were not observed.
    pub not_observed: Vec<NotObserved>,
    /// The way in which the recording ended.
    pub ending: Ending,
    /// The command that repeats the run, without the interpreter, whose path is private. A DeepSpeed file that the
    /// command names is in the bug report of `zprobe issue`. `None` if no flags describe the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// The weights that the target tokens of a microbatch have in the update.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MicrobatchTokens {
    /// The optimizer step, from 0.
    pub step: usize,
    /// The rank, from 0.
    pub rank: usize,
    /// The microbatch within the step, from 0.
    pub microbatch: usize,
    /// The number of tokens with a weight in the microbatch.
    pub tokens: usize,
    /// The smallest weight of a token, as a multiple of the mean weight in the step.
    pub least: f64,
    /// The largest weight of a token, as a multiple of the mean weight in the step.
    pub most: f64,
    /// The share of the step's total weight that the tokens of the microbatch have together, from 0 to 1.
    pub share: f64,
}

/// A part of the engine that was not observed, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NotObserved {
    /// The name of the part that was not observed.
    pub what: String,
    /// The reason why the part was not observed.
    pub why: String,
}

named_enum! {
    /// The way in which the recording of a run ended.
    pub enum Ending {
        /// Every rank ended, successfully or not.
        Complete = "complete",
        /// The user interrupted the run.
        Interrupted = "interrupted",
        /// The trace stops while ranks were still running: zprobe itself was killed, or the trace file was truncated.
        CutOff = "cut-off",
    }
}

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
    /// The reason why the engine cannot run this configuration on this machine: a limit of its ranks or of the software
    /// around the engine, which says nothing about gradients. `None` for all other findings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
}

/// The first point of the gradient's journey that is not as planned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Divergence {
    /// The optimizer step, from 0.
    pub step: usize,
    /// The microbatch, from 0; `None` for a point after the accumulation.
    pub microbatch: Option<usize>,
    /// The point of the journey whose buffer departs from the plan; `None` if a gradient hook or a bucket departs.
    pub point: Option<Point>,
    /// The ranks on which the journey departs from the plan.
    pub ranks: Vec<usize>,
    /// The names of the affected parameters; `None` if all parameters are affected.
    pub params: Option<Vec<String>>,
    /// The number of the bucket flush that departs from the plan; `None` if a buffer or a hook departs.
    pub bucket: Option<usize>,
    /// The function of the engine that makes the buffer; `None` if the function is unknown, or if the buffer was
    /// changed outside of the engine.
    pub function: Option<String>,
    /// True if the gradients of a user's script changed after one backward and before the next.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outside_backward: bool,
    /// The number of stations of [`Report::journey`] before this departure.
    pub right_before: usize,
}

/// A moment of the gradient's journey at which buffers were read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Station {
    /// The optimizer step, from 0.
    pub step: usize,
    /// The microbatch, from 0; `None` for a point after the accumulation.
    pub microbatch: Option<usize>,
    /// The point of the journey.
    pub point: Point,
    /// The number of ranks whose buffer was read.
    pub ranks: usize,
    /// The ranks whose buffer is not as planned.
    pub departed: Vec<usize>,
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

    /// The command that installs a release without the bug; `None` if no such release is known.
    pub fn upgrade(&self) -> Option<String> {
        let (package, release) = (self.package.as_ref()?, self.fixed.as_ref()?);
        Some(format!("pip install '{package}>={release}'"))
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

/// The norm of one buffer on every rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Norms {
    /// The optimizer step, from 0.
    pub step: usize,
    /// The microbatch, from 0; `None` for a point after the accumulation.
    pub microbatch: Option<usize>,
    /// The point of the gradient's journey.
    pub point: Point,
    /// True if all ranks hold the same bits; `None` at a point where ranks may hold different values.
    pub agree: Option<bool>,
    /// The norms by rank; `None` for a norm that was not observed or is not finite.
    pub norms: Vec<Option<f64>>,
    /// The difference to the norm of rank 0 in percent, by rank; empty if the ranks hold different parts of the buffer.
    pub difference_percent: Vec<Option<f64>>,
}

impl Norms {
    /// The known norms with their ranks, in ascending order of the norms.
    pub fn sorted(&self) -> Vec<(f64, usize)> {
        let known = self.norms.iter().enumerate().filter_map(|(rank, norm)| Some(((*norm)?, rank)));
        let mut sorted: Vec<(f64, usize)> = known.collect();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
        sorted
    }
}

/// The loss and the gradient norms of a step, as a training log would show them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// The optimizer step, from 0.
    pub step: usize,
    /// The mean loss over the microbatches of all ranks; `None` if the loss was not observed or is not finite.
    pub loss: Option<f64>,
    /// The global norm of the gradient before clipping, as the engine of rank 0 computed the norm.
    pub gradient_norm: Option<f64>,
    /// The norm of the gradient that the inner optimizers of all ranks consumed together.
    pub input_norm: Option<f64>,
}

/// The outcome and the last action of a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Rank {
    /// The number of the rank, from 0.
    pub rank: usize,
    /// The process id; `None` if the process was never started.
    pub pid: Option<u32>,
    /// The outcome of the rank's process; `None` if the outcome is unknown.
    pub outcome: Option<Outcome>,
    /// True if the rank completed all of its work.
    pub finished: bool,
    /// The last action of the rank, in words.
    pub last: String,
    /// The type of the exception that ended the rank, its place in a package, and the known phrases in its message;
    /// `None` if the rank reported no failure. The whole message is in the trace.
    pub failure: Option<String>,
    /// The file of the run directory with the rank's standard error, and the known phrases in its last lines; `None` if
    /// the rank ended successfully.
    pub stderr: Option<String>,
    /// The Python stack traces of a user's script at the moment when the rank crashed or was ended; the main thread
    /// comes first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stacks: Vec<Stack>,
}

/// A Python stack trace of one thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stack {
    /// The number of the thread: 0 for the main thread.
    pub thread: usize,
    /// The frames of the stack, the innermost frame first.
    pub frames: Vec<Frame>,
}

impl Rank {
    /// The outcome of the process in words: `exit code 1`.
    pub fn ending(&self) -> String {
        match self.outcome {
            Some(Outcome::Code(code)) => format!("exit code {code}"),
            Some(Outcome::Signal(signal)) => format!("signal {signal}"),
            Some(Outcome::Reaped) => "ended by zprobe".to_owned(),
            Some(Outcome::Lost) => "lost with its machine".to_owned(),
            Some(Outcome::WithLauncher(signal)) => format!("launcher ended by signal {signal}"),
            Some(Outcome::Unseen) | None => "outcome unknown".to_owned(),
        }
    }
}

/// A flush of a bucket: the engine reduced the bucket's gradients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Flush {
    /// The optimizer step, from 0.
    pub step: usize,
    /// The microbatch within the step, from 0.
    pub microbatch: usize,
    /// The number of the flush within the step, from 0.
    pub flush: usize,
    /// The ranks that flushed the same bucket for the same reason.
    pub ranks: Vec<usize>,
    /// The reason for the flush.
    pub reason: FlushReason,
    /// The number of elements in the bucket.
    pub elements: usize,
    /// The capacity of the bucket, in elements.
    pub capacity: usize,
    /// The names of the parameters in the bucket.
    pub params: Vec<String>,
}

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

/// The gradient hooks that fired, compared with the nodes of the autograd graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Hooks {
    /// True if firings of hooks were observed; if false, as in a dataflow without hooks, `fired` is `None` everywhere.
    pub observed: bool,
    /// The number of `AccumulateGrad` nodes and of hooks that fired, for each step, microbatch and rank.
    pub counts: Vec<HookCount>,
    /// The names of the model's parameters, in flat order; the lists in `firings` have the same order.
    #[serde(default)]
    pub params: Vec<String>,
    /// The graph nodes and the hook firings of each backward, parameter by parameter.
    #[serde(default)]
    pub firings: Vec<Firings>,
}

/// The hooks of one backward, parameter by parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Firings {
    /// The optimizer step, from 0.
    pub step: usize,
    /// The microbatch within the step, from 0.
    pub microbatch: usize,
    /// The number of this backward within its microbatch, from 0.
    #[serde(default)]
    pub part: usize,
    /// The ranks on which the nodes and firings were the same.
    pub ranks: Vec<usize>,
    /// For each parameter, true if the graph has an `AccumulateGrad` node for the parameter.
    pub reached: Vec<bool>,
    /// For each parameter, the number of gradients that autograd delivered; `None` if delivery was not watched.
    pub arrived: Option<Vec<u32>>,
    /// For each parameter, the number of times that the hook fired; `None` if firings were not observed.
    pub fired: Option<Vec<u32>>,
}

/// The hooks of one backward on one rank, counted over all parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HookCount {
    /// The optimizer step, from 0.
    pub step: usize,
    /// The microbatch within the step, from 0.
    pub microbatch: usize,
    /// The number of this backward within its microbatch, from 0.
    #[serde(default)]
    pub part: usize,
    /// The rank, from 0.
    pub rank: usize,
    /// The number of `AccumulateGrad` nodes in the graph.
    pub accumulate_grad_nodes: usize,
    /// The number of hooks that fired, over all parameters; `None` if firings were not observed.
    pub fired: Option<usize>,
    /// The names of the parameters that the graph reaches but whose hook did not fire.
    pub silent: Vec<String>,
}

/// The smallest deviation that this run could have detected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Power {
    /// The method by which weights were read.
    pub method: Method,
    /// The smallest change of a weight at the optimizer's input that would have been a finding; `None` if no weights
    /// could be read there.
    pub smallest_weight_deviation: Option<f64>,
    /// The condition number of the least-squares problem: 1 for coded data; `None` if no problem was solved.
    pub condition: Option<f64>,
    /// The smallest change of a single element that would have been a finding, in units of one contribution; `None` for
    /// dense data.
    pub smallest_element_deviation: Option<f64>,
    /// One sentence that states the smallest deviation.
    pub statement: String,
}

named_enum! {
    /// The method by which contribution weights were read.
    pub enum Method {
        /// Decoding of Walsh–Hadamard codes, which is exact.
        Coded = "coded",
        /// A least-squares fit to the recorded local gradients.
        LeastSquares = "least-squares",
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
