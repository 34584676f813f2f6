//! A script that shows the same numbers without zprobe: torch and the engine only.
//!
//! A script is put together from the Python file beside this one, which all engines share, the engine's part
//! in its room, and the constants of the run. What zprobe does that a short script cannot is refused by name.

#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use crate::engines;
use crate::engines::source::{literal, torch, truth};
use crate::report::{Finding, Report};
use crate::spec::workload::{self, Output};
use crate::spec::{Device, Dtype, Model, Optimizer, Plan, RunSpec, Usage, Workload};

/// Python file that the scripts of all engines share. Lines that begin with `#:` are replaced.
const SCRIPT: &str = include_str!("script.py");

/// Longest code that a script decodes with a plain matrix.
const LONGEST_CODE: usize = 2048;

/// Largest model that a script holds whole in fp64.
const MOST_ELEMENTS: usize = 1 << 24;

/// Unit of which the parameters of the coded model are multiples, where the learning rate of the
/// optimizer gives none.
const UNIT: f64 = 1.0 / 1024.0;

/// The standalone script that shows the numbers of the run of a report.
///
/// # Errors
/// The reason why there is no script, in words.
pub fn script(report: &Report) -> Result<String, String> {
    let spec = &of_first_steps(report)?;
    let engine = (engines::of(spec.engine()).standalone)(spec)?;
    let tolerance = tolerance(spec)?;
    check(spec)?;
    let mut text = String::new();
    for line in SCRIPT.lines() {
        match line {
            "#: head" => text += &head(report, spec),
            "#: constants" => text += &constants(spec, &tolerance),
            "#: engine" => text += engine.trim_end(),
            line => text += line,
        }
        text.push('\n');
    }
    Ok(text)
}

/// Specification of the run of a report, cut to the steps that have codes of their own: the script
/// uses no code twice.
fn of_first_steps(report: &Report) -> Result<RunSpec, String> {
    let spec = &report.run.spec;
    let steps = spec.code_steps();
    let is_later = |finding: &Finding| finding.step.is_some_and(|step| step >= steps);
    if !report.findings.is_empty() && report.findings.iter().all(is_later) {
        return Err(format!("the script runs {steps} steps, and the findings are of later ones"));
    }
    Ok(RunSpec { steps, ..spec.clone() })
}

/// Refuses runs that the script cannot make.
fn check(spec: &RunSpec) -> Result<(), String> {
    if spec.model != Model::Coded {
        return Err(format!(
            "the script has the coded model, and this run had {}; run `--model coded` to see whether \
             it shows the same",
            spec.model
        ));
    }
    if let Some(shape) = spec.shapes.iter().find(|shape| !shape.is_in_scripts()) {
        return Err(format!("the script does not have the shape {shape}"));
    }
    if spec.device != Device::Cpu {
        return Err(
            "the script has ranks on the CPU, and those of this run were on GPUs; run with \
                    `--device cpu` to see whether it shows the same"
                .to_owned(),
        );
    }
    if spec.gradient_clipping > 0.0 {
        return Err("clipping changes every weight, and the script does not take it out".to_owned());
    }
    let (length, elements) = (Plan::code(spec).length(), Plan::new(spec).numel());
    if length > LONGEST_CODE || elements > MOST_ELEMENTS {
        return Err(format!(
            "{} gradients on {elements} elements are too many for a short script; fewer steps, \
             ranks or elements would do",
            spec.contributions()
        ));
    }
    Ok(())
}

/// Largest distance of a weight from an integer, in the input of the optimizer and in the update.
struct Tolerance {
    input: f64,
    /// Tolerance of the update; none where the update cannot be read: the optimizer is not plain
    /// SGD, or the parameters' dtype does not hold it.
    update: Option<f64>,
}

/// The tolerances for a run: 0 where all divisors are powers of two, so that integers stay
/// integers. Otherwise each of the roundings on the way (a division by `GA` and one by `W`, and the
/// additions) loses at most `u` of the largest sum, which is `W·GA`.
fn tolerance(spec: &RunSpec) -> Result<Tolerance, String> {
    let (world, ga) = (spec.world_size, spec.gradient_accumulation_steps);
    let sum = spec.contributions_per_step() as f64;
    let exact = world.is_power_of_two() && ga.is_power_of_two();
    let narrowest = [spec.dtype, spec.grad_accum_dtype, spec.narrowest_comm_dtype()];
    let unit = narrowest.map(Dtype::unit_roundoff).into_iter().fold(0.0, f64::max);
    let input = if exact { 0.0 } else { (world + ga + 2) as f64 * unit * sum };
    let parameters = (engines::of(spec.engine()).parameters_in)(spec);
    let reached = 8.0 + spec.steps as f64 * sum;
    let update = if exact { 0.0 } else { input + parameters.unit_roundoff() * reached };
    if input >= 0.5 {
        return Err(format!(
            "with {world} ranks and {ga} microbatches sums are rounded so often that the script \
             could not tell a weight of 0 from one of 1"
        ));
    }
    let held = reached <= parameters.exact_integers() as f64 && update < 0.5;
    let readable = spec.optimizer.readable_lr().is_some() && held;
    Ok(Tolerance { input, update: readable.then_some(update) })
}

/// Head of the script: its purpose, the command that runs it, and the software that the run was
/// made with.
fn head(report: &Report, spec: &RunSpec) -> String {
    let versions: Vec<String> = report
        .run
        .versions
        .iter()
        .filter(|(name, _)| !name.starts_with("zprobe"))
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    format!(
        "\"\"\"Does every (rank, microbatch) gradient reach the optimizer once, with weight 1?\n\n    \
         torchrun --nproc-per-node {} standalone.py\n\n\
         runs {} steps on CPU ranks with gloo, and prints the weight of each microbatch of each rank in\n\
         what the inner optimizer consumes, and in the update of the parameters. The exit code is 1 if\n\
         a weight is wrong. It needs torch and the engine alone.\n\"\"\"\n\n\
         # What it was seen with.\nSEEN_WITH = {}\n",
        spec.world_size,
        spec.steps,
        literal(&versions.join(", ")),
    )
}

/// Lines that part what is usually decayed from what is not.
const TWO_GROUPS: &str = "    decayed = [p for p in parameters if p.dim() > 1]
    others = [p for p in parameters if p.dim() <= 1]
    parameters = [dict(params=group) for group in (decayed, others) if group]
";

fn constants(spec: &RunSpec, tolerance: &Tolerance) -> String {
    let mut text = format!(
        "WORLD_SIZE, GA, STEPS, STAGE, SEED = {}, {}, {}, {}, {}\nPARAMETER_DTYPE = {}\n",
        spec.world_size,
        spec.gradient_accumulation_steps,
        spec.steps,
        spec.stage,
        // Negative seeds are refused, and so are those beyond 64 signed bits.
        spec.seed >> 1,
        torch((engines::of(spec.engine()).parameters_in)(spec)),
    );
    if spec.poison_memory {
        text += "\n# Memory that torch hands out is NaN until it is written to (torch 2.2 and later).\n\
                 torch.use_deterministic_algorithms(True, warn_only=True)\n\
                 torch.utils.deterministic.fill_uninitialized_memory = True\n";
    }
    text += "\n# Name, shape, and whether it is trained.\nPARAMETERS = [\n";
    let plan = Plan::new(spec);
    for param in plan.params() {
        let shape: String = param.shape.iter().map(|side| format!("{side}, ")).collect();
        let (shape, trained) = (shape.trim_end(), truth(param.trainable));
        let _ = writeln!(text, "    ({}, ({shape}), {trained}),", literal(&param.name));
    }
    text += "]\n\n# Microbatches (step, number) that do not use a parameter.\nUNUSED = {";
    for (index, param) in plan.params().iter().enumerate().filter(|(_, it)| it.trainable) {
        let usage = plan.usage(index);
        if !usage.uses_all() {
            let _ = write!(text, "{}: {}, ", literal(&param.name), unused(spec, usage));
        }
    }
    let output = match Workload::new(spec, &plan).output {
        Output::Logits => "loss",
        output => output.name(),
    };
    let parts: Vec<String> = workload::parts(spec).iter().map(ToString::to_string).collect();
    let parts = format!("[{}]", parts.join(", "));
    let update = tolerance.update.map_or("None".to_owned(), |bound| format!("{bound:?}"));
    let _ = write!(
        text,
        "}}\n\n# What forward returns, and the parts in which a microbatch's loss goes backward.\n\
         OUTPUT, PARTS = {}, {parts}\n\n\
         # What roundings can make of a weight at most. None: the update cannot be read.\n\
         TOLERANCE, UPDATE_TOLERANCE = {:?}, {update}\n\n\
         # What the parameters are multiples of: the learning rate, so that an update is an integer too.\n\
         UNIT = {:?}\n\n\n\
         def make_optimizer(parameters):\n{}    return {}\n",
        literal(output),
        tolerance.input,
        spec.optimizer.readable_lr().unwrap_or(UNIT),
        if spec.parameter_groups == Some(2) { TWO_GROUPS } else { "" },
        optimizer(spec.optimizer),
    );
    text
}

/// The microbatches that do not use a parameter, as a list in Python.
fn unused(spec: &RunSpec, usage: Usage) -> String {
    let ga = spec.gradient_accumulation_steps;
    let all = (0..spec.steps).flat_map(|step| (0..ga).map(move |microbatch| (step, microbatch)));
    let unused = all.filter(|(step, microbatch)| !usage.uses(*step, 0, *microbatch, ga));
    format!("{:?}", unused.collect::<Vec<_>>())
}

fn optimizer(optimizer: Optimizer) -> String {
    match optimizer {
        Optimizer::Sgd { lr } => format!("torch.optim.SGD(parameters, lr={lr:?})"),
        Optimizer::Adamw { lr, betas: [first, second], eps, weight_decay } => format!(
            "torch.optim.AdamW(\n        parameters, lr={lr:?}, betas=({first:?}, {second:?}), \
             eps={eps:?}, weight_decay={weight_decay:?}\n    )"
        ),
    }
}
