//! Python environments, made by a program that replaces uv or venv and pip, and by the real tools from an
//! index in a directory. The tests need no network.

#![allow(clippy::disallowed_macros, reason = "a skipped test is printed")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use tempfile::TempDir;
use zprobe_lab::environment::{Cache, Installer, ProvisionError};
use zprobe_zoo::Packages;

/// A cache, and a fake uv that logs its calls.
struct Fixture {
    dir: TempDir,
    installer: Installer,
}

/// A shell script in place of uv: it makes an environment with an interpreter, and succeeds at everything
/// else.
const UV: &str = r#"
echo "uv $*" >>"$HERE/calls"
if [ "$1" = venv ]; then
    for last in "$@"; do :; done
    mkdir -p "$last/bin"
    printf '#!/bin/sh\necho "python $*" >>"%s/calls"\n' "$HERE" >"$last/bin/python"
    chmod +x "$last/bin/python"
fi
"#;

impl Fixture {
    /// A fixture with a uv that runs `script`, in which `$HERE` is the fixture's directory.
    fn new(script: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("uv");
        write_program(&program, &format!("HERE='{}'\n{script}", dir.path().display()));
        Self { installer: Installer { uv: Some(program) }, dir }
    }

    fn provide(&self, packages: &[(&str, &str)]) -> Result<PathBuf, ProvisionError> {
        let packages: Packages =
            packages.iter().map(|(name, version)| (*name, version.parse().unwrap())).collect();
        let cache = Cache::at(&self.dir.path().join("cache"));
        cache.provide(&packages, &self.installer, &mut |_| ())
    }

    /// Every call of the tool, and of the interpreters that the tool made.
    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.dir.path().join("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

fn write_program(path: &Path, script: &str) {
    fs::write(path, format!("#!/bin/sh\n{script}")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

const DEEPSPEED: &[(&str, &str)] = &[("deepspeed", "0.18.9"), ("torch", "2.11.0")];

#[test]
fn deepspeed_is_installed_after_torch_and_both_are_imported() {
    let fixture = Fixture::new(UV);
    let python = fixture.provide(DEEPSPEED).unwrap();
    assert!(python.exists());
    let calls = fixture.calls();
    let [venv, torch, deepspeed, import_torch, import_deepspeed] = &calls[..] else {
        panic!("{calls:#?}")
    };
    assert!(venv.starts_with("uv venv"), "{venv}");
    assert!(torch.contains("torch==2.11.0") && !torch.contains("deepspeed=="), "{torch}");
    assert!(deepspeed.ends_with("--no-build-isolation deepspeed==0.18.9"), "{deepspeed}");
    assert!(import_torch.ends_with("import torch"), "{import_torch}");
    assert!(import_deepspeed.ends_with("import deepspeed"), "{import_deepspeed}");
}

#[test]
fn an_environment_is_made_once() {
    let fixture = Fixture::new(UV);
    let first = fixture.provide(DEEPSPEED).unwrap();
    let calls = fixture.calls();
    assert_eq!(fixture.provide(DEEPSPEED).unwrap(), first);
    assert_eq!(fixture.calls(), calls);
    assert_ne!(fixture.provide(&[("torch", "2.11.0")]).unwrap(), first);
}

#[test]
fn what_a_killed_process_left_behind_is_made_anew() {
    let fixture = Fixture::new(UV);
    let python = fixture.provide(DEEPSPEED).unwrap();
    let env = python.parent().unwrap().parent().unwrap();
    fs::remove_file(env.join("zprobe-environment.txt")).unwrap();
    fs::write(env.join("half-installed"), "").unwrap();
    assert_eq!(fixture.provide(DEEPSPEED).unwrap(), python);
    assert!(!env.join("half-installed").exists());
}

#[test]
fn an_environment_whose_interpreter_is_gone_is_made_anew() {
    let fixture = Fixture::new(UV);
    let python = fixture.provide(DEEPSPEED).unwrap();
    fs::remove_file(&python).unwrap();
    assert!(fixture.provide(DEEPSPEED).unwrap().exists());
}

#[test]
fn of_two_at_once_one_makes_it_and_the_other_waits() {
    let fixture = Fixture::new(&UV.replace("mkdir", "sleep 1; mkdir"));
    let pythons = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let python = fixture.provide(DEEPSPEED);
                pythons.lock().unwrap().push(python);
            });
        }
    });
    for python in pythons.into_inner().unwrap() {
        assert!(python.unwrap().exists());
    }
    let venvs = fixture.calls().iter().filter(|call| call.starts_with("uv venv")).count();
    assert_eq!(venvs, 1);
}

#[test]
fn a_failure_shows_what_the_tool_said_and_what_to_do() {
    let no_version = "no version of torch==9.9.9";
    let fixture = Fixture::new(&format!(
        "{UV}\nif [ \"$1\" = pip ]; then echo '{no_version}' >&2; exit 1; fi"
    ));
    let message = fixture.provide(&[("torch", "9.9.9")]).unwrap_err().to_string();
    let log = message.rsplit(" in ").next().unwrap();
    assert!(fs::read_to_string(log).unwrap().contains(no_version), "{message}");
    for part in ["torch 9.9.9: installing", no_version, "Check the network"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert!(fixture.provide(&[("torch", "9.9.9")]).is_err(), "a failed environment was used");
}

#[test]
fn packages_that_do_not_import_are_no_environment() {
    let fixture = Fixture::new(&UV.replace("calls\"\\n'", "calls\"\\nexit 1\\n'"));
    let message = fixture.provide(DEEPSPEED).unwrap_err().to_string();
    assert!(message.contains("importing torch failed"), "{message}");
    assert!(fixture.provide(DEEPSPEED).is_err());
}

#[test]
fn a_tool_that_does_not_start_is_named() {
    let fixture = Fixture::new(UV);
    let missing = Installer { uv: Some("/does/not/exist/uv".into()) };
    let fixture = Fixture { installer: missing, ..fixture };
    let message = fixture.provide(DEEPSPEED).unwrap_err().to_string();
    assert!(message.contains("cannot start /does/not/exist/uv"), "{message}");
}

/// The URL of an index with one package, `harmless` 1.0, which declares the hash that `sha256` returns.
fn index(dir: &Path, sha256: impl Fn(&[u8]) -> String) -> String {
    const FILE: &str = "harmless-1.0-py3-none-any.whl";
    let mut wheel = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let info = "harmless-1.0.dist-info";
    let metadata = "Metadata-Version: 2.1\nName: harmless\nVersion: 1.0\n";
    let tags = "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n";
    let names = ["harmless.py", "METADATA", "WHEEL", "RECORD"].map(|name| match name {
        "harmless.py" => name.to_owned(),
        _ => format!("{info}/{name}"),
    });
    let record = names.iter().map(|name| format!("{name},,\n")).collect::<String>();
    for (name, text) in names.iter().zip(["", metadata, tags, &record]) {
        wheel.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        wheel.write_all(text.as_bytes()).unwrap();
    }
    let wheel = wheel.finish().unwrap().into_inner();
    let place = dir.join("harmless");
    fs::create_dir_all(&place).unwrap();
    fs::write(place.join(FILE), &wheel).unwrap();
    let page = format!("<a href=\"{FILE}#sha256={}\">{FILE}</a>", sha256(&wheel));
    fs::write(place.join("index.html"), format!("<!DOCTYPE html><html><body>{page}</body></html>"))
        .unwrap();
    format!("file://{}", dir.display())
}

/// Runs `zprobe provision harmless==1.0` with this index and this `PATH`. Returns true if the command
/// succeeds, and its standard error.
fn provision(index: &str, path: &OsStr) -> (bool, String) {
    let cache = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_zprobe"));
    command.args(["provision", "harmless==1.0"]).env("ZPROBE_CACHE_DIR", cache.path());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("PIP_") || text.starts_with("UV_") {
            command.env_remove(name);
        }
    }
    let no_cache = cache.path().join("downloads");
    let output = command
        .env("PATH", path)
        .envs([("PIP_INDEX_URL", index), ("UV_DEFAULT_INDEX", index)])
        .envs([("PIP_CONFIG_FILE", "/dev/null"), ("UV_NO_CONFIG", "1")])
        .envs([("PIP_CACHE_DIR", &no_cache), ("UV_CACHE_DIR", &no_cache)])
        .output()
        .unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_package_that_is_not_what_its_index_says_is_not_installed() {
    let pythons = ["3.11".to_owned(), "3.10".to_owned()];
    let pip = Installer { uv: None };
    if pip.create(Path::new("unused"), &pythons).is_none() {
        eprintln!("skipped: no Python 3.11 or 3.10 on PATH");
        return;
    }
    // The paths of a run with pip only, and of a run with uv if uv is installed.
    let path = std::env::var_os("PATH").unwrap();
    let without_uv = std::env::split_paths(&path).filter(|place| !place.join("uv").exists());
    let mut paths = vec![std::env::join_paths(without_uv).unwrap(), path.clone()];
    paths.dedup();
    for path in paths {
        let dir = tempfile::tempdir().unwrap();
        let right = |wheel: &[u8]| {
            use sha2::Digest as _;
            sha2::Sha256::digest(wheel).iter().map(|byte| format!("{byte:02x}")).collect()
        };
        let (installed, said) = provision(&index(dir.path(), right), &path);
        assert!(installed, "{said}");
        let (installed, said) = provision(&index(dir.path(), |_| "0".repeat(64)), &path);
        assert!(!installed && said.to_lowercase().contains("hash"), "{said}");
    }
}
