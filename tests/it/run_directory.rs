//! Run directories of strangers, and run directories into which a stranger has put files beforehand. The
//! tests need no libtorch.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tempfile::TempDir;
use zprobe_model::trace::Trace;

/// The content of a user's file, which must not be copied to any other file.
const PRIVATE: &str = "root:x:0:0:root";

/// A Python module that leaves files if it is executed.
const MODULE: &str = "open('/proc/self/cwd/IMPORTED', 'w').close()\nimport os\nopen(os.environ['MARK'], 'w').close()\n";

struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { dir: TempDir::new().unwrap() };
        fs::write(place.path("private"), PRIVATE).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zprobe"));
        command.args(args).current_dir(self.dir.path()).stdin(Stdio::null());
        command.env("MARK", self.path("mark")).env("ZPROBE_DEVICE", "cpu");
        command
    }

    fn zprobe(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// The standard error of a refused command, which must leave the private file unchanged.
    fn refusal(&self, args: &[&str]) -> String {
        let output = self.zprobe(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.starts_with("error: "), "{args:?}: {said}");
        assert_eq!(fs::read_to_string(self.path("private")).unwrap(), PRIVATE, "{args:?}");
        said
    }

    /// Writes `run`, a run directory that a stranger has recorded.
    fn recorded(&self) -> PathBuf {
        let run = self.path("run");
        fs::create_dir(&run).unwrap();
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/traces");
        fs::copy(fixtures.join("rank-dies/trace.jsonl"), run.join("trace.jsonl")).unwrap();
        run
    }
}

/// The arguments of a run whose ranks accept everything.
fn run(out: &str) -> Vec<String> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/ranks/minimal.py");
    ["run", "--no-config", "--exit-zero", "--rank-program", program.to_str().unwrap(), "--out", out]
        .map(str::to_owned)
        .to_vec()
}

fn words(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

#[test]
fn what_was_put_into_a_run_directory_is_not_run() {
    let place = Place::new();
    for (out, file) in
        [("a", "rank-program/json.py"), ("b", "json.py"), ("c", "pool/rank-program/json.py")]
    {
        let file = place.path(out).join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, MODULE).unwrap();
        for more in [&[][..], &["--repeat", "2"]] {
            let args = run(out);
            let said = place.refusal(&[&words(&args)[..], more].concat());
            assert!(said.contains("is not empty") && said.contains("--out"), "{said}");
        }
    }
    assert!(!place.path("mark").exists());
}

#[test]
fn modules_in_the_working_directory_are_not_imported() {
    let place = Place::new();
    for module in ["json", "torch", "importlib", "platform", "venv", "ctypes"] {
        fs::write(place.path(&format!("{module}.py")), MODULE).unwrap();
    }
    for args in [
        &["doctor", "--python", "python3"][..],
        &["list", "engines", "--python", "python3"],
        &["run", "--no-config", "--engine", "ddp", "--python", "python3"],
    ] {
        place.zprobe(args);
        assert!(!place.path("mark").exists(), "{args:?}");
    }
    let run = place.recorded();
    let output = place.zprobe(&["report", run.to_str().unwrap(), "--python", "python3", "--force"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!place.path("mark").exists());
}

#[test]
fn no_link_in_a_run_directory_is_written_through() {
    let place = Place::new();
    for (out, name) in [
        ("a", "trace.jsonl"),
        ("b", "report.json"),
        ("c", "rank-0.stderr.log"),
        ("d", "host.stdout.log"),
        ("e", "rank-program"),
        ("f", "repeat-0"),
    ] {
        fs::create_dir(place.path(out)).unwrap();
        symlink(place.path("private"), place.path(out).join(name)).unwrap();
        let said = place.refusal(&words(&run(out)));
        assert!(said.contains("is not empty") || said.contains("holds a recorded run"), "{said}");
    }
    fs::create_dir(place.path("elsewhere")).unwrap();
    symlink("elsewhere", place.path("link")).unwrap();
    symlink("missing", place.path("nowhere")).unwrap();
    for out in ["link", "link/", "nowhere", "private"] {
        let said = place.refusal(&words(&run(out)));
        assert!(said.contains("link") || said.contains("directory"), "{out}: {said}");
    }
    assert_eq!(fs::read_dir(place.path("elsewhere")).unwrap().count(), 0);
    assert!(!place.path("missing").exists());
}

#[test]
fn other_commands_do_not_write_into_what_somebody_has_prepared_either() {
    let place = Place::new();
    fs::create_dir(place.path("victim")).unwrap();
    fs::write(place.path("victim/file"), PRIVATE).unwrap();
    fs::create_dir(place.path("out")).unwrap();
    for name in ["native", "own", "a"] {
        symlink("../victim", place.path("out").join(name)).unwrap();
    }
    fs::write(place.path("own.toml"), "name = 'own'\ntitle = 'Own'\nsummary = 'x'\ncause = 'x'\nworkaround = 'x'\nlinks = []\nengine = 'native'\nrun = ['--rank-program', 'true']\nrelease = [{ expect = 'clean' }]\n").unwrap();
    for args in [
        &["check", "--no-config", "--out", "out"][..],
        &["zoo", "own.toml", "--out", "out"],
        &["compare", "--a", "--rank-program true", "--b", "--rank-program true", "--out", "out"],
    ] {
        place.refusal(args);
        assert_eq!(fs::read_to_string(place.path("victim/file")).unwrap(), PRIVATE, "{args:?}");
    }
    assert_eq!(fs::read_dir(place.path("victim")).unwrap().count(), 1);
}

#[test]
fn a_run_is_recorded_for_this_user_alone() {
    let place = Place::new();
    fs::create_dir(place.path("empty")).unwrap();
    for out in ["new/below", "empty"] {
        let output = place.zprobe(&words(&run(out)));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&place.path(out)), 0o700);
        for entry in fs::read_dir(place.path(out)).unwrap() {
            let path = entry.unwrap().path();
            assert_eq!(mode(&path) & 0o077, 0, "{}", path.display());
        }
        let said = place.refusal(&words(&run(out)));
        assert!(said.contains("holds a recorded run") && said.contains("zprobe clean"), "{said}");
    }
}

#[test]
fn a_run_that_could_not_start_leaves_its_directory_as_it_was() {
    let place = Place::new();
    fs::create_dir(place.path("empty")).unwrap();
    for out in ["new", "empty"] {
        let there = place.path(out).exists();
        place.refusal(&["run", "--no-config", "--rank-program", "/does/not/exist", "--out", out]);
        assert_eq!(place.path(out).exists(), there);
        assert!(!there || fs::read_dir(place.path(out)).unwrap().count() == 0);
    }
}

#[test]
fn of_two_runs_with_one_directory_one_is_recorded_and_the_other_refused() {
    for round in 0..4 {
        let place = Place::new();
        if round % 2 == 0 {
            fs::create_dir(place.path("out")).unwrap();
        }
        let start = || -> Child {
            let args = run("out");
            let mut command = place.command(&words(&args));
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let both = [start(), start(), start()];
        let outputs = both.map(|child| child.wait_with_output().unwrap());
        let mut codes = outputs.each_ref().map(|output| output.status.code().unwrap());
        codes.sort_unstable();
        let said = outputs.each_ref().map(|it| String::from_utf8_lossy(&it.stderr).into_owned());
        assert_eq!(codes, [0, 2, 2], "{said:#?}");
        let trace = Trace::read(&place.path("out")).unwrap();
        let run = &trace.records[0].run;
        assert!(trace.records.iter().all(|record| record.run == *run));
        assert!(place.path("out/report.json").is_file());
    }
}

#[test]
fn nothing_outside_of_a_strangers_run_directory_is_read() {
    let place = Place::new();
    let dir = place.recorded();
    for name in ["rank-0.stderr.log", "host.stdout.log"] {
        symlink(place.path("private"), dir.join(name)).unwrap();
    }
    let output = place.zprobe(&["report", "run", "--out", "a.zip", "--force"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut zip = zip::ZipArchive::new(fs::File::open(place.path("a.zip")).unwrap()).unwrap();
    for at in 0..zip.len() {
        let mut file = zip.by_index(at).unwrap();
        assert!(
            !std::io::read_to_string(&mut file).unwrap().contains(PRIVATE),
            "{:?}",
            file.name()
        );
    }
    symlink(place.path("private"), dir.join("minimised.json")).unwrap();
    assert!(place.refusal(&["diagnose", "run"]).contains("symbolic link"));
    fs::remove_file(dir.join("minimised.json")).unwrap();
    // The links replace the trace of the run, and the trace of a repeat.
    fs::rename(dir.join("trace.jsonl"), place.path("trace.jsonl")).unwrap();
    symlink(place.path("trace.jsonl"), dir.join("trace.jsonl")).unwrap();
    for command in ["diagnose", "report"] {
        assert!(place.refusal(&[command, "run"]).contains("symbolic link"));
    }
    assert!(place.refusal(&["compare", "run", "run"]).contains("symbolic link"));
    fs::remove_file(dir.join("trace.jsonl")).unwrap();
    fs::create_dir(place.path("elsewhere")).unwrap();
    fs::rename(place.path("trace.jsonl"), place.path("elsewhere/trace.jsonl")).unwrap();
    symlink("../elsewhere", dir.join("repeat-0")).unwrap();
    place.refusal(&["diagnose", "run"]);
}

#[test]
fn nobody_waits_for_a_pipe_or_a_device_in_a_strangers_run_directory() {
    let place = Place::new();
    let dir = place.recorded();
    mkfifo(&dir.join("rank-0.stderr.log"), Mode::S_IRWXU).unwrap();
    let output = place.zprobe(&["report", "run", "--out", "a.zip", "--force"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    mkfifo(&dir.join("minimised.json"), Mode::S_IRWXU).unwrap();
    assert!(place.refusal(&["diagnose", "run"]).contains("not a regular file"));
    fs::remove_file(dir.join("minimised.json")).unwrap();
    fs::remove_file(dir.join("trace.jsonl")).unwrap();
    mkfifo(&dir.join("trace.jsonl"), Mode::S_IRWXU).unwrap();
    assert!(place.refusal(&["diagnose", "run"]).contains("not a regular file"));
    fs::remove_file(dir.join("trace.jsonl")).unwrap();
    symlink("/dev/zero", dir.join("trace.jsonl")).unwrap();
    place.refusal(&["diagnose", "run"]);
}

#[test]
fn a_line_without_an_end_does_not_take_all_memory() {
    let place = Place::new();
    let dir = place.recorded();
    // The file is sparse: it is as long as a disk, and takes no space.
    fs::File::create(dir.join("trace.jsonl")).unwrap().set_len(1 << 36).unwrap();
    assert!(place.refusal(&["diagnose", "run"]).contains("longer than"));
    fs::copy(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/traces/rank-dies/trace.jsonl"),
        dir.join("trace.jsonl"),
    )
    .unwrap();
    fs::File::create(dir.join("minimised.json")).unwrap().set_len(1 << 36).unwrap();
    assert!(place.refusal(&["diagnose", "run"]).contains("more than"));
}
