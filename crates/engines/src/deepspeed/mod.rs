//! The engine DeepSpeed: ZeRO stages 0 to 3.

mod axes;
mod functions;

use serde_json::Value;

use super::source::expression;
use super::{EngineFacts, EnginePackage, EngineScript, Project, PythonSource, ReleaseFeatures};
use zprobe_model::spec::{Device, Dtype, Optimizer, RunSpec, SequenceGroups, Shape};

pub(super) static ROOM: EngineFacts = EngineFacts {
    title: "DeepSpeed",
    project: Project::DeepSpeed,
    python: Some(PythonSource {
        package: Some(EnginePackage { module: "deepspeed", title: "DeepSpeed" }),
        trial: Some(include_str!("trial.py")),
        advice: "`DS_BUILD_OPS=0 pip install --no-build-isolation deepspeed`, or name another \
                 interpreter with --python",
        features: Some(ReleaseFeatures { fact: "deepspeed_features", needed: features }),
        script: &[
            ("script.py", include_str!("script.py")),
            ("experts.py", include_str!("experts.py")),
            ("muon.py", include_str!("muon.py")),
        ],
        eyes: &[("buckets.py", include_str!("buckets.py")), ("eyes.py", include_str!("eyes.py"))],
    }),
    unwatched: Some("zprobe does not watch every collective of this engine"),
    axes: axes::axes,
    function: |_, class, point| functions::function(class?, point),
    parameters_in: |spec| spec.dtype,
    repro,
};

fn repro(spec: &RunSpec) -> Result<EngineScript, String> {
    if spec.deepspeed().is_some_and(|deepspeed| deepspeed.sequence_parallel > 1) {
        return Err(
            "the script does not support sequence parallelism; --sequence-parallel 1 may show the same bug"
                .to_owned(),
        );
    }
    // In stage 3, a rank holds only a part of each parameter.
    let whole = "    with deepspeed.zero.GatheredParameters(list(parameters.values())):\n        p.detach()";
    let values = if spec.stage == 3 { whole } else { "    p.detach()" };
    let wrapped = spec.override_loss_scale().map_or_else(String::new, |scale| {
        format!("    engine.optimizer.override_loss_scale({scale})\n")
    });
    // DeepSpeed refuses fp16 on most CPUs.
    let accepts = "deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True";
    let is_refused = spec.dtype == Dtype::Fp16 && spec.device == Device::Cpu;
    let accepted = if is_refused {
        format!("{accepts}  # torch computes fp16 on every CPU\n")
    } else {
        String::new()
    };
    // Without managed accumulation, each call of `step` is an update.
    let stepped = if manages_accumulation(spec) {
        "            engine.step()"
    } else {
        "            if m == GA - 1:\n                engine.step()"
    };
    let config = expression(spec.deepspeed_config().unwrap_or(&Value::Null));
    Ok(EngineScript {
        text: include_str!("repro.py")
            .replace("    p.detach()", values)
            .replace("    #: wrapped\n", &wrapped)
            .replace("#: accepted\n", &accepted)
            .replace("            engine.step()", stepped),
        constants: format!("CONFIG = {config}"),
        forward: "engine",
        accumulation: |spec, last, several| {
            // If a microbatch has several backwards, DeepSpeed must be told which backward is the last of the step.
            let line = format!("engine.set_gradient_accumulation_boundary({last})");
            if several && manages_accumulation(spec) { vec![line] } else { Vec::new() }
        },
        backward: if spec.has_shape(Shape::LossBackward) {
            "(engine.scale(loss) if hasattr(engine, \"scale\") else loss).backward()".to_owned()
        } else {
            "engine.backward(loss)".to_owned()
        },
    })
}

/// False if the configuration leaves the accumulation of gradients to the script (`managed_gradient_accumulation`).
fn manages_accumulation(spec: &RunSpec) -> bool {
    let key = "managed_gradient_accumulation";
    spec.deepspeed_config().and_then(|config| config.get(key)?.as_bool()).unwrap_or(true)
}

/// The features that a run needs and that some releases lack, each with its flag: keys of the section
/// `zero_optimization`, methods of the engine, arguments of `initialize`, and modules.
fn features(spec: &RunSpec) -> Vec<(String, String)> {
    let set = spec.deepspeed_set();
    let zero = set.iter().filter(|member| member.path().starts_with("zero_optimization."));
    let keys = zero.map(|it| (it.path().to_owned(), format!("--deepspeed-set {it}")));
    let coalesced = Shape::CoalescedReduction;
    let method = spec
        .has_shape(coalesced)
        .then(|| ("coalesce_grad_reduction".to_owned(), format!("--shape {coalesced}")));
    let sequences = spec.deepspeed().filter(|deepspeed| deepspeed.sequence_parallel > 1);
    let groups = sequences.map(|deepspeed| match deepspeed.sequence_groups {
        SequenceGroups::Mpu => ("parallel_state_sp".to_owned(), "--sequence-parallel".to_owned()),
        SequenceGroups::Mesh => ("mesh_param".to_owned(), "--sequence-groups mesh".to_owned()),
    });
    let muon = (spec.optimizer == Optimizer::Muon)
        .then(|| ("muon".to_owned(), "--optimizer muon".to_owned()));
    keys.chain(method).chain(groups).chain(muon).collect()
}
