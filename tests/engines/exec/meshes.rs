//! Tests of models that tensor parallelism has cut into DTensors.

use zprobe_report::Verdict;

use super::{Run, file, full, scripts, text, train};

fn parallel(options: &[&str], ranks: usize, flags: &str) -> Run {
    let script = file("tests/engines/exec/scripts/tensor_parallel.py");
    train(scripts(), options, ranks, text(&script), flags)
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn each_part_of_a_parameter_is_averaged_over_the_ranks_that_have_it() {
    let trainings: [(usize, &str, &[&str]); 5] = [
        (4, "shard", &[]),
        (2, "norm", &[]),
        (2, "", &["--observe"]),
        (4, "shard norm", &[]),
        (4, "shard", &["--observe"]),
    ];
    for (ranks, flags, options) in trainings.into_iter().take(if full() { 5 } else { 2 }) {
        let run = parallel(options, ranks, flags);
        let report = run.report();
        assert_eq!(report.verdict, Verdict::Clean, "{flags} {options:?}: {}", run.findings());
        assert!(report.remarks.is_empty(), "{flags} {options:?}: {:?}", report.remarks);
        let average = if flags.contains("shard") { "0.5, an average over the ranks" } else { "1" };
        assert_eq!(report.run.engine_facts["factor of all gradients"], average, "{flags}");
    }
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn a_part_of_a_parameter_that_lost_a_microbatch_is_named() {
    let run = parallel(&[], 2, "cleared");
    let findings = &run.report().findings;
    assert!(findings.iter().all(|it| it.code.as_str() == "ZP102"), "{}", run.findings());
    let lost = |rank: usize| format!("the gradient of microbatch 0 of rank {rank} never reached");
    for rank in 0..2 {
        assert!(run.findings().contains(&lost(rank)), "{}", run.findings());
    }
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn a_gradient_that_is_summed_behind_autograd_cannot_be_observed() {
    let run = parallel(&["--observe"], 2, "norm");
    assert!(run.stderr.contains("is summed over a device mesh after autograd"), "{}", run.stderr);
    assert_eq!(run.code, 4);
    assert!(run.stdout.starts_with("done"), "{}", run.stdout);
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn where_some_parameters_are_whole_beside_parts_nothing_is_concluded() {
    let run = parallel(&[], 2, "whole");
    assert!(
        run.stderr.contains("has cut some parameters but not 3.weight, 3.bias"),
        "{}",
        run.stderr
    );
    assert_eq!(run.code, 4);
}
