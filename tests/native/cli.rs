//! The native engine from end to end: the real `zprobe`, real ranks on libtorch, real Gloo.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use zprobe_model::trace::{Event, Phase, Point};
use zprobe_report::Verdict;

use crate::support::{Live, Run, full, zprobe};

const WORLD_SIZES: &[usize] = &[1, 2, 3, 4, 8];
const ACCUMULATION_STEPS: &[usize] = &[1, 2, 3, 4, 8];

/// The distance between the everyday cases in the grid. The 12 cases have every number of ranks and of
/// microbatches, every dtype with every dataflow, the smallest case and the largest.
const EVERYDAY: usize = 9;

/// World sizes × accumulation steps × dtypes × dataflows; without `ZPROBE_TEST_FULL` only a representative
/// part.
fn grid() -> impl Iterator<Item = Vec<String>> {
    let mut cases = Vec::new();
    for &world in WORLD_SIZES {
        for &ga in ACCUMULATION_STEPS {
            for dtype in ["bf16", "fp32"] {
                for dataflow in ["accumulator", "ipg-bucket"] {
                    cases.push(
                        format!(
                            "--stage 1 --nproc-per-node {world} --ga {ga} --dtype {dtype} \
                             --dataflow {dataflow}"
                        )
                        .split(' ')
                        .map(str::to_owned)
                        .collect(),
                    );
                }
            }
        }
    }
    cases.into_iter().step_by(if full() { 1 } else { EVERYDAY })
}

#[test]
fn a_healthy_step_is_clean_and_every_weight_is_exactly_one() {
    for args in grid() {
        let run = zprobe(&args);
        assert_eq!(run.code, 0, "{args:?}\n{run}");
        let spec = &run.report.run.spec;
        for point in [Point::OptimizerInput, Point::MasterWeights, Point::Parameters] {
            let entries: Vec<_> =
                run.report.contributions.iter().filter(|c| c.point == point).collect();
            assert_eq!(entries.len(), spec.world_size * spec.steps, "{args:?} {point}");
            for entry in entries {
                assert!(entry.weights.iter().flatten().all(|w| *w == 1.0), "{args:?}\n{entry:?}");
                assert!(entry.leftover.iter().flatten().all(|w| *w == 0.0), "{args:?}\n{entry:?}");
                assert!(entry.covered > 0.5, "{args:?}\n{entry:?}");
            }
        }
    }
}

#[test]
fn the_boundary_leak_is_named_alone_with_its_weights_and_silent_on_a_single_rank() {
    for mut args in grid() {
        args.extend(["--inject".to_owned(), "boundary-leak".to_owned()]);
        let run = zprobe(&args);
        let spec = run.report.run.spec.clone();
        if spec.world_size == 1 {
            assert_eq!(run.code, 0, "{args:?}\n{run}");
            continue;
        }
        assert_eq!(run.code, 1, "{args:?}\n{run}");
        assert_eq!(run.codes(), ["ZP101"], "{args:?}");
        let boundary = spec.gradient_accumulation_steps - 1;
        assert_eq!(run.report.findings[0].microbatch, Some(boundary), "{args:?}");
        for entry in run.report.contributions.iter().filter(|c| c.point == Point::OptimizerInput) {
            for (source, row) in entry.weights.iter().enumerate() {
                for (microbatch, &weight) in row.iter().enumerate() {
                    let expected = match (microbatch == boundary, source == entry.rank) {
                        (false, _) => 1.0,
                        (true, true) => spec.world_size as f64,
                        (true, false) => 0.0,
                    };
                    assert_eq!(weight, expected, "{args:?}\n{entry:?}");
                }
            }
        }
    }
}

#[test]
fn the_dense_model_shows_the_leak_and_the_rank_norms_of_the_boundary() {
    let clean = zprobe("--model mlp");
    assert_eq!(clean.code, 0, "{clean}");
    let run = zprobe("--model mlp --inject boundary-leak");
    assert_eq!((run.code, run.codes()), (1, vec!["ZP101"]), "{run}");
    let before: Vec<_> =
        run.report.norms.iter().filter(|row| row.point == Point::BeforeStep).collect();
    assert_eq!(before.len(), 2);
    for row in before {
        assert_eq!(row.agree, Some(false));
        assert!(row.difference_percent[1].is_some_and(|percent| percent.abs() > 0.1), "{row:?}");
    }
    for row in run.report.norms.iter().filter(|row| row.point == Point::Reduced) {
        assert_eq!(row.agree, Some(true), "what was reduced is the same everywhere: {row:?}");
    }
}

#[test]
fn dense_data_is_clean_in_every_dtype_and_dataflow() {
    for dtypes in [
        "--dtype bf16",
        "--dtype fp32",
        "--dtype bf16 --grad-accum-dtype bf16",
        // Without the loss scale, local gradients would lose small values that the engine's gradients keep.
        "--dtype fp16 --dataflow accumulator",
    ] {
        for rest in ["--nproc-per-node 3 --ga 3", "--stage 0", "--stage 1 --ga 2"] {
            let run = zprobe(&format!("--model mlp {dtypes} {rest}"));
            assert_eq!(run.code, 0, "{dtypes} {rest}\n{run}");
        }
    }
}

#[test]
fn dense_data_shows_in_which_dtype_each_sum_ran() {
    use zprobe_model::spec::Dtype::{Bf16, Fp32};
    let run = zprobe("--model mlp --ga 4 --nproc-per-node 3 --comm-dtype bf16");
    assert_eq!(run.code, 0, "{run}");
    let seen = |run: &Run| -> Vec<_> {
        run.report.precision.iter().map(|it| (it.point, it.asked, it.as_exact_as)).collect()
    };
    let sums = seen(&run);
    assert_eq!(sums[0], (Point::Accumulator, Fp32, Fp32), "{run}");
    assert_eq!(sums[1], (Point::Reduced, Bf16, Bf16), "{run}");

    let run = zprobe("--model mlp --ga 4 --nproc-per-node 3 --inject accumulated-in-bf16");
    assert_eq!(run.codes(), ["ZP504"], "{run}");
    assert_eq!(seen(&run)[0], (Point::Accumulator, Fp32, Bf16), "{run}");
    assert!(run.report.findings[0].evidence[0].contains("of its norm"), "{run}");

    let run = zprobe("--model mlp --dtype fp32 --inject reduced-in-bf16");
    assert_eq!(run.codes(), ["ZP504"], "{run}");
    let [(_, _, own), (_, _, reduced), ..] = seen(&run)[..] else { panic!("{run}") };
    assert_eq!((own, reduced), (Fp32, Bf16), "{run}");
}

#[test]
fn dead_hooks_are_the_root_and_what_follows_is_not_reported_beside_them() {
    let run = zprobe("--inject dead-hooks --dataflow ipg-bucket");
    let finding = &run.report.findings[0];
    assert!(finding.message.contains("0 hooks fired"), "{run}");
    let consequences: Vec<&str> = finding.consequences.iter().map(|c| c.code.as_str()).collect();
    assert_eq!(consequences, ["ZP102", "ZP301", "ZP604"], "{run}");
}

#[test]
fn diagnosing_the_recorded_run_gives_the_identical_report() {
    for args in ["--ga 2", "--ga 2 --inject boundary-leak", "--inject step-skipped", "--model mlp"]
    {
        let run = zprobe(args);
        for format in ["full", "concise", "json"] {
            let live = zprobe_text(args, format);
            let again = run.diagnose(format);
            assert_eq!(again.0, run.code, "{args}");
            if format == "json" {
                let report: serde_json::Value = serde_json::from_str(&again.1).unwrap();
                assert_eq!(report, serde_json::to_value(&run.report).unwrap(), "{args}");
            } else {
                assert_eq!(without_pids(&again.1), without_pids(&live), "{args} {format}");
            }
        }
    }
}

/// The report of a new run, in this form.
fn zprobe_text(args: &str, format: &str) -> String {
    Run::text(&format!("{args} --output-format {format}"))
}

/// The text without quoted lines: the standard error of a dead rank may contain its process id.
fn without_pids(text: &str) -> String {
    text.lines().filter(|line| !line.trim_start().starts_with('|')).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_launcher_does_not_link_libtorch() {
    let binary = std::fs::read(env!("CARGO_BIN_EXE_zprobe")).unwrap();
    let contains = |needle: &[u8]| binary.windows(needle.len()).any(|window| window == needle);
    assert!(!contains(b"libtorch_cpu.so") && !contains(b"libc10.so"));
    assert!(contains(b"zprobe-rank"), "the search itself works");
}

#[test]
fn seeds_and_step_counts_change_nothing_about_a_clean_verdict() {
    for seed in 1..6 {
        let run = zprobe(&format!("--seed {seed} --steps {} --ga 3", 1 + seed % 4));
        assert_eq!((run.code, run.report.verdict), (0, Verdict::Clean), "{run}");
    }
}

#[test]
fn a_hang_is_blamed_on_the_rank_that_hangs_and_not_on_those_that_wait_for_it() {
    let run = zprobe("--inject rank-hangs --timeout 2 --nproc-per-node 3");
    assert_eq!((run.code, run.codes()), (3, vec!["ZP902"]), "{run}");
    let finding = &run.report.findings[0];
    assert_eq!(finding.rank, Some(2), "{run}");
    assert!(finding.message.contains("; ranks 0 and 1 wait for it in all-reduce"), "{run}");
}

#[test]
fn a_run_directory_need_not_be_text() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join(OsStr::from_bytes(b"caf\xe9"));
    let mut zprobe = Command::new(env!("CARGO_BIN_EXE_zprobe"));
    let status = zprobe.args(["run", "--output-format", "concise", "--out"]).arg(&out).status();
    assert_eq!(status.unwrap().code(), Some(0));
    assert!(out.join("rank-0.stderr.log").exists());
}

#[test]
fn a_killed_rank_is_reported_and_nothing_is_left_running() {
    let live = Live::start("--inject rank-hangs --timeout 60", |event| {
        matches!(event, Event::PhaseEntered { microbatch: 1, phase: Phase::Forward, .. })
    });
    let victim = live.pid_of(1);
    kill(Pid::from_raw(victim), Signal::SIGKILL).unwrap();
    let run = live.wait();
    assert_eq!((run.code, run.codes()), (3, vec!["ZP901"]), "{run}");
    let finding = &run.report.findings[0];
    assert_eq!(finding.rank, Some(1), "{run}");
    assert!(finding.message.contains("SIGKILL"), "{run}");
    assert!(run.report.ranks[0].last.contains("collective"), "what the other did last: {run}");
}

#[test]
fn nothing_survives_a_launcher_that_is_killed() {
    let live = Live::start("--inject rank-hangs", |event| {
        matches!(event, Event::PhaseEntered { microbatch: 1, phase: Phase::Forward, .. })
    });
    live.kill_launcher();
}

#[test]
fn dense_data_with_few_samples_on_many_ranks_raises_no_false_alarm() {
    let seeds: &[u64] = if full() {
        &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, 27]
    } else {
        // These seeds caused false alarms while all elements counted as equally noisy.
        &[10, 16]
    };
    for seed in seeds {
        let run = zprobe(&format!(
            "--model mlp --nproc-per-node 8 --ga 2 --micro-batch-size 1 --seed {seed}"
        ));
        assert_eq!(run.code, 0, "seed {seed}\n{run}");
    }
}

#[test]
fn a_learning_rate_that_is_no_power_of_two_is_no_finding() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ds.json");
    let config = r#"{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1},
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}"#;
    std::fs::write(&file, config).unwrap();
    let run = zprobe(&format!("--engine native --deepspeed-config {}", file.display()));
    assert_eq!(run.code, 0, "{run}");
    assert!(run.report.not_exercised.iter().any(|what| what.contains("power of two")), "{run}");
}
