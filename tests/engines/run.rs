//! Real engines from end to end: the real `zprobe`, ranks in Python, the engine of an environment.
//!
//! The tests need an interpreter with torch, and are ignored by default: set `ZPROBE_TEST_PYTHON` to the
//! interpreter and run the tests with `cargo test --test engines run:: -- --include-ignored`. With
//! `ZPROBE_TEST_FULL` the tests try the whole lattice. Every run costs an import of torch.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use tempfile::TempDir;
use zprobe_model::spec::Point;
use zprobe_model::spec::code::Code;
use zprobe_model::trace::{Event, StateCompared, Trace};
use zprobe_report::Report;

use super::interpreter::{full, python};

/// The result of a run.
struct Run {
    code: i32,
    report: Report,
    trace: Trace,
    /// The directory that contains the run directory `run`.
    dir: TempDir,
}

/// Runs `zprobe run` with arguments.
fn zprobe(args: &str) -> Run {
    zprobe_with(args, &[])
}

/// Runs `zprobe run` with arguments and environment variables.
fn zprobe_with(args: &str, variables: &[(&str, &str)]) -> Run {
    let dir = TempDir::new().expect("a temporary directory");
    let output = Command::new(env!("CARGO_BIN_EXE_zprobe"))
        .arg("run")
        .args(args.split_whitespace())
        .arg("--python")
        .arg(python())
        .args(["--out", "run", "--output-format", "json"])
        .envs(variables.iter().copied())
        .current_dir(dir.path())
        .output()
        .expect("zprobe starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    Run {
        code: output.status.code().expect("zprobe exits by itself"),
        report: serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|err| panic!("{args}: no report ({err})\n{stderr}")),
        trace: Trace::read(&dir.path().join("run")).expect("a trace"),
        dir,
    }
}

impl Run {
    /// Asserts that the engine is correct in every weight.
    fn assert_clean(&self, args: &str) {
        assert_eq!(self.code, 0, "{args}\n{:#?}", self.report.findings);
        for point in [Point::OptimizerInput, Point::MasterWeights, Point::Parameters] {
            let mut entries = self.report.contributions.iter().filter(|c| c.point == point);
            assert!(entries.clone().count() > 0, "{args}: nothing was read at {point}");
            assert!(entries.all(|c| c.as_planned), "{args}: {point}");
        }
    }

    /// Asserts that every gradient reached the optimizer with weight 1, and that no gradient of an earlier
    /// step did.
    fn assert_weights_are_one(&self, args: &str) {
        for entry in &self.report.contributions {
            if entry.point == Point::Accumulator {
                continue;
            }
            assert!(entry.weights.iter().flatten().all(|w| *w == 1.0), "{args}\n{entry:?}");
            assert!(entry.leftover.iter().flatten().all(|w| *w == 0.0), "{args}\n{entry:?}");
        }
    }

    /// The weights of a rank's gradients in its own parameters after the first step.
    fn own_weights(&self, rank: usize) -> &[f64] {
        let entry = self
            .report
            .contributions
            .iter()
            .find(|c| (c.point, c.step, c.rank) == (Point::Parameters, 0, rank));
        &entry.expect("weights of the parameters").weights[rank]
    }

    /// The digests of the parameters, by rank and step.
    fn parameters(&self) -> BTreeMap<(usize, Option<usize>), String> {
        self.trace
            .events()
            .filter_map(|(rank, event)| match event {
                Event::Buffer { step, point: Point::Parameters, payload, .. } => {
                    Some(((rank?, *step), payload.digest.clone()))
                }
                _ => None,
            })
            .collect()
    }

    /// The last description of itself that the engine of rank 0 gave.
    fn facts(&self) -> &BTreeMap<String, String> {
        self.trace
            .events()
            .filter_map(|(rank, event)| match event {
                Event::EngineDescribed { facts, .. } if rank == Some(0) => Some(facts),
                _ => None,
            })
            .last()
            .expect("the engine described itself")
    }
}

#[test]
#[ignore = "needs ZPROBE_TEST_PYTHON"]
fn a_run_goes_on_from_a_checkpoint_with_the_state_that_was_saved() {
    for engine in [
        "ddp",
        "fsdp2",
        "zero-redundancy",
        "deepspeed --stage 0 --grad-accum-dtype bf16",
        "deepspeed --stage 1",
        "deepspeed --stage 2 --offload cpu",
        "deepspeed --stage 3",
    ] {
        let args = format!("--engine {engine} --optimizer adamw --steps 3 --resume-before 1");
        let run = zprobe(&args);
        assert_eq!(run.code, 0, "{args}\n{:#?}", run.report.findings);
        run.assert_weights_are_one(&args);
        let loaded = run.trace.events().filter_map(|(_, event)| match event {
            Event::CheckpointLoaded { step: 1, states } => Some(states),
            _ => None,
        });
        let kinds = |states: &Vec<StateCompared>| -> Vec<String> {
            states.iter().map(|it| it.state.clone()).collect()
        };
        let kinds: Vec<Vec<String>> = loaded.map(kinds).collect();
        assert_eq!(kinds.len(), 2, "{args}");
        let is_compared = |kind: &str| kinds.iter().all(|it| it.iter().any(|name| name == kind));
        for kind in ["parameters", "optimizer.step", "optimizer.exp_avg", "optimizer.exp_avg_sq"] {
            assert!(is_compared(kind), "{args}: {kind}");
        }
        assert_eq!(is_compared("master weights"), engine.starts_with("deepspeed"), "{args}");
    }
}

#[test]
#[ignore = "needs ZPROBE_TEST_PYTHON"]
fn a_healthy_step_is_clean_and_every_weight_is_exactly_one() {
    let mut cases = vec![
        "--engine ddp --nproc-per-node 3 --ga 3 --dtype bf16".to_owned(),
        "--engine fsdp2 --nproc-per-node 3 --ga 3 --dtype fp16".to_owned(),
        "--engine fsdp1 --nproc-per-node 3 --ga 3 --dtype fp16".to_owned(),
        "--engine zero-redundancy --nproc-per-node 3 --ga 3 --dtype fp32".to_owned(),
    ];
    if full() {
        for engine in ["ddp", "fsdp1", "fsdp2"] {
            for world in [2, 3, 4] {
                for ga in [1, 3, 4] {
                    for dtype in ["bf16", "fp16", "fp32"] {
                        cases.push(format!(
                            "--engine {engine} --nproc-per-node {world} --ga {ga} --dtype {dtype}"
                        ));
                    }
                }
            }
        }
    }
    for args in cases {
        let run = zprobe(&args);
        run.assert_clean(&args);
        run.assert_weights_are_one(&args);
    }
}

#[test]
#[ignore = "needs ZPROBE_TEST_PYTHON"]
fn whatever_the_model_and_the_settings_a_healthy_engine_does_what_it_should() {
    let mut cases = vec![
        "--engine ddp --shape unused-last,tied,frozen,bypass,several-backwards \
         --gradient-as-bucket-view",
        "--engine fsdp2 --shape unused-first,unused-last,tied,frozen,tuple-output \
         --reshard-after-forward=false",
        "--engine fsdp1 --shape unused-first,unused-last,tied,frozen,tuple-output --use-orig-params",
    ];
    if full() {
        cases.extend([
            "--engine ddp --shape unused-always,unused-alternating,dict-output --steps 3",
            "--engine ddp --shape unused-always,tuple-output --static-graph --ga 1 --steps 3",
            "--engine ddp --comm-hook fp16-compress --dtype fp32",
            "--engine ddp --comm-hook bf16-compress --dtype fp32 --find-unused-parameters",
            "--engine fsdp2 --shape unused-always,unused-alternating,dict-output --steps 3",
            "--engine fsdp2 --shape several-backwards --comm-dtype bf16",
            "--engine fsdp2 --dtype fp16 --comm-dtype fp16",
            "--engine fsdp1 --shape unused-alternating,dict-output,several-backwards --comm-dtype fp32 --steps 3",
            "--engine fsdp1 --sharding-strategy no-shard --reduce-every-microbatch --shape scalars,twins",
            "--engine fsdp1 --nproc-per-node 4 --sharding-strategy hybrid-shard-zero2 --replicas 2 \
             --keep-low-precision-grads",
            "--engine zero-redundancy --shape unused-last,tied,frozen,several-backwards --parameter-groups 2",
        ]);
    }
    for args in cases {
        zprobe(args).assert_clean(args);
    }
}

#[test]
#[ignore = "needs ZPROBE_TEST_PYTHON"]
fn each_part_of_a_model_has_the_gradients_of_the_ranks_that_hold_it() {
    let mut cases = vec![
        "--engine fsdp2 --nproc-per-node 4 --tensor-parallel 2 --shape unused-first,frozen",
        "--engine pipeline --nproc-per-node 4 --pipelines 2 --data-parallel fsdp2 \
         --schedule interleaved-zero-bubble",
    ];
    if full() {
        cases.extend([
            "--engine fsdp2 --nproc-per-node 4 --tensor-parallel 4 --ga 3 --gradient-clipping 1",
            "--engine fsdp2 --nproc-per-node 8 --tensor-parallel 2 --replicas 2 --ga 1",
            "--engine pipeline --nproc-per-node 4 --ga 8 --schedule interleaved-1f1b --shape tied",
            "--engine pipeline --schedule gpipe --ga 1 --shape scalars,unused-alternating",
            "--engine pipeline --nproc-per-node 4 --pipelines 2 --schedule looped-bfs --steps 3",
        ]);
    }
    for args in cases {
        let run = zprobe(args);
        run.assert_clean(args);
        let last = run.report.contributions.iter().find(|it| {
            it.step == 1 && matches!(it.point, Point::OptimizerInput | Point::Parameters)
        });
        let weights = last.into_iter().flat_map(|it| &it.weights).flatten();
        let (due, not_due): (Vec<f64>, Vec<f64>) = weights.partition(|weight| **weight == 1.0);
        assert!(!due.is_empty() && !not_due.is_empty(), "{args}: {due:?} {not_due:?}");
    }
}

/// A statement after which the host believes that an import has started the GPU's driver.
const WITH_A_DRIVER: &str = "device.is_started = lambda: True";

/// A statement that starts a thread, as an import might.
const WITH_A_THREAD: &str =
    "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()";

/// An interpreter whose host process first executes this statement.
fn beginning_with(statement: &str, dir: &Path) -> PathBuf {
    let path = dir.join("python");
    let real = python();
    let real = shlex::try_quote(real.to_str().expect("a path")).expect("no zero byte");
    let script = format!(
        r#"#!/bin/sh
[ "$1" = -B ] && [ -d "$2" ] || exec {real} "$@"
shift
exec {real} -B -c '
import sys; sys.argv[:] = sys.argv[1:]; sys.path.insert(0, sys.argv[0])
from zprobe_rank import device, host
{statement}
host.main()' "$@"
"#
    );
    std::fs::write(&path, script).expect("a script");
    std::fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("an executable");
    path
}

#[test]
#[ignore = "needs ZPROBE_TEST_PYTHON"]
fn ranks_that_may_not_be_forked_import_their_engine_themselves() {
    // A single run starts its own host; repeats share a pool.
    let cases = [(WITH_A_DRIVER, "1"), (WITH_A_THREAD, "2"), (WITH_A_DRIVER, "2")];
    for (statement, repeats) in cases.into_iter().take(if full() { 3 } else { 2 }) {
        let dir = TempDir::new().expect("a temporary directory");
        let path = beginning_with(statement, dir.path());
        let output = Command::new(env!("CARGO_BIN_EXE_zprobe"))
            .args(["run", "--engine", "ddp", "--ga", "2", "--repeat", repeats, "--python"])
            .arg(&path)
            .current_dir(dir.path())
            .output()
            .expect("zprobe starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
    }
}

#[test]
#[ignore = "needs ZPROBE_TEST_PYTHON"]
fn stages_whose_gradients_pass_ddp_by_are_found() {
    let run = zprobe(
        "--engine pipeline --nproc-per-node 4 --pipelines 2 --steps 1 --data-parallel ddp \
         --schedule interleaved-zero-bubble",
    );
    let first = &run.report.findings[0];
    assert_eq!((run.code, first.code.as_str()), (1, "ZP104"), "{first:?}");
    assert!(first.message.contains("its own rank's gradients 2 times over"), "{}", first.message);
    let known: Vec<&str> = first.known.iter().map(|known| known.name.as_str()).collect();
    assert_eq!(known, ["pipeline-zero-bubble-ddp"]);
}

#[test]
#[ignore = "needs ZPROBE_TEST_PYTHON"]
fn observing_an_engine_does_not_change_one_bit_of_what_it_computes() {
    let mut cases = vec![
        "--engine ddp --model mlp",
        "--engine fsdp1 --model mlp",
        "--engine fsdp2 --model mlp",
        "--engine deepspeed --stage 1 --ga 3 --model mlp",
        "--engine deepspeed --stage 2 --dtype fp16 --shape unused-last,tied",
    ];
    if full() {
        cases.extend([
            "--engine deepspeed --stage 2 --model mlp --gradient-clipping 0.1",
            "--engine deepspeed --stage 3 --model mlp",
            "--engine deepspeed --stage 2 --offload cpu --ga 3",
            "--engine deepspeed --stage 1 --immediate-grad-update --model mlp",
            "--engine deepspeed --stage 0 --dtype fp32 --model mlp",
            "--engine ddp --shape unused-last,tied --gradient-clipping 1",
            "--engine ddp --model mlp --gradient-as-bucket-view --gradient-clipping 0.1",
            "--engine fsdp1 --shape unused-last,tied --gradient-clipping 1 --use-orig-params",
            "--engine fsdp2 --shape unused-last,tied --gradient-clipping 1",
            "--engine fsdp2 --model mlp --gradient-clipping 0.1",
            "--engine fsdp2 --nproc-per-node 4 --tensor-parallel 2",
            "--engine pipeline --schedule interleaved-1f1b --shape tied",
        ]);
    }
    for args in cases {
        let watched = zprobe(&format!("{args} --observe full"));
        let watched = watched.parameters();
        let alone = zprobe(&format!("{args} --observe outcome")).parameters();
        assert!(watched.len() >= 6, "{args}: two ranks, before and after each of two steps");
        assert_eq!(watched, alone, "{args}");
    }
}

#[test]
#[ignore = "needs ZPROBE_TEST_PYTHON"]
fn a_small_model_fills_several_of_ddps_buckets() {
    let run = zprobe("--engine ddp --ga 2");
    let sizes = &run.facts()["rebuilt_bucket_sizes"];
    assert!(sizes.split(',').count() > 1, "{sizes}");
}

#[test]
#[ignore = "needs ZPROBE_TEST_PYTHON"]
fn gradients_that_ddp_never_reduced_are_found() {
    // Each microbatch obeys the flag that was set in the previous microbatch.
    let late = zprobe("--engine ddp --ga 3 --shape late-no-sync");
    assert_eq!((late.code, late.own_weights(0)), (1, &[1.0, 2.0, 2.0][..]));
    assert_eq!(late.report.findings[0].code, "ZP104", "{:?}", late.report.findings);
    let unmanaged = zprobe("--engine ddp --ga 3 --shape unmanaged");
    assert_eq!((unmanaged.code, unmanaged.own_weights(1)), (1, &[2.0, 2.0, 0.0][..]));
}

#[test]
#[ignore = "needs ZPROBE_TEST_PYTHON"]
fn the_script_of_a_bug_report_shows_the_weights_that_zprobe_shows() {
    let mut cases = vec![
        "--engine deepspeed --stage 3 --ga 2 --shape unused-alternating",
        "--engine ddp --ga 4 --dtype fp32 --shape unmanaged",
        "--engine fsdp2 --ga 3 --shape several-backwards",
    ];
    if full() {
        cases.extend([
            "--engine deepspeed --stage 1 --ga 4",
            "--engine deepspeed --stage 2 --shape unused-first,dict-output",
            "--engine deepspeed --stage 2 --offload cpu --shape unused-last",
            "--engine deepspeed --stage 3 --dtype fp16",
            "--engine deepspeed --stage 0 --grad-accum-dtype bf16",
            "--engine deepspeed --stage 1 --immediate-grad-update --parameter-groups 2",
            "--engine deepspeed --stage 1 --shape penalty-backward",
            "--engine deepspeed --stage 2 --grad-accum-dtype bf16 --shape loss-backward,dict-output",
            "--engine ddp --shape unused-last,frozen",
            "--engine ddp --nproc-per-node 3 --ga 3 --dtype fp32",
            "--engine ddp --comm-hook fp16-compress --dtype fp32 --shape bypass",
            "--engine fsdp2 --reshard-after-forward=false --shape unused-always",
            "--engine fsdp2 --replicas 2 --gradient-divide-factor 2 --ga 4 --dtype fp32",
        ]);
    }
    for args in cases {
        let run = zprobe(args);
        let (code, said) = repro(&run);
        assert_eq!(code, run.code, "{args}\n{said}");
        assert!(said.contains("step 1, rank 0: "), "{args}\n{said}");
        let parameters = run.report.contributions.iter().filter(|c| c.point == Point::Parameters);
        for entry in parameters.filter(|entry| !entry.as_planned) {
            for (source, row) in entry.weights.iter().enumerate() {
                let is_said = format!("of step {}, rank {source}: {row:?}, expected", entry.step);
                let is_nothing = row.iter().chain(&entry.expected[source]).all(|w| *w == 0.0);
                assert!(is_nothing || said.contains(&is_said), "{args}: {is_said}\n{said}");
            }
        }
    }
}

/// Runs the script of a run's bug report, without zprobe, and returns its exit code and output.
fn repro(Run { dir, .. }: &Run) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_zprobe"))
        .args(["issue", "run", "--out", "a.zip", "--force"])
        .current_dir(dir.path())
        .output()
        .expect("zprobe starts");
    let said = String::from_utf8_lossy(&output.stderr);
    let zip = std::fs::File::open(dir.path().join("a.zip")).unwrap_or_else(|_| panic!("{said}"));
    let mut zip = zip::ZipArchive::new(zip).expect("a zip");
    zip.extract(dir.path().join("a")).expect("it can be unpacked");
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr());
    let output = Command::new(python())
        .arg("repro.py")
        .env("MASTER_PORT", port.expect("a free port").port().to_string())
        .current_dir(dir.path().join("a"))
        .output()
        .expect("Python starts");
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    (output.status.code().expect("the script exits by itself"), said.concat())
}

#[test]
#[ignore = "needs ZPROBE_TEST_PYTHON"]
fn the_rank_programs_own_tests_pass() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = TempDir::new().expect("a temporary directory");
    zprobe_launch::adapters::rank_program(&python(), dir.path())
        .expect("the rank program is written");
    let expected = tempfile::NamedTempFile::new().expect("a temporary file");
    serde_json::to_writer(&expected, &codes()).expect("the codes are written");
    let output = Command::new(python())
        .args(["-B", "-m", "unittest", "discover", "--start-directory", "tests/python"])
        .env("PYTHONPATH", dir.path().join("rank-program"))
        .env("ZPROBE_TEST_CODES", expected.path())
        .current_dir(root)
        .output()
        .expect("Python starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(!stderr.contains("Ran 0 tests"), "{stderr}");
}

/// Codes as `spec::code` defines them, with which the Python side is compared.
fn codes() -> serde_json::Value {
    [(1, 0), (24, 7), (100, u64::MAX)]
        .map(|(contributions, seed)| {
            let code = Code::new(contributions, seed);
            let elements = 0..3 * code.length();
            let values = |column| -> Vec<i8> {
                elements.clone().map(|element| code.value(column, element)).collect()
            };
            json!({
                "contributions": contributions,
                "seed": seed,
                "length": code.length(),
                "initial": elements.clone().map(|e| code.initial(e)).collect::<Vec<i8>>(),
                "values": (0..contributions).map(values).collect::<Vec<_>>(),
            })
        })
        .into_iter()
        .collect()
}

/// The names of the standard suite's probes of the engines that are tested here; every third name in an
/// everyday test.
fn probes() -> Vec<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("probes");
    let names = std::fs::read_dir(dir).expect("probes").map(|it| it.expect("a probe").path());
    let stem = |path: PathBuf| path.file_stem().expect("a name").to_string_lossy().into_owned();
    let mut names: Vec<String> = names
        .filter(|path| path.is_file())
        .map(stem)
        .filter(|it| !it.starts_with("pipeline"))
        .collect();
    names.sort();
    names.into_iter().step_by(if full() { 1 } else { 3 }).collect()
}

#[test]
#[ignore = "needs ZPROBE_TEST_PYTHON"]
fn the_standard_suite_is_clean_on_every_real_engine() {
    let dir = TempDir::new().expect("a temporary directory");
    let output = Command::new(env!("CARGO_BIN_EXE_zprobe"))
        .args([
            "check",
            "--engine",
            "deepspeed",
            "--engine",
            "ddp",
            "--engine",
            "fsdp1",
            "--engine",
            "fsdp2",
        ])
        .args(probes())
        .arg("--python")
        .arg(python())
        .current_dir(dir.path())
        .output()
        .expect("zprobe starts");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{stdout}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
#[ignore = "needs ZPROBE_TEST_PYTHON"]
fn deepspeed_runs_in_fp16_where_it_refuses_fp16_and_the_report_says_so() {
    let args = "--engine deepspeed --stage 2 --ga 2 --dtype fp16";
    // The highest of oneDNN's instruction sets without fp16: DeepSpeed asks oneDNN.
    let run = zprobe_with(args, &[("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")]);
    run.assert_clean(args);
    let whats: Vec<&str> = run.report.run.not_observed.iter().map(|it| it.what.as_str()).collect();
    assert!(whats.contains(&"DeepSpeed's refusal of fp16 on this CPU"), "{whats:?}");
}
