//! Asks the rank program of the native engine for the GPUs that it finds: `zprobe` itself links no
//! CUDA.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::Libtorch;
use crate::answer::output_within;
use zprobe_launch::library_path;
use zprobe_model::spec::Gpus;
use zprobe_model::trace::contract::GPUS;

/// The time limit of the rank program's answer: a driver that starts many GPUs takes some seconds for each.
const LIMIT: Duration = Duration::from_secs(120);

/// Paths that exist where NVIDIA's driver is installed: on Linux, and in WSL.
const DRIVER: [&str; 2] = ["/proc/driver/nvidia/version", "/dev/dxg"];

/// Returns true if NVIDIA's driver is installed, so that it is worth asking for GPUs. The check costs nothing.
pub fn driver_is_there() -> bool {
    DRIVER.iter().any(|path| Path::new(path).exists())
}

/// The GPUs that `program` finds with the named libtorch. If that libtorch cannot be used, [`Gpus::libtorch`] holds
/// the reason.
pub fn gpus(program: &Path, libtorch: &Result<Libtorch, String>) -> Gpus {
    let answer = match libtorch {
        Ok(libtorch) => ask(program, libtorch),
        Err(words) => Err(words.clone()),
    };
    answer.unwrap_or_else(|words| {
        // The driver may work even if the named libtorch does not.
        let own = ask(program, &Libtorch::OWN);
        let (names, nccl) = match own {
            Ok(Gpus { names, nccl, .. }) => (names, nccl),
            Err(own) => (Err(own.clone()), Err(own)),
        };
        Gpus { names, libtorch: Err(words), nccl, of_python: false }
    })
}

/// Asks the rank program for the GPUs; the error is the reason why there is no answer, in words.
fn ask(program: &Path, libtorch: &Libtorch) -> Result<Gpus, String> {
    let directories = libtorch.library_path();
    let name = match directories.first() {
        Some(directory) => format!("zprobe-rank with the libtorch in {}", directory.display()),
        None => "zprobe-rank".to_owned(),
    };
    let failed = |cause: std::io::Error| format!("cannot start {name}: {cause}");
    let mut command = Command::new(program);
    command.arg(GPUS).envs(library_path(&directories));
    let output = output_within(&mut command, LIMIT)
        .map_err(failed)?
        .ok_or_else(|| format!("{name} gave no answer within {} s", LIMIT.as_secs()))?;
    serde_json::from_slice(&output.stdout).map_err(|_| {
        let text = String::from_utf8_lossy(&output.stderr);
        let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("nothing");
        format!("{name} does not start: {last}")
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;

    use tempfile::TempDir;

    use super::*;

    /// A rank program that runs this shell script.
    fn program(script: &str) -> (TempDir, PathBuf) {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("zprobe-rank");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        (dir, path)
    }

    #[test]
    fn the_rank_program_answers_with_the_libtorch_that_was_named() {
        let (_dir, path) = program(
            r#"[ "$1" = gpus ] || exit 1
            echo '{"names": {"Ok": ["H100"]}, "nccl": {"Err": "none"},
                   "libtorch": {"Ok": "'"$LD_LIBRARY_PATH"'"}}'"#,
        );
        let libtorch = Libtorch::in_directory(Path::new("/venv/torch/lib"));
        let gpus = gpus(&path, &Ok(libtorch));
        assert_eq!(gpus.names, Ok(vec!["H100".to_owned()]));
        assert!(gpus.libtorch.unwrap().starts_with("/venv/torch/lib"));
    }

    #[test]
    fn a_libtorch_that_does_not_start_is_said_beside_what_the_driver_has() {
        let (_dir, path) = program(
            r#"case "$LD_LIBRARY_PATH" in /other*) echo "undefined symbol: x" >&2; exit 127;; esac
            echo '{"names": {"Ok": ["H100"]}, "nccl": {"Err": "none"}, "libtorch": {"Ok": "own"}}'"#,
        );
        let other = Libtorch::in_directory(Path::new("/other/lib"));
        let gpus = gpus(&path, &Ok(other));
        assert_eq!(gpus.names, Ok(vec!["H100".to_owned()]));
        let words = gpus.libtorch.unwrap_err();
        let expected = "zprobe-rank with the libtorch in /other/lib does not start: \
                        undefined symbol: x";
        assert_eq!(words, expected);
    }

    #[test]
    fn a_rank_program_that_does_not_start_is_no_answer_at_all() {
        let gpus = gpus(Path::new("/does/not/exist"), &Ok(Libtorch::OWN));
        assert!(gpus.names.unwrap_err().starts_with("cannot start zprobe-rank"));
    }
}
