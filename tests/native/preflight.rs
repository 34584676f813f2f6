//! `zprobe preflight` with real ranks: a line for each machine, and the exit code.

use std::process::{Command, Output};

use tempfile::TempDir;
use zprobe_lab::native::driver_is_there;

/// Runs `zprobe preflight` in a directory, without zprobe's variables in its environment.
fn preflight(dir: &TempDir, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zprobe"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ZPROBE_") {
            command.env_remove(name);
        }
    }
    command.arg("preflight").args(args).current_dir(dir.path()).output().unwrap()
}

#[test]
fn a_machine_whose_ranks_do_as_planned_is_a_line_and_exit_code_0() {
    let dir = TempDir::new().unwrap();
    let output =
        preflight(&dir, &["--device", "cpu", "--nproc-per-node", "3", "--export-json", "it.json"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let [machine, verdict] = said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
    assert_eq!(machine, "this machine: ranks 0, 1 and 2 on cpu: as planned");
    assert!(verdict.starts_with("clean: all 12 gradients of 2 steps"), "{verdict}");
    let report = std::fs::read_to_string(dir.path().join("it.json")).unwrap();
    assert!(report.contains(r#""gradient_accumulation_steps": 2"#), "{report}");
}

#[test]
fn a_machine_without_gpus_is_inconclusive_unless_the_cpu_was_asked_for() {
    if driver_is_there() {
        return;
    }
    let dir = TempDir::new().unwrap();
    let output = preflight(&dir, &["--nproc-per-node", "2", "--export-json", "it.json"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(
        said.contains("inconclusive: no GPU was checked: this machine has no GPU driver"),
        "{said}"
    );
    let report = std::fs::read_to_string(dir.path().join("it.json")).unwrap();
    assert!(report.contains(r#""verdict": "inconclusive""#), "{report}");
}

#[test]
fn a_gpu_that_is_missing_is_not_made_up_for() {
    if driver_is_there() {
        return;
    }
    let dir = TempDir::new().unwrap();
    for args in [["--device", "cuda"], ["--backend", "nccl"], ["--nproc-per-node", "gpu"]] {
        let output = preflight(&dir, &args);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), &*output.stdout), (Some(2), &b""[..]), "{said}");
        assert!(said.contains("no NVIDIA driver"), "{said}");
    }
}
