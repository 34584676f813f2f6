//! Tests of the precedence of flags, variables and configuration files, and of the errors for wrong files.

use clap::FromArgMatches as _;
use clap::builder::Resettable;
use tempfile::TempDir;

use super::*;
use crate::cli::{Cli, Command as Chosen};

/// A temporary directory with these files, given by name and text.
fn files(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

/// The configuration file that is found from a directory inside `dir`.
fn find(dir: &TempDir, from: &str) -> Result<Option<Config>> {
    Choice::default().find(&dir.path().join(from))
}

/// zprobe's clap command, in which `run` and `check` read no environment variables.
fn command() -> Command {
    use clap::CommandFactory as _;
    let without = |section: Command| section.mut_args(|arg| arg.env(Resettable::Reset));
    Cli::command().mut_subcommand("run", without).mut_subcommand("check", without)
}

/// The specification of `zprobe run` with the flags `words` and the configuration file of `dir`.
fn spec(dir: &TempDir, words: &[&str]) -> Result<zprobe_model::spec::RunSpec> {
    spec_of(command(), dir, words)
}

fn spec_of(command: Command, dir: &TempDir, words: &[&str]) -> Result<zprobe_model::spec::RunSpec> {
    let config = find(dir, "")?.expect("a configuration");
    let matches =
        config.layer(command)?.try_get_matches_from([&["zprobe", "run"], words].concat())?;
    match Cli::from_arg_matches(&matches)?.command {
        Chosen::Run(args) => args.spec(),
        _ => panic!("another command"),
    }
}

fn complaint(text: &str) -> String {
    let dir = files(&[(FILE, text)]);
    let error = spec(&dir, &[]).expect_err(text);
    format!("{error:#}").replace(&format!("{}/", dir.path().display()), "")
}

#[test]
fn the_closest_file_wins_and_zprobe_s_own_before_a_shared_one() {
    let own = "[tool.zprobe.run]\nga = 3\n";
    let dir = files(&[
        ("zprobe.toml", ""),
        ("a/pyproject.toml", own),
        ("a/b/pyproject.toml", "[tool.ruff]\nline-length = 100\n"),
        ("c/pyproject.toml", own),
        ("c/zprobe.toml", ""),
        ("d/x", ""),
    ]);
    for (from, expected) in [
        ("a/b", "a/pyproject.toml"),
        ("a", "a/pyproject.toml"),
        ("c", "c/zprobe.toml"),
        ("d", "zprobe.toml"),
        ("d/not/there", "zprobe.toml"),
    ] {
        let path = find(&dir, from).unwrap().unwrap().path;
        assert_eq!(path.strip_prefix(dir.path()).unwrap(), Path::new(expected), "from {from}");
    }
}

#[test]
fn a_flag_wins_over_the_environment_and_that_over_the_file_and_that_over_the_default() {
    let dir = files(&[(FILE, "[run]\nga = 3\nsteps = 5\nseed = 7\n")]);
    // clap stores a variable's value with the flag. The test uses PATH, because it is always set.
    let path: &'static str = Box::leak(std::env::var("PATH").unwrap().into_boxed_str());
    let with_variable = command().mut_subcommand("run", |run| {
        run.mut_arg("out", |arg| arg.env("PATH")).mut_arg("steps", |arg| arg)
    });
    let spec = spec_of(with_variable.clone(), &dir, &["--ga", "2"]).unwrap();
    let values = (spec.gradient_accumulation_steps, spec.steps, spec.seed, spec.stage);
    assert_eq!(values, (2, 5, 7, 1));

    let out = files(&[(FILE, "[run]\nout = 'of-the-file'\n")]);
    let config = find(&out, "").unwrap().unwrap();
    let layered = config.layer(with_variable).unwrap();
    let matches = layered.try_get_matches_from(["zprobe", "run"]).unwrap();
    let run = matches.subcommand_matches("run").unwrap();
    assert_eq!(run.get_one::<PathBuf>("out").unwrap(), Path::new(path));
}

#[test]
fn every_kind_of_value_can_stand_in_a_file() {
    let dir = files(&[(
        FILE,
        "[run]\nengine = 'ddp'\nshape = ['tied', 'frozen']\ngradient-as-bucket-view = true\n\
         gradient_clipping = 0.5\nnproc-per-node = 3\ngradient-accumulation-steps = 6\n\
         exit-zero = true\noutput-format = 'junit'\n",
    )]);
    let spec = spec(&dir, &[]).unwrap();
    assert_eq!((spec.world_size, spec.gradient_accumulation_steps), (3, 6));
    assert_eq!((spec.shapes.len(), spec.gradient_clipping), (2, 0.5));
    assert!(spec.ddp().unwrap().gradient_as_bucket_view);
}

#[test]
fn paths_are_meant_from_the_file_and_programs_from_the_search_path() {
    let dir = files(&[
        (
            FILE,
            "[run]\nout = 'runs'\npython = 'python3'\n[check]\npython = 'venv/bin/python'\nprobes = ['ci', 'stage1-bf16']\n",
        ),
        ("ci/own.toml", ""),
    ]);
    let config = find(&dir, "ci").unwrap().unwrap();
    let layered = config.layer(command()).unwrap();
    let of = |name: &str| {
        let matches = layered.clone().try_get_matches_from(["zprobe", name]).unwrap();
        matches.subcommand_matches(name).unwrap().clone()
    };
    let (run, check) = (of("run"), of("check"));
    let path = |matches: &ArgMatches, id: &str| matches.get_one::<PathBuf>(id).unwrap().clone();
    assert_eq!(path(&run, "out"), dir.path().join("runs"));
    assert_eq!(path(&run, "python"), Path::new("python3"));
    assert_eq!(path(&check, "python"), dir.path().join("venv/bin/python"));
    let probes: Vec<&String> = check.get_many("probes").unwrap().collect();
    assert_eq!(probes, [dir.path().join("ci").to_str().unwrap(), "stage1-bf16"]);
}

#[test]
fn complaints_name_the_place_and_what_was_probably_meant() {
    let complaints = [
        "[rnu]\nga = 2\n",
        "[run]\nstgae = 2\n",
        "[run]\nstage = 2\n[check]\nfail-fats = true\n",
        "[run]\nstage = 'two'\n",
        "[run]\ndtype = 'bf17'\n",
        "[run]\nga = [1, 2]\n",
        "[run]\nexit-zero = 'yes'\n",
        "[run]\nga = { n = 2 }\n",
        "[run]\nconfig = 'other.toml'\n",
        "ga = 2\n",
        "[run]\nga = \n",
    ]
    .map(complaint);
    insta::assert_snapshot!(complaints.join("\n"));
}

#[test]
fn a_file_that_is_named_must_be_there_and_say_something() {
    let dir = files(&[("pyproject.toml", "[tool.ruff]\n")]);
    for name in ["missing.toml", "pyproject.toml"] {
        let choice = Choice { config: Some(dir.path().join(name)), no_config: false };
        let error = choice.find(dir.path()).unwrap_err().to_string();
        assert!(error.contains("there is no such file, or it has no [tool.zprobe]"), "{error}");
    }
}
