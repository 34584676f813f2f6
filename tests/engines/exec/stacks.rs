//! Tests that correct scripts have no finding.

use zprobe_model::trace::Point;
use zprobe_report::Verdict;

use super::{Run, exec, full, python, scripts, text, train};

/// A script with the number of ranks and its flags.
type Training = (&'static str, usize, &'static str);

/// The trainings that represent all others.
const TRAININGS: &[Training] = &[
    ("ddp.py", 3, "--accumulate 4 --amp --dtype fp16 --checkpoint reentrant --bucket-view"),
    ("ddp.py", 2, "--accumulate 3 --zero"),
    ("ddp.py", 1, "--accumulate 2 --tie --compile"),
    ("ddp.py", 2, "--accumulate 3 --steps 1"),
    ("fsdp2.py", 2, "--accumulate 3 --dtype bf16 --checkpoint non-reentrant"),
    // The last rank has no element of most parameters, and the first step is clipped.
    ("fsdp2.py", 5, "--accumulate 2 --dtype bf16 --width 8 --layers 2 --seed 497"),
    ("deepspeed_zero.py", 2, "--stage 3 --accumulate 2 --dtype bf16"),
    (
        "megatron_core.py",
        2,
        "--accumulate 3 --dtype bf16 --per-token-loss --distributed-optimizer --overlap",
    ),
    ("megatron_core.py", 4, "--accumulate 2 --per-token-loss"),
    ("fsdp2.py", 4, "--accumulate 2 --replicate 2"),
    ("deepspeed_zero.py", 2, "--stage 1 --accumulate 3 --dtype bf16"),
    ("ddp.py", 2, "--accumulate 3"),
    ("ddp.py", 2, "--accumulate 3 --steps 2"),
];

/// The number of trainings that are run every day; they come first in [`TRAININGS`]. A plain `ddp.py` under
/// torchrun and DeepSpeed's stage 1 under observation are run every day, too.
const FEW: usize = 8;

fn is_clean(run: &Run, what: &str) {
    let report = run.report();
    assert_eq!(report.verdict, Verdict::Clean, "{what}: {}\n{}", run.findings(), run.stderr);
    assert_eq!(run.code, 0);
    let consumed = report.contributions.iter().filter(|it| it.point == Point::OptimizerInput);
    let mut weights = consumed.flat_map(|it| it.weights.iter().flatten()).peekable();
    assert!(weights.peek().is_some(), "{what}: nothing was read");
    assert!(weights.all(|weight| *weight == 1.0), "{what}");
    let contract = &report.run.engine_facts["contract"];
    assert!(
        contract.contains("together 1: every target token of a step weighs the same"),
        "{what}: {contract}"
    );
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn every_weight_of_a_script_that_is_right_is_exactly_one() {
    for (script, ranks, flags) in TRAININGS.iter().take(if full() { usize::MAX } else { FEW }) {
        is_clean(
            &train(scripts(), &[], *ranks, script, flags),
            &format!("{script} {ranks} {flags}"),
        );
    }
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn a_script_under_torchrun_is_watched_and_leaves_before_it_saves_anything() {
    let python = python();
    let command = [
        text(&python),
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "ddp.py",
        "--accumulate",
        "2",
        "--out",
        "saved",
    ];
    let run = exec(&[], &command);
    is_clean(&run, "torchrun");
    assert!(!run.dir.path().join("saved").exists());
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn a_dry_run_takes_no_step() {
    let script = "import torch\n\
                  model = torch.nn.Linear(64, 64)\n\
                  optimizer = torch.optim.SGD(model.parameters(), lr=1.0)\n\
                  before = model.weight.detach().clone()\n\
                  for _ in range(2):\n    \
                      model(torch.ones(1, 64)).sum().backward()\n    \
                      optimizer.step()\n    \
                      print(torch.equal(model.weight, before))\n    \
                      optimizer.zero_grad()\n";
    let python = python();
    for (options, same) in [(&["--dry"][..], "True\nTrue\n"), (&[], "False\nFalse\n")] {
        let run = exec(options, &[text(&python), "-c", script]);
        assert!(run.stdout.starts_with(same), "{options:?}: {}", run.stdout);
        assert_eq!(run.code, 0, "{}", run.stderr);
    }
}
