//! The reproduction script of a bug report, which shows the weights of a run without zprobe and starts its own ranks.
//!
//! The script's model has parameters of the same sizes as the run's. Of K gradients, number k is nonzero only in the
//! elements k, k + K, …, so that each element of the update is the weight of one gradient. The engine's part of the
//! script is in its module in `engines`, the common part in `shared.py`. Unsupported runs are refused with the reason.

mod lines;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use self::lines::{expected, forward, made, microbatch, used, values};
use zprobe_engines::source::{comment, packed, torch};
use zprobe_engines::{self as engines, EngineScript};
use zprobe_model::spec::plan::Param;
use zprobe_model::spec::{Device, Dtype, Model, Optimizer, Plan, RunSpec, Shape};
use zprobe_model::trace::Point;
use zprobe_report::{Finding, Report, Verdict};

/// The sections that the scripts of all engines share, each after a line `#: NAME`.
const SHARED: &str = include_str!("shared.py");

/// The maximum number of gradients in a script.
const MOST_GRADIENTS: usize = 1024;

/// The maximum number of model elements in a script.
const MOST_ELEMENTS: usize = 1 << 24;

/// The script that shows the weights of the reported run; its head has the title of the issue.
///
/// # Errors
/// The reason why the run has no script.
pub fn script(report: &Report, title: &str) -> Result<String, String> {
    let spec = &of_first_steps(report)?;
    let engine = (engines::of(spec.engine()).repro)(spec)?;
    check(spec)?;
    is_in_update(report, spec)?;
    let tolerance = tolerance(spec)?;
    let mut text = String::new();
    for line in engine.text.lines() {
        // Marks are replaced only in the engine's text, never in text from the report.
        text += &match line.trim() {
            "#: head" => head(report, title),
            "#: constants" => constants(spec, tolerance) + &engine.constants,
            "#: model" => used(spec) + &filled(section("model"), spec, &engine, tolerance),
            "#: tell" => filled(section("tell"), spec, &engine, tolerance),
            "#: end" => section("end").to_owned(),
            "#: main" => section("main").to_owned(),
            _ => filled(line, spec, &engine, tolerance),
        };
        text.truncate(text.trim_end_matches('\n').len());
        text.push('\n');
        if line.is_empty() {
            text.push('\n');
        }
    }
    Ok(text)
}

/// A section of the text that all engines share.
fn section(name: &str) -> &'static str {
    let sections = SHARED.trim_start_matches("#: ").split("\n#: ");
    let mut sections = sections.filter_map(|section| section.split_once('\n'));
    sections.find(|(title, _)| *title == name).map_or("", |(_, text)| text)
}

/// Replaces each line that ends in a mark `#: NAME` by the lines for the run.
fn filled(text: &str, spec: &RunSpec, engine: &EngineScript, tolerance: Option<f64>) -> String {
    let mut filled = String::new();
    for line in text.lines() {
        let indent = &line[..line.len() - line.trim_start().len()];
        let mark = line.rsplit_once("#: ").map_or("", |(_, mark)| mark);
        let lines = match mark {
            "dtype" => match (engines::of(spec.engine()).parameters_in)(spec) {
                Dtype::Fp32 => vec![line.trim().replace("  #: dtype", "")],
                dtype => vec![format!(
                    "self.weight = torch.nn.Parameter(torch.zeros(size, dtype={}))",
                    torch(dtype)
                )],
            },
            "forward" => forward(spec),
            "values" => values(spec, line.trim().trim_end_matches("#: values").trim_end()),
            "expected" => expected(spec),
            "right" => vec![match tolerance {
                None => "right = weights == expected".to_owned(),
                Some(_) => {
                    "right = all(abs(w - e) <= TOLERANCE for w, e in zip(weights, expected))"
                        .to_owned()
                }
            }],
            "made" => made(spec),
            "optimizer" => {
                vec![format!("optimizer = torch.optim.SGD({}, lr=1.0)", lines::parameters(spec))]
            }
            "microbatch" => microbatch(spec, engine),
            _ => vec![line.trim_start().to_owned()],
        };
        for line in lines {
            filled += format!("{indent}{line}").trim_end();
            filled.push('\n');
        }
    }
    filled
}

/// The specification of the reported run, cut to the steps that have their own codes, because the script uses no
/// element twice.
fn of_first_steps(report: &Report) -> Result<RunSpec, String> {
    let spec = &report.run.spec;
    let steps = spec.code_steps();
    let is_later = |finding: &Finding| finding.step.is_some_and(|step| step >= steps);
    if !report.findings.is_empty() && report.findings.iter().all(is_later) {
        return Err(format!("the script runs {steps} steps, but all findings are in later steps"));
    }
    Ok(RunSpec { steps, ..spec.clone() })
}

/// Refuses runs that the script cannot reproduce.
fn check(spec: &RunSpec) -> Result<(), String> {
    let other = |what: &str, advice: &str| {
        Err(format!(
            "the script does not support {what}; run with `{advice}` to see whether the finding remains"
        ))
    };
    if spec.model != Model::Coded {
        return other(&format!("the model {}", spec.model), "--model coded");
    }
    if let Some(shape) = spec.shapes.iter().find(|shape| !lines::has(**shape)) {
        return Err(format!("the script does not support the shape {shape}"));
    }
    let is_beside = |shape: &&Shape| matches!(shape, Shape::Bypass | Shape::PenaltyBackward);
    let beside = spec.shapes.iter().find(is_beside);
    let uses = |shape: &&Shape| shape.leaves_unused() || **shape == Shape::Unmanaged;
    if let (Some(one), Some(other)) = (beside, spec.shapes.iter().find(uses)) {
        return Err(format!("the script supports the shapes {one} and {other} only one at a time"));
    }
    if spec.has_shape(Shape::InfinityOnOneRank) && spec.dtype != Dtype::Fp16 {
        return Err(
            "the script supports infinities only in fp16, where the step is skipped".to_owned()
        );
    }
    if spec.device != Device::Cpu {
        return other("ranks on GPUs", "--device cpu");
    }
    if !matches!(spec.optimizer, Optimizer::Sgd { .. }) {
        return other("optimizers other than SGD, whose update is the gradient", "--optimizer sgd");
    }
    if spec.gradient_clipping > 0.0 {
        return Err("clipping changes every weight, and the script does not undo it".to_owned());
    }
    if let Some(step) = spec.resume_before {
        return Err(format!(
            "the script does not support checkpoints; run without `--resume-before {step}` to see whether the \
             finding remains"
        ));
    }
    let plan = Plan::new(spec);
    let gradients = spec.contributions();
    let is_readable =
        plan.params().iter().any(|param| param.trainable && param.numel() >= gradients);
    if gradients > MOST_GRADIENTS || plan.numel() > MOST_ELEMENTS || !is_readable {
        return Err(format!(
            "{gradients} gradients on {} elements are too many for a short script; use fewer steps, ranks or \
             elements",
            plan.numel()
        ));
    }
    Ok(())
}

/// Refuses runs whose findings do not show in the weights of an update, because the script reads only these.
fn is_in_update(report: &Report, spec: &RunSpec) -> Result<(), String> {
    let is_update = |point| matches!(point, Point::MasterWeights | Point::Parameters);
    let shows = report
        .contributions
        .iter()
        .any(|entry| is_update(entry.point) && entry.step < spec.steps && !entry.as_planned);
    if report.verdict == Verdict::Findings && !shows {
        return Err(
            "the script reads only the weights of the update, which were right in this run"
                .to_owned(),
        );
    }
    Ok(())
}

/// The largest distance of a correct weight from an integer; `None` if all divisors are powers of two, so that weights
/// are exact. Otherwise each rounding (in the divisions by `GA` and `W`, and in the additions) has a relative error of
/// at most the unit roundoff `u`.
fn tolerance(spec: &RunSpec) -> Result<Option<f64>, String> {
    let (world, ga) = (spec.world_size, spec.gradient_accumulation_steps);
    if world.is_power_of_two() && ga.is_power_of_two() {
        return Ok(None);
    }
    let parameters = (engines::of(spec.engine()).parameters_in)(spec);
    let narrowest = [spec.dtype, spec.grad_accum_dtype, spec.narrowest_comm_dtype(), parameters];
    let unit = narrowest.map(Dtype::unit_roundoff).into_iter().fold(0.0, f64::max);
    let tolerance = (world + ga + 2) as f64 * unit;
    if tolerance >= 0.5 {
        return Err(format!(
            "with {world} ranks and {ga} microbatches sums are rounded so often that the script \
             could not tell a weight of 0 from one of 1"
        ));
    }
    Ok(Some(tolerance))
}

/// The head comment of the script: its purpose, the title of the issue, and the versions of the run's software.
fn head(report: &Report, title: &str) -> String {
    let versions: Vec<String> = report
        .run
        .versions
        .iter()
        .filter(|(name, _)| !name.starts_with("zprobe"))
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    // The first two lines, in which Python looks for an encoding declaration, contain no text from the report.
    format!(
        "# `python repro.py` starts {} ranks on the CPU, and prints the weight with which the gradient of\n\
         # each microbatch arrives in the update: 1 is right. The exit code is 1 if a weight is wrong.\n\
         # {}\n# Seen with {}.",
        report.run.spec.world_size,
        comment(title),
        comment(&versions.join(", ")),
    )
}

/// The constants of the script: world size, microbatches, steps, parameter sizes and the tolerance.
fn constants(spec: &RunSpec, tolerance: Option<f64>) -> String {
    let mut text = format!(
        "W, GA, STEPS = {}, {}, {}  # ranks, microbatches of a step, steps\n\
         K = STEPS * W * GA  # number of gradients\n",
        spec.world_size, spec.gradient_accumulation_steps, spec.steps,
    );
    let plan = Plan::new(spec);
    let size = |param: &Param| format!("{}={}", lines::name(&param.name), param.numel());
    let sizes: Vec<String> = plan.params().iter().map(size).collect();
    let _ = writeln!(text, "SIZES = dict(  # elements of each parameter\n{})", packed(&sizes));
    if let Some(tolerance) = tolerance {
        let _ = writeln!(text, "TOLERANCE = {tolerance:?}  # bound on the rounding of a weight");
    }
    if spec.poison_memory {
        text += "# torch fills new memory with NaN.\n\
                 torch.use_deterministic_algorithms(True, warn_only=True)\n\
                 torch.utils.deterministic.fill_uninitialized_memory = True\n";
    }
    text
}
