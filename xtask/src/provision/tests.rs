//! Provisioning from wheels that a substitute for pip makes on the spot.

use std::fs;
use std::thread;

use tempfile::TempDir;

use super::*;
use crate::host::fake::FakeHost;

/// A `python3` whose pip logs each download and makes small wheels; all else is the real Python.
const PYTHON: &str = r##"
PATH=$REAL_PATH
case "$*" in
"-m pip --version") exit 0 ;;
"-m pip download"*)
    while [ "$1" != --dest ]; do shift; done
    echo downloaded >> "$2/../../downloads"
    cd "$2" && exec python3 -c '
import zipfile
version = "".join(
    f"#define TORCH_VERSION_{name} {number}\n"
    for name, number in (("MAJOR", 2), ("MINOR", 11), ("PATCH", 0))
)
with zipfile.ZipFile("torch.whl", "w") as wheel:
    wheel.writestr("torch/include/torch/headeronly/version.h", version)
    wheel.writestr("torch/include/ATen/ATen.h", "")
    for name in ("libtorch_cpu.so", "libtorch_cuda.so", "libc10.so", "libgomp.so.1"):
        wheel.writestr("torch/lib/" + name, "")
with zipfile.ZipFile("nvidia.whl", "w") as wheel:
    wheel.writestr("nvidia/cu13/lib/libcudart.so.13", "")
    wheel.writestr("nvidia/cu13/lib/libcupti.so.13", "")
' ;;
*) exec python3 "$@" ;;
esac
"##;

/// A compiler that only makes an empty file at the requested path.
const COMPILER: &str = "for last in \"$@\"; do :; done; : > \"$last\"";

/// A machine that has all programs of a provisioning.
fn host() -> FakeHost {
    FakeHost::new().with("python3", PYTHON).with("c++", COMPILER)
}

/// Provisions libtorch below `target`.
fn ensure_in(host: &FakeHost, target: &TempDir) -> Result<PathBuf> {
    ensure(host, &Compiler::find(host)?, target.path())
}

/// The error of a provisioning with the given script as `python3`, or without `python3` for `None`.
fn error_of(python: Option<&str>) -> String {
    let host = FakeHost::new().with("c++", COMPILER);
    let host = match python {
        Some(script) => host.with("python3", script),
        None => host,
    };
    let target = TempDir::new().unwrap();
    let error = ensure_in(&host, &target).unwrap_err().to_string();
    assert_eq!(names(&target.path().join("libtorch")), [".lock"], "after: {error}");
    error
}

/// The number of downloads made below `target`.
fn downloads(target: &TempDir) -> usize {
    fs::read_to_string(target.path().join("libtorch/downloads")).unwrap().lines().count()
}

/// The names of the entries of a directory, sorted.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_wheels_are_of_the_right_release() {
    assert!(download::REQUIREMENTS.contains(&format!("\ntorch=={VERSION} --hash=")));
}

#[test]
fn only_what_is_needed_remains() {
    let target = TempDir::new().unwrap();
    let prefix = ensure_in(&host(), &target).unwrap();
    assert_eq!(prefix, target.path().join("libtorch").join(VERSION));
    assert_eq!(names(&prefix), ["include", "lib", "requirements.txt"]);
    assert_eq!(
        names(&prefix.join("lib")),
        [
            "libc10.so",
            "libcudart.so.13",
            "libcupti.so.13",
            "libgomp.so.1",
            "libtorch.so",
            "libtorch_cpu.so"
        ]
    );
    assert_eq!(names(&target.path().join("libtorch")), [".lock", VERSION, "downloads"]);
}

#[test]
fn the_second_time_needs_nothing() {
    let target = TempDir::new().unwrap();
    let prefix = ensure_in(&host(), &target).unwrap();
    let bare = FakeHost::new().with("c++", "exit 1");
    assert_eq!(ensure_in(&bare, &target).unwrap(), prefix);
}

#[test]
fn an_interrupted_attempt_is_made_again() {
    let target = TempDir::new().unwrap();
    let partial = target.path().join("libtorch").join(format!("{VERSION}.partial/prefix/lib"));
    fs::create_dir_all(&partial).unwrap();
    fs::write(partial.join("libtorch_cuda.so"), "half of it").unwrap();
    let prefix = ensure_in(&host(), &target).unwrap();
    assert!(!prefix.join("lib/libtorch_cuda.so").exists());
}

#[test]
fn other_wheels_are_replaced() {
    let target = TempDir::new().unwrap();
    let prefix = ensure_in(&host(), &target).unwrap();
    fs::write(prefix.join("requirements.txt"), "torch==2.11.0\n").unwrap();
    ensure_in(&host(), &target).unwrap();
    assert!(stamp::is_current(&prefix));
    assert_eq!(downloads(&target), 2);
}

#[test]
fn of_several_at_once_one_does_the_work() {
    let (host, target) = (host(), TempDir::new().unwrap());
    thread::scope(|scope| {
        let attempts: Vec<_> =
            (0..4).map(|_| scope.spawn(|| ensure_in(&host, &target).unwrap())).collect();
        attempts.into_iter().for_each(|attempt| drop(attempt.join().unwrap()));
    });
    assert_eq!(downloads(&target), 1);
}

#[test]
fn a_missing_python_is_said() {
    let error = error_of(None);
    assert!(error.starts_with("there is no python3 on PATH"), "{error}");
    assert!(error.contains("apt install python3 python3-pip"), "{error}");
}

#[test]
fn a_missing_pip_is_said() {
    let error = error_of(Some("echo 'No module named pip' >&2; exit 1"));
    assert!(error.starts_with("python3 has no pip"), "{error}");
    assert!(error.contains("apt install python3-pip"), "{error}");
}

#[test]
fn a_failed_download_is_quoted() {
    let error = error_of(Some(
        "[ \"$3\" = --version ] || { echo 'ERROR: No matching distribution' >&2; exit 1; }",
    ));
    assert!(error.starts_with("pip could not download libtorch 2.11.0"), "{error}");
    assert!(error.contains("\n  | ERROR: No matching distribution\n"), "{error}");
    assert!(error.contains("set LIBTORCH"), "{error}");
}

#[test]
fn a_failed_unpacking_is_quoted() {
    let error = error_of(Some(
        "PATH=$REAL_PATH; [ \"$1\" = -m ] || exec python3 -c 'raise SystemExit(\"not a zip\")'",
    ));
    assert!(error.starts_with("cannot unpack libtorch into"), "{error}");
    assert!(error.ends_with("not a zip"), "{error}");
}
