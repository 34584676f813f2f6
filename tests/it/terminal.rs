//! Output for people on a terminal and in a log: width, colours, progress. The tests need no libtorch.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A command whose environment has no variables that change the look of the output.
fn plain(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("ZPROBE_") || text.starts_with("CLICOLOR") || text == "NO_COLOR" {
            command.env_remove(name);
        }
    }
    command.env_remove("COLUMNS").env("TERM", "xterm-256color").stdin(Stdio::null());
    command
}

fn diagnose() -> Vec<String> {
    let trace = repository().join("fixtures/traces/rank-dies").display().to_string();
    ["diagnose", &trace, "--exit-zero"].map(str::to_owned).to_vec()
}

/// The arguments of a run whose ranks go through every backward.
fn run(dir: &Path) -> Vec<String> {
    let program = repository().join("fixtures/ranks/stepping.py").display().to_string();
    let out = dir.join("run").display().to_string();
    ["run", "--exit-zero", "--output-format", "concise", "--rank-program", &program, "--out", &out]
        .map(str::to_owned)
        .to_vec()
}

/// The standard output and the standard error of zprobe, neither of which is a terminal.
fn piped(args: &[String], environment: &[(&str, &str)]) -> (String, String) {
    let mut command = plain(env!("CARGO_BIN_EXE_zprobe"));
    let Output { stdout, stderr, .. } =
        command.args(args).envs(environment.iter().copied()).output().unwrap();
    (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// The whole output of zprobe on a terminal with this number of columns.
fn on_terminal(args: &[String], columns: usize, environment: &[(&str, &str)]) -> String {
    let words = [env!("CARGO_BIN_EXE_zprobe").to_owned()].into_iter().chain(args.to_vec());
    let line = shlex::try_join(words.collect::<Vec<_>>().iter().map(String::as_str)).unwrap();
    let output = plain("script")
        .args(["-qec", &format!("stty rows 24 cols {columns}; {line}"), "/dev/null"])
        .envs(environment.iter().copied())
        .output()
        .expect("script(1) of util-linux gives a program a terminal");
    String::from_utf8(output.stdout).unwrap().replace("\r\n", "\n")
}

fn without_codes(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

/// The width of the widest line, except the line with the command, which is there to be copied.
fn widest(text: &str) -> usize {
    let text = without_codes(text);
    let lines = text.lines().filter(|line| !line.starts_with("again: "));
    lines.map(|line| line.chars().count()).max().unwrap_or(0)
}

#[test]
fn a_report_that_is_longer_than_the_screen_ends_with_its_verdict_and_the_next_command() {
    for (fixture, is_long) in [("script-noise", true), ("rank-dies", false)] {
        let trace = repository().join("fixtures/traces").join(fixture).display().to_string();
        let (text, _) = piped(&["show".to_owned(), trace], &[]);
        assert_eq!(text.lines().count() > 24, is_long, "{text}");
        let verdict = text.lines().next().unwrap();
        let repeated: Vec<usize> = text
            .lines()
            .rev()
            .enumerate()
            .filter(|(_, line)| *line == verdict)
            .map(|(at, _)| at)
            .collect();
        assert_eq!(repeated.len(), if is_long { 2 } else { 1 }, "{text}");
        assert!(!is_long || repeated[0] <= 3, "{text}");
    }
}

#[test]
fn a_narrow_terminal_and_columns_make_the_report_narrow() {
    assert!((41..=50).contains(&widest(&on_terminal(&diagnose(), 50, &[]))));
    assert!((41..=50).contains(&widest(&piped(&diagnose(), &[("COLUMNS", "50")]).0)));
    for (columns, text) in [
        (200, on_terminal(&diagnose(), 200, &[])),
        (80, piped(&diagnose(), &[]).0),
        (80, piped(&diagnose(), &[("COLUMNS", "many")]).0),
    ] {
        assert!((71..=80).contains(&widest(&text)), "{columns}: {text}");
    }
}

#[test]
fn a_list_on_a_terminal_has_one_line_for_each_name() {
    let list =
        |words: &[&str]| -> Vec<String> { words.iter().map(|it| (*it).to_owned()).collect() };
    for what in ["rules", "faults", "shapes", "zoo", "probes"] {
        let names = piped(&list(&["list", what]), &[]).0.lines().count();
        let text = on_terminal(&list(&["list", what]), 80, &[]);
        let hints = text.lines().filter(|line| line.starts_with("-v shows")).count();
        assert_eq!((text.lines().count(), hints), (names + 1, 1), "{text}");
        assert!(widest(&text) <= 80, "{text}");
        assert!(!on_terminal(&list(&["list", what, "-v"]), 80, &[]).contains('…'));
    }
}

#[test]
fn colours_are_for_terminals_and_for_those_who_ask_for_them() {
    let on = |environment: &[(&str, &str)]| {
        on_terminal(&diagnose(), 80, environment).contains("\u{1b}[")
    };
    assert!(on(&[]));
    assert!(!on(&[("NO_COLOR", "1")]));
    assert!(!on(&[("CLICOLOR", "0")]));
    let pipe = |environment: &[(&str, &str)]| piped(&diagnose(), environment).0.contains("\u{1b}[");
    assert!(!pipe(&[]));
    assert!(pipe(&[("CLICOLOR_FORCE", "1")]));
    assert!(!pipe(&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]));
}

#[test]
fn no_colour_is_one_that_light_or_dark_terminals_hide() {
    let text = piped(&diagnose(), &[("CLICOLOR_FORCE", "1")]).0;
    // Some terminals hide black and white text, and every background colour.
    for hidden in ["\u{1b}[30m", "\u{1b}[37m", "\u{1b}[97m", "\u{1b}[40m", "\u{1b}[47m"] {
        assert!(!text.contains(hidden), "{hidden:?}");
    }
}

#[test]
fn links_are_for_terminals_that_open_them() {
    let explain = ["explain", "boundary-leak"].map(str::to_owned);
    let link = "\x1b]8;;https://github.com/deepspeedai/DeepSpeed/pull/7985\x1b\\";
    let shown = |environment: &[_]| on_terminal(&explain, 80, environment);
    assert!(shown(&[("FORCE_HYPERLINK", "1")]).contains(link));
    assert!(!shown(&[("FORCE_HYPERLINK", "0")]).contains("\x1b]8"));
    assert!(!shown(&[("FORCE_HYPERLINK", "1"), ("NO_COLOR", "1")]).contains('\x1b'));
    let forced = [("FORCE_HYPERLINK", "1"), ("CLICOLOR_FORCE", "1")];
    assert!(!piped(&explain, &forced).0.contains("\x1b]8"));

    let dir = TempDir::with_prefix("a b").unwrap();
    let text = on_terminal(&run(dir.path()), 80, &[("FORCE_HYPERLINK", "1")]);
    let line = text.lines().find(|line| line.contains("recorded in ")).unwrap();
    let place = dir.path().join("run").display().to_string();
    assert!(line.contains("\x1b]8;;file://"), "{line:?}");
    assert!(
        line.contains(&format!("{}/\x1b\\{place}\x1b]8", place.replace(' ', "%20"))),
        "{line:?}"
    );
}

/// A line of a log without the seconds at its end.
fn without_seconds(line: &str) -> &str {
    let (words, seconds) = line.rsplit_once(" (").unwrap_or((line, ""));
    match seconds.strip_suffix(" s)").is_some_and(|it| it.parse::<f64>().is_ok()) {
        true => words,
        false => line,
    }
}

#[test]
fn a_log_has_a_plain_line_for_each_milestone() {
    let dir = TempDir::new().unwrap();
    let (_, stderr) = piped(&run(dir.path()), &[]);
    let lines: Vec<&str> = stderr.lines().map(without_seconds).collect();
    let recorded = format!("recorded in {}", dir.path().join("run").display());
    assert_eq!(lines, ["2 ranks ready", "step 0 done", "step 1 done", recorded.as_str()]);
}

#[test]
fn a_report_has_the_command_that_makes_the_run_again_without_paths_of_the_machine() {
    let dir = TempDir::new().unwrap();
    let junit = dir.path().join("junit.xml");
    let python = "/an environment/bin/python".to_owned();
    let exported =
        ["--python".to_owned(), python, "--export-junit".to_owned(), junit.display().to_string()];
    piped(&[run(dir.path()), exported.to_vec()].concat(), &[]);
    let report = std::fs::read_to_string(dir.path().join("run/report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["run"]["command"], "zprobe run --engine native --stage 1 --ga 4");
    // On this machine the command also names the interpreter and the rank program.
    let junit = std::fs::read_to_string(junit).unwrap();
    let again = junit.lines().find(|line| line.starts_with("again: ")).unwrap();
    assert!(again.contains("--python ") && again.contains("--rank-program "), "{again}");
}

#[test]
fn a_terminal_has_a_line_for_each_rank_that_is_gone_in_the_end() {
    let dir = TempDir::new().unwrap();
    let text = on_terminal(&run(dir.path()), 80, &[]);
    let end = text.rfind("recorded in").unwrap();
    let (live, left) = text.split_at(end);
    assert!(live.contains("/8 backwards") && live.contains('\u{1b}'), "{text:?}");
    // The live line is erased: the text before the remaining output ends with an empty line.
    assert!(live.ends_with("\u{1b}[2K") || live.ends_with("\u{1b}[J"), "{live:?}");
    assert!(!left.contains("backwards"), "{left:?}");
}

#[test]
fn quiet_leaves_data_and_errors() {
    let dir = TempDir::new().unwrap();
    let (stdout, stderr) = piped(&[run(dir.path()), vec!["--quiet".to_owned()]].concat(), &[]);
    assert_eq!(stderr, "");
    assert!(stdout.starts_with("inconclusive: "), "{stdout}");
    let (_, stderr) = piped(&["-q", "diagnose", "/does/not/exist"].map(str::to_owned), &[]);
    assert!(stderr.starts_with("error: "), "{stderr}");
}

#[test]
fn verbose_tells_what_every_rank_does_and_logs() {
    let dir = TempDir::new().unwrap();
    let (_, stderr) = piped(&[vec!["-v".to_owned()], run(dir.path())].concat(), &[]);
    for line in [
        "rank 0 | loading on rank 0",
        "rank 1 | loading on rank 1",
        "rank 1: step 1, microbatch 3: backward",
        "rank 0: finished",
        "step 1 done",
    ] {
        assert!(stderr.lines().any(|known| without_seconds(known) == line), "{line}: {stderr}");
    }
}

#[test]
fn a_word_that_is_not_unicode_keeps_no_report_from_being_written() {
    use std::os::unix::ffi::OsStrExt as _;

    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join(std::ffi::OsStr::from_bytes(b"p\xffge.xml"));
    let mut command = plain(env!("CARGO_BIN_EXE_zprobe"));
    let output = command.args(diagnose()).arg("--export-junit").arg(&page).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(std::fs::read_to_string(page).unwrap().contains("again: zprobe run --engine native"));
}
