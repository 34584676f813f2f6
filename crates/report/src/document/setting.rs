//! The settings of the run: in a few lines, or only the facts that a reader of the main finding needs.

use super::Fact;
use crate::words::{amount, weight_text};
use crate::{NotObserved, Report};
use zprobe_engines as engines;
use zprobe_model::spec::settings::ALL;
use zprobe_model::spec::{Device, Offload, RunSpec, ScriptOptions, Staging};
use zprobe_model::trace::UNSET_MEMORY;

/// The lines about the settings: one line for the engine and the step, one for the dtypes, one for the software, and
/// one for each unusual setting.
pub(super) fn setting(report: &Report) -> Vec<String> {
    let spec = &report.run.spec;
    if let Some(script) = spec.script() {
        return of_script(report, script);
    }
    let mut lines = vec![
        format!("{}, {}", engine(report), size(spec)),
        format!(
            "{}, accumulated in {}, communicated {}",
            spec.dtype,
            spec.grad_accum_dtype,
            spec.comm_dtype.map_or("as the engine chooses".to_owned(), |d| format!("in {d}")),
        ),
    ];
    let unset = |it: &NotObserved| it.what == UNSET_MEMORY;
    if spec.poison_memory && !report.run.not_observed.iter().any(unset) {
        lines.push("memory is NaN until it is written to".to_owned());
    }
    if spec.device == Device::Cuda {
        lines.push(format!("on {} over {}", spec.device, spec.backend));
    }
    if let (Some(class), Some(inner)) = (&report.run.optimizer_class, &report.run.inner_optimizer) {
        lines.push(format!("{class} over {inner}, torch {}", version(report, "torch")));
    }
    let settings = settings(spec);
    if !settings.is_empty() {
        lines.push(settings.join(", "));
    }
    lines.extend(spec.shapes.iter().map(|shape| format!("{shape}: {}", shape.describe())));
    lines.extend(spec.inject().map(|fault| format!("injected fault: {fault}")));
    lines.extend(masked(report));
    lines.extend(report.repeats.as_ref().map(|repeats| {
        format!(
            "{} compared at {} points; this report shows repeat {}",
            amount(repeats.verdicts.len(), "repeat"),
            repeats.compared,
            repeats.shown,
        )
    }));
    lines
}

/// The facts about the run that a reader of the main finding needs: its size, its device and the remarks. For a script
/// also the places of its calls, the contract of its loss, and without findings the judged parts.
pub(super) fn circumstances(report: &Report) -> Vec<Fact> {
    let spec = &report.run.spec;
    let mut facts = Vec::new();
    let device = match spec.device {
        Device::Cuda => format!(", on {} over {}", spec.device, spec.backend),
        Device::Cpu => String::new(),
    };
    if spec.script().is_some() {
        let fact = |name: &str| report.run.engine_facts.get(name);
        facts.push(Fact::new("setup", size_of_script(spec) + &device));
        facts.extend(fact("places").map(|places| Fact::new("your code", places)));
        let is_right = report.findings.is_empty();
        // A finding about the loss states the law, which is the last part of the contract.
        let end = |contract: &str| contract.find("; together ").filter(|_| !is_right);
        facts.extend(fact("contract").map(|contract| {
            let contract = &contract[..end(contract).unwrap_or(contract.len())];
            Fact::new("loss", contract.strip_prefix("loss: ").unwrap_or(contract))
        }));
        let judged = fact("judged").filter(|_| is_right);
        facts.extend(judged.map(|it| Fact::new("judged", it)));
    } else {
        let fault = spec.inject().map(|fault| format!("; injected fault: {fault}"));
        let stage = stage(spec).map(|stage| format!("{stage}, "));
        let setup =
            [stage.unwrap_or_default(), size(spec), device, fault.unwrap_or_default()].concat();
        facts.push(Fact::new("setup", setup));
    }
    let remarks = report.remarks.iter().cloned();
    facts.extend(remarks.chain(masked(report)).map(|remark| Fact::new("note", remark)));
    facts
}

/// The number of secrets that were removed from the trace and the report, in words; `None` if there were none.
fn masked(report: &Report) -> Option<String> {
    let secrets = amount(report.masked, "secret");
    let words = format!("{secrets} replaced by <secret> in the trace and the report");
    (report.masked > 0).then_some(words)
}

/// The numbers of ranks, microbatches and steps, and the model.
fn size(spec: &RunSpec) -> String {
    format!(
        "{}, ga {}, {}, model {}",
        amount(spec.world_size, "rank"),
        spec.gradient_accumulation_steps,
        amount(spec.steps, "step"),
        spec.model,
    )
}

/// The numbers of ranks, microbatches and steps of a user's script, and the dtype of its gradients.
fn size_of_script(spec: &RunSpec) -> String {
    format!(
        "{}, {} a step, {}, gradients in {}",
        amount(spec.world_size, "rank"),
        amount(spec.gradient_accumulation_steps, "microbatch"),
        amount(spec.steps, "step"),
        spec.dtype,
    )
}

/// The ZeRO stage in words; `None` if the engine has only one.
fn stage(spec: &RunSpec) -> Option<String> {
    match spec.engine().traits().staging {
        Staging::Chosen => Some(format!("ZeRO stage {}", spec.stage)),
        Staging::Always(_) => None,
    }
}

/// The lines about the settings of a user's training script.
fn of_script(report: &Report, script: &ScriptOptions) -> Vec<String> {
    let spec = &report.run.spec;
    let command = script.command.iter().map(String::as_str);
    let mut lines = vec![shlex::try_join(command).unwrap_or_default(), size_of_script(spec)];
    if spec.device == Device::Cuda {
        lines.push(format!("on {} over {}", spec.device, spec.backend));
    }
    let versions = &report.run.versions;
    let packages =
        versions.iter().filter(|(name, _)| !["python", "zprobe"].contains(&name.as_str()));
    let mut software: Vec<String> =
        packages.map(|(name, version)| format!("{name} {version}")).collect();
    software.extend(report.run.inner_optimizer.clone());
    if !software.is_empty() {
        lines.push(software.join(", "));
    }
    if script.dry {
        lines.push("no optimizer stepped (--dry)".to_owned());
    }
    let factor = report.run.engine_facts.get("factor of all gradients");
    lines.extend(factor.map(|factor| format!("every gradient was multiplied by {factor}")));
    let fact = |name: &str| report.run.engine_facts.get(name).cloned();
    lines.extend(fact("places").map(|places| format!("your code: {places}")));
    lines.extend(fact("contract"));
    lines.extend(fact("judged").map(|it| format!("judged: {it}")));
    lines.extend(report.remarks.iter().map(|remark| format!("note: {remark}")));
    lines
}

/// The name of the engine, with its version if it has a package, and with the ZeRO stage if the stage can be chosen.
fn engine(report: &Report) -> String {
    let spec = &report.run.spec;
    let room = engines::of(spec.engine());
    let package = room.python.as_ref().and_then(|python| python.package);
    let version = package.map(|package| format!(" {}", version(report, package.module)));
    let stage = stage(spec).map(|stage| format!(", {stage}"));
    [room.title, &version.unwrap_or_default(), &stage.unwrap_or_default()].concat()
}

fn version<'a>(report: &'a Report, package: &str) -> &'a str {
    report.run.versions.get(package).map_or("(version unknown)", String::as_str)
}

/// The settings that the user chose for a real engine; empty for the native engine.
fn settings(spec: &RunSpec) -> Vec<String> {
    let mut settings = Vec::new();
    if !engines::of(spec.engine()).is_real() {
        return settings;
    }
    if spec.offload == Offload::Cpu {
        let what = if spec.fsdp2().is_some() { "parameters" } else { "optimizer" };
        settings.push(format!("{what} offloaded to the CPU"));
    }
    if spec.gradient_clipping > 0.0 {
        settings.push(format!("gradient clipped to {}", weight_text(spec.gradient_clipping)));
    }
    if spec.scales_loss() {
        settings.push(format!("loss scale {} at first", spec.loss_scale.initial()));
    }
    settings.extend(
        spec.resume_before.map(|step| format!("resumed from a checkpoint before step {step}")),
    );
    let asked = ALL.iter().filter_map(|setting| setting.asked_of_deepspeed(spec));
    settings.extend(asked.map(|(name, value)| format!("{name} {value}")));
    settings
}
