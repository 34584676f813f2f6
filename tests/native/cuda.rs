//! The native engine on GPUs: messages on a machine without GPUs, and healthy runs on a machine with GPUs.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;
use zprobe_lab::native::driver_is_there;
use zprobe_model::spec::{Backend, Device, Gpus};
use zprobe_report::Verdict;

use crate::support::{rank_program, zprobe};

/// Runs `zprobe run` with this value of `LIBTORCH`, in an empty directory.
fn run(dir: &TempDir, libtorch: Option<&Path>, args: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zprobe"));
    command.arg("run").args(args.split_whitespace()).current_dir(dir.path());
    command
        .env_remove("LIBTORCH")
        .env_remove("ZPROBE_DEVICE")
        .envs(libtorch.map(|path| ("LIBTORCH", path)));
    command.output().unwrap()
}

/// The message of a refused run, which must leave no file.
fn refusal(libtorch: Option<&Path>, args: &str) -> String {
    let dir = TempDir::new().unwrap();
    let output = run(&dir, libtorch, args);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{args}: {text}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{args}: something ran");
    text
}

/// The GPUs that the rank program finds by itself.
fn found() -> Gpus {
    let output = Command::new(rank_program()).arg("gpus").output().unwrap();
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|err| panic!("{err}: {}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn without_a_gpu_whatever_asks_for_one_is_refused_with_what_is_missing() {
    if driver_is_there() {
        return;
    }
    for args in ["--device cuda", "--backend nccl", "--nproc-per-node gpu", "--device cuda --ga 2"]
    {
        let text = refusal(None, args);
        assert!(text.contains("is not possible on this machine"), "{args}: {text}");
        assert!(text.contains("no NVIDIA driver"), "{args}: {text}");
        assert!(text.contains("to do: install NVIDIA's driver"), "{args}: {text}");
    }
}

#[test]
fn without_a_gpu_runs_are_on_the_cpu_over_gloo_unless_something_else_is_asked_for() {
    if driver_is_there() {
        return;
    }
    for args in ["--device auto --backend auto", "--device auto --backend gloo"] {
        let run = zprobe(args);
        let spec = &run.report.run.spec;
        assert_eq!((spec.device, spec.backend), (Device::Cpu, Backend::Gloo), "{args}");
        assert_eq!((run.code, spec.world_size), (0, 2), "{run}");
    }
}

#[test]
fn a_libtorch_without_cuda_is_named() {
    let Gpus { libtorch: Err(words), .. } = found() else { return };
    assert!(words.contains("libtorch_cuda.so"), "{words}");
    assert!(words.starts_with("libtorch 2.11."), "{words}");
    let text = refusal(None, "--device cuda");
    assert!(text.contains(&words), "{text}");
    assert!(text.contains("with --python"), "{text}");
}

#[test]
fn what_is_named_and_is_no_libtorch_is_said_with_who_named_it() {
    let text = refusal(Some("/does/not/exist".as_ref()), "--device cuda");
    assert!(text.contains("/does/not/exist is not a libtorch directory (LIBTORCH)"), "{text}");
    let text = refusal(None, "--device cuda --python /does/not/exist");
    assert!(text.contains("cannot start /does/not/exist"), "{text}");
}

#[test]
fn a_libtorch_that_the_rank_program_does_not_start_with_is_said_in_the_loaders_words() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("lib")).unwrap();
    fs::write(dir.path().join("lib/libc10.so"), "not a library").unwrap();
    let text = refusal(Some(dir.path()), "--device cuda");
    assert!(text.contains("does not start"), "{text}");
    assert!(text.contains("libc10.so"), "{text}");
}

#[test]
fn a_libtorch_that_is_named_changes_nothing_about_a_run_on_the_cpu() {
    let dir = TempDir::new().unwrap();
    let output = run(&dir, Some("/does/not/exist".as_ref()), "--device cpu");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "needs a GPU, and LIBTORCH with CUDA; see docs/gpu.md"]
fn healthy_runs_on_gpus_are_clean() {
    let mut failures = Vec::new();
    for backend in ["gloo --nproc-per-node 2", "auto --nproc-per-node gpu"] {
        for setting in [
            "--stage 0",
            "--stage 1",
            "--stage 1 --dtype fp16",
            "--stage 1 --dataflow ipg-bucket",
            "--stage 2",
            "--stage 2 --overlap-comm --offload cpu",
            "--stage 2 --reduce-scatter false --contiguous-gradients false",
            "--stage 3",
            "--stage 3 --dtype fp32 --offload cpu",
            "--stage 1 --model mlp",
        ] {
            let run = zprobe(&format!("--device cuda --backend {backend} {setting}"));
            let verdict = run.report.verdict;
            if verdict != Verdict::Clean || run.report.run.spec.device != Device::Cuda {
                failures.push(format!("{backend} {setting}: {verdict}\n{run}"));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
#[ignore = "needs a GPU, and LIBTORCH with CUDA; see docs/gpu.md"]
fn faults_on_gpus_are_named_as_on_the_cpu() {
    for (setting, code) in [
        ("--ga 2 --inject boundary-leak", "ZP101"),
        ("--stage 2 --overlap-comm --inject wait-missing", "ZP104"),
        ("--dataflow ipg-bucket --inject dead-hooks", "ZP201"),
        ("--inject collective-skipped", "ZP801"),
    ] {
        let run = zprobe(&format!("--device cuda --nproc-per-node 2 {setting}"));
        assert_eq!(run.codes().first(), Some(&code), "{setting}\n{run}");
    }
}
