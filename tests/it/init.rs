//! `zprobe init`: zprobe accepts the written files, and no existing file is lost. The tests need no torch: a
//! program replaces a Python that has engines. `tests/ci` checks the workflow.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};

use tempfile::TempDir;

/// The answer of a Python with all engines.
const DEEPSPEED: &str = r#"{"executable": "stand-in", "version": "3.12.4", "torch": {"value":
"2.11.0+cu130"}, "ddp": {"value": true}, "fsdp2": {"value": true}, "deepspeed": {"value": "0.19.8"}}"#;

/// The answer of a Python that has only torch.
const TORCH: &str = r#"{"executable": "stand-in", "version": "3.10.2", "torch": {"value": "2.6.0"},
"ddp": {"value": true}, "fsdp2": {"problem": "ImportError: too old"},
"deepspeed": {"problem": "ModuleNotFoundError: No module named 'deepspeed'"}}"#;

/// A DeepSpeed file that this machine can run.
const SOUND: &str = r#"{"bf16": {"enabled": true}, "zero_optimization": {"stage": 2},
"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4}"#;

/// The root of a repository, with a Python in `venv`.
struct Project(TempDir);

impl Project {
    fn new(facts: &str) -> Self {
        let project = Self(tempfile::tempdir().unwrap());
        fs::create_dir(project.path(".git")).unwrap();
        project.write("venv/pyvenv.cfg", "");
        project.write("venv/bin/python", &format!("#!/bin/sh\ncat <<'END'\n{facts}\nEND\n"));
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(project.path("venv/bin/python"), executable).unwrap();
        project
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    fn zprobe(&self, words: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zprobe"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ZPROBE_") {
                command.env_remove(name);
            }
        }
        command.args(words.split(' ')).current_dir(self.0.path()).output().unwrap()
    }

    /// The standard output and the standard error of a command that succeeds.
    fn said(&self, words: &str) -> (String, String) {
        let output = self.zprobe(words);
        let [stdout, stderr] =
            [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        assert!(output.status.success(), "{words}: {stderr}");
        (stdout, stderr)
    }

    /// The standard error of a command that ends with exit code 2.
    fn refusal(&self, words: &str) -> String {
        let output = self.zprobe(words);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{words}: {stderr}");
        stderr
    }

    /// The sorted names of all files outside of `venv` and `.git`.
    fn files(&self) -> Vec<String> {
        let pattern = format!("{}/**/*", self.0.path().display());
        let files = glob::glob(&pattern).unwrap().map(Result::unwrap).filter(|it| it.is_file());
        let names = files.map(|it| it.strip_prefix(self.0.path()).unwrap().display().to_string());
        let mut names: Vec<String> = names.filter(|name| !name.starts_with("venv")).collect();
        names.sort();
        names
    }
}

#[test]
fn the_configuration_that_is_written_selects_the_probe_of_the_projects_own_file() {
    let project = Project::new(DEEPSPEED);
    project.write("conf/ds.json", SOUND);
    project.write("broken.json", "{\"zero_optimization\": ");
    let (_, said) = project.said("init --python venv");
    assert!(
        said.contains("left out: broken.json: this DeepSpeed configuration cannot be run"),
        "{said}"
    );
    assert!(said.ends_with("next: zprobe check\n"), "{said}");
    assert!(project.read("zprobe.toml").contains("\npython = \"venv/bin/python\"\n"));

    let (listed, _) = project.said("check --list");
    assert_eq!(listed.lines().count(), 1, "{listed}");
    assert!(listed.contains("deepspeed/conf-ds"), "{listed}");
    assert!(listed.contains("--deepspeed-config probes/../conf/ds.json"), "{listed}");
}

#[test]
fn without_a_file_of_the_projects_own_the_standard_suite_is_selected_on_what_is_installed() {
    let project = Project::new(TORCH);
    project.said("init --python venv");
    let (listed, _) = project.said("check --list");
    assert!(listed.lines().count() > 10, "{listed}");
    assert!(!listed.contains("deepspeed/") && !listed.contains("native/"), "{listed}");
    let workflow = project.read(".github/workflows/zprobe.yml");
    assert!(workflow.contains("python-version: \"3.10\""), "{workflow}");
    assert!(workflow.contains("torch==2.6.0 "), "{workflow}");
    assert!(!workflow.contains("requirements.txt"), "{workflow}");
}

#[test]
fn nothing_that_is_there_is_replaced_before_force_says_so() {
    for name in ["zprobe.toml", ".github/workflows/zprobe.yml", "probes/ds.toml"] {
        let project = Project::new(DEEPSPEED);
        project.write("ds.json", SOUND);
        project.write(name, "# mine\n");
        let before = project.files();
        let refusal = project.refusal("init --python venv");
        assert!(refusal.contains(&format!("error: {name} is there already")), "{refusal}");
        assert_eq!(project.files(), before);
        assert_eq!(project.read(name), "# mine\n");
        project.said("init --python venv --force");
        assert!(!project.read(name).contains("# mine"), "{name}");
    }
}

#[test]
fn hooks_that_are_there_are_not_replaced_even_by_force() {
    let project = Project::new(DEEPSPEED);
    project.write(".pre-commit-config.yaml", "repos: []\n");
    let refusal = project.refusal("init --python venv --pre-commit --force");
    assert!(
        refusal.contains("add this to it") && refusal.contains("id: zprobe-check"),
        "{refusal}"
    );
    assert_eq!(project.files(), [".pre-commit-config.yaml"]);
}

#[test]
fn hooks_may_come_after_the_gate() {
    let project = Project::new(DEEPSPEED);
    project.said("init --python venv");
    project.write("zprobe.toml", "# mine\n");
    project.said("init --python venv --pre-commit");
    assert!(project.read(".pre-commit-config.yaml").contains("id: zprobe-check"));
    assert_eq!(project.read("zprobe.toml"), "# mine\n");
}

#[test]
fn settings_in_a_file_that_others_share_are_not_overruled_unseen() {
    let project = Project::new(DEEPSPEED);
    project.write("pyproject.toml", "[tool.zprobe.check]\nengine = ['ddp']\n");
    let refusal = project.refusal("init --python venv");
    assert!(refusal.contains("pyproject.toml already has settings of zprobe"), "{refusal}");
}

#[test]
fn a_dry_run_prints_what_would_be_written_and_writes_nothing() {
    let project = Project::new(DEEPSPEED);
    let (printed, _) = project.said("init --python venv --pre-commit --dry-run");
    assert_eq!(project.files(), [""; 0]);
    project.said("init --python venv --pre-commit");
    let names = ["zprobe.toml", ".github/workflows/zprobe.yml", ".pre-commit-config.yaml"];
    let files = names.map(|name| format!("==> {name} <==\n{}", project.read(name)));
    assert_eq!(printed, files.join("\n"));
}

#[test]
fn a_gate_of_no_engine_and_one_that_github_would_not_read_are_refused() {
    let project = Project::new(DEEPSPEED);
    fs::create_dir(project.path("part")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_zprobe"))
        .arg("init")
        .current_dir(project.path("part"))
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("the workflow belongs in the root of the repository"), "{said}");

    let bare = r#"{"executable": "x", "version": "3.12.4",
        "torch": {"problem": "ModuleNotFoundError: No module named 'torch'"}}"#;
    let refusal = Project::new(bare).refusal("init --python venv");
    assert!(refusal.contains("No module named 'torch'; install torch"), "{refusal}");
}

#[test]
fn a_training_script_becomes_the_probe_of_the_gate() {
    let project = Project::new(TORCH);
    project.write("src/train.py", "");
    let init = |command: &str| {
        let mut zprobe = Command::new(env!("CARGO_BIN_EXE_zprobe"));
        let words = ["init", "--python", "venv", "--script", command];
        let output = zprobe.args(words).current_dir(project.0.path()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (command, said) in [
        ("torchrun trian.py", "--script: there is no file trian.py"),
        ("torchrun 'src/train.py", "--script: command: a quote does not end"),
        ("", "--script: command: is empty"),
    ] {
        let (code, stderr) = init(command);
        assert!(code == Some(2) && stderr.contains(said), "{command}: {stderr}");
    }
    assert!(project.files().iter().all(|name| name == "src/train.py"), "{:?}", project.files());

    let (code, stderr) = init("torchrun --nproc-per-node 2 src/train.py --lr '1 '");
    assert_eq!(code, Some(0), "{stderr}");
    let (listed, _) = project.said("check --list");
    let expected = "script/src-train  PATH=$PWD/venv/bin:$PATH zprobe exec -- torchrun --nproc-per-node 2 \
                    src/train.py --lr '1 '\n";
    assert_eq!(listed, expected);

    // With a DeepSpeed file, both are checked, and each has a probe of its own.
    let project = Project::new(DEEPSPEED);
    project.write("train.json", SOUND);
    project.write("train.py", "");
    let (_, said) = project.said("init --python venv");
    assert!(said.contains("note: a probe with [exec] checks your own script; "), "{said}");
    let (_, said) = project.said("init --python venv --force --script train.py");
    assert!(!said.contains("note: a probe with [exec]"), "{said}");
    let (listed, _) = project.said("check --list");
    let cases: Vec<&str> = listed.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(cases, ["deepspeed/train", "script/train-2"]);
}
