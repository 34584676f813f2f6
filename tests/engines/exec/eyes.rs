//! Tests of the buffers of a script's engine between backward and the optimizer.

use std::fs;

use zprobe_model::trace::Point;
use zprobe_model::trace::Point::{Accumulator, BeforeStep, OptimizerInput, Reduced};
use zprobe_report::Verdict;

use super::{Run, full, scripts, train};

/// The points of a step of two microbatches.
type Journey = &'static [Point];

/// Correct scripts, each with its flags and the journey of its last step.
const RIGHT: &[(&str, &str, Journey)] = &[
    ("ddp.py", "", &[Accumulator, BeforeStep, OptimizerInput]),
    (
        "deepspeed_zero.py",
        "--stage 1 --dtype bf16 --accumulate-dtype fp32",
        &[Accumulator, Reduced, BeforeStep, OptimizerInput],
    ),
    ("megatron_core.py", "--dtype bf16", &[Accumulator, Accumulator, OptimizerInput]),
    ("fsdp2.py", "--dtype bf16", &[Accumulator, BeforeStep, OptimizerInput]),
    (
        "megatron_core.py",
        "--dtype bf16 --overlap --distributed-optimizer",
        &[Accumulator, OptimizerInput],
    ),
    ("deepspeed_zero.py", "--stage 0 --dtype bf16", &[Accumulator, OptimizerInput]),
    ("deepspeed_zero.py", "--stage 2", &[OptimizerInput]),
    ("deepspeed_zero.py", "--stage 3 --dtype bf16", &[OptimizerInput]),
];

/// The number of scripts that are run every day; they come first in [`RIGHT`].
const FEW: usize = 3;

/// The points of the last recorded step.
fn points(run: &Run) -> Vec<Point> {
    let journey = &run.report().journey;
    let last = journey.last().expect("a station").step;
    journey.iter().filter(|it| it.step == last).map(|it| it.point).collect()
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn buffers_of_a_script_s_engine_are_seen_and_right() {
    for (script, flags, journey) in RIGHT.iter().take(if full() { usize::MAX } else { FEW }) {
        for options in [&[][..], &["--observe"]] {
            let run = train(scripts(), options, 2, script, &format!("{flags} --accumulate 2"));
            let (report, what) = (run.report(), format!("{script} {flags} {options:?}"));
            assert!(report.findings.iter().all(|it| !it.known.is_empty()), "{what}");
            assert_eq!(points(&run), *journey, "{what}");
            assert!(report.journey.iter().all(|it| it.departed.is_empty()), "{what}");
            let is_bucketed = flags.contains("stage 2") || flags.contains("stage 3");
            assert_eq!(report.buckets.is_empty(), !is_bucketed, "{what}");
            assert!(report.run.not_observed.is_empty(), "{what}: {:?}", report.run.not_observed);
        }
    }
}

/// Trains with a script in which `old` is replaced by `new`.
fn train_with(script: &str, flags: &str, old: &str, new: &str) -> Run {
    let dir = scripts();
    let path = dir.path().join(script);
    let text = fs::read_to_string(&path).expect("a script");
    assert_eq!(text.matches(old).count(), 1, "{old}");
    fs::write(&path, text.replace(old, new)).expect("a script");
    train(dir, &[], 2, script, flags)
}

/// The point and microbatch of the first wrong buffer, and the function that makes the buffer.
fn first(run: &Run) -> (Option<Point>, Option<usize>, &str) {
    let first = run.report().first_divergence.as_ref().expect("a divergence");
    (first.point, first.microbatch, first.function.as_deref().unwrap_or_default())
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn the_first_wrong_buffer_of_a_script_s_engine_is_named() {
    let old = "            total += loss.detach()\n        scaler.unscale_(optimizer)";
    let new = "            if index == 1:\n                \
                       [it.grad.mul_(2) for it in model.parameters()]\n";
    let run = train_with("ddp.py", "--accumulate 3", old, &format!("{new}{old}"));
    assert_eq!(run.report().verdict, Verdict::Findings);
    assert_eq!(first(&run), (Some(BeforeStep), Some(2), ""));
    assert!(run.report().first_divergence.as_ref().is_some_and(|it| it.outside_backward));

    // The script's mistake: no microbatch is reduced.
    let run = train_with("ddp.py", "--accumulate 3", "quiet = not last and ", "quiet = ");
    let (point, microbatch, function) = first(&run);
    assert_eq!((point, microbatch), (Some(BeforeStep), Some(2)));
    assert!(function.starts_with("Reducer::finalize_bucket_dense"), "{function}");

    // BF16_Optimizer adds the last microbatch after the reduction, as DeepSpeed 0.18.9 does.
    let old = "    return engine\n";
    let new = "    epilogue, reduce = engine.optimizer.backward_epilogue, engine.allreduce_gradients\n    \
               engine.optimizer.backward_epilogue = lambda: None\n    \
               engine.allreduce_gradients = lambda *them, **named: (reduce(*them, **named), epilogue())\n    \
               return engine\n";
    let flags = "--stage 1 --dtype bf16 --accumulate-dtype fp32 --accumulate 3";
    let run = train_with("deepspeed_zero.py", flags, old, new);
    assert!(run.findings().starts_with("ZP101"), "{}", run.findings());
    let (point, microbatch, function) = first(&run);
    assert_eq!((point, microbatch), (Some(Reduced), Some(2)));
    assert_eq!(function, "DeepSpeedEngine.allreduce_gradients (runtime/engine.py)");

    // megatron-core's sums are scattered before each microbatch.
    let old = "    logits = model(microbatch";
    let flags = "--dtype bf16 --distributed-optimizer --accumulate 3";
    let new = format!("    model.finish_grad_sync()\n{old}");
    let run = train_with("megatron_core.py", flags, old, &new);
    // The weights explain the gradient, so that no slice of other elements is searched (ZP402).
    assert!(run.findings().starts_with("ZP107"), "{}", run.findings());
    assert_eq!(first(&run), (Some(Accumulator), Some(1), ""));
    assert!(run.report().first_divergence.as_ref().is_some_and(|it| it.outside_backward));

    // The gradients that FSDP2 has not reduced yet are cleared.
    let old = "            model.set_requires_gradient_sync(index == len(window) - 1)\n";
    let new = "            for group in map(lambda it: it._get_fsdp_state()._fsdp_param_group, \
               [*model.blocks, model]):\n                \
                   for it in group.fsdp_params if index == 2 else []:\n                    \
                       it.unsharded_accumulated_grad = None\n                    \
                       it._unsharded_param.grad = None\n";
    let run = train_with("fsdp2.py", "--accumulate 3", old, &format!("{old}{new}"));
    assert!(run.findings().starts_with("ZP102"), "{}", run.findings());
    assert_eq!(first(&run), (Some(BeforeStep), Some(2), ""));
    assert!(run.report().first_divergence.as_ref().is_some_and(|it| it.outside_backward));
}
