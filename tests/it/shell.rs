//! Shell completions and manual pages. The tests need no libtorch.

#![allow(clippy::disallowed_macros, reason = "a skipped test is printed")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

fn zprobe(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_zprobe")).args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The commands that `zprobe --help` lists.
fn commands() -> BTreeSet<String> {
    let help = zprobe(&["--help"]);
    let (_, listed) = help.split_once("Usage:").unwrap();
    let (listed, _) = listed.split_once("Options:").unwrap();
    let names = listed.lines().filter_map(|line| line.strip_prefix("  "));
    names.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

/// The output of a script in a shell with zprobe's completions; `dir` is the working directory. `None` if the
/// shell is not installed.
fn shell(name: &str, script: &str, dir: &Path) -> Option<String> {
    let arguments: &[&str] = match name {
        "bash" => &["--norc", "-s"],
        "zsh" => &["-f", "-s"],
        _ => &["--no-config"],
    };
    let started = Command::new(name)
        .args(arguments)
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut shell = match started {
        Ok(shell) => shell,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("skipped: there is no {name} here, whose completions would be tried");
            return None;
        }
        Err(error) => panic!("{name}: {error}"),
    };
    // An empty function replaces the one that `compinit` would define.
    let before = if name == "zsh" { "compdef() { }\n" } else { "" };
    let script = format!("{before}{}\n{script}\n", zprobe(&["completions", name]));
    shell.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let output = shell.wait_with_output().unwrap();
    assert!(output.status.success(), "{name}");
    Some(String::from_utf8(output.stdout).unwrap())
}

/// The completions that a shell offers for the last word of a line, without their descriptions; `None` if the
/// shell is not installed.
fn offered_in(name: &str, line: &str, dir: &Path) -> Option<Vec<String>> {
    let words: Vec<&str> = line.split(' ').collect();
    let [.., before, last] = &words[..] else { panic!("{line}") };
    let quoted = words.iter().map(|word| format!("'{word}' ")).collect::<String>();
    let script = match name {
        "bash" => format!(
            "COMP_WORDS=({quoted}); COMP_CWORD={}; _clap_complete_zprobe zprobe '{last}' '{before}'\n\
             printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            words.len() - 1,
        ),
        // zsh calls `_describe` with the name of an array.
        "zsh" => format!(
            "_describe() {{ print -l -- ${{(P)3}} }}\nwords=({quoted})\nCURRENT={}\n\
             _clap_dynamic_completer_zprobe || true",
            words.len(),
        ),
        _ => format!("complete -C '{line}'"),
    };
    let text = shell(name, &script, dir)?;
    let about = if name == "zsh" { ':' } else { '\t' };
    let names = text.lines().map(|line| line.split(about).next().unwrap_or_default().to_owned());
    // Some shells append the slash of a directory by themselves.
    let names = names.map(|name| name.trim_end_matches('/').to_owned());
    Some(names.filter(|name| !name.is_empty()).collect())
}

/// The completions that every installed shell offers for the last word of a line.
fn offered(line: &str, dir: &Path) -> Vec<String> {
    let mut all = ["bash", "zsh", "fish"].into_iter().filter_map(|name| {
        let offered = offered_in(name, line, dir)?;
        Some((name, offered))
    });
    let (_, first) = all.next().expect("bash");
    for (name, offered) in all {
        assert_eq!(offered, first, "{name}: {line}");
    }
    first
}

#[test]
fn shells_complete_commands_flags_and_values() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert_eq!(offered("zprobe sh", here), ["show"]);
    assert_eq!(offered("zprobe run --deepspeed-c", here), ["--deepspeed-config"]);
    let engines = offered("zprobe run --engine ", here);
    assert_eq!(
        engines,
        ["native", "deepspeed", "ddp", "fsdp1", "fsdp2", "pipeline", "zero-redundancy"]
    );
    assert_eq!(offered("zprobe pool", here), [""; 0], "nobody calls pool-worker");
    assert_eq!(offered("zprobe list sh", here), ["shapes"]);
    assert_eq!(offered("zprobe run --shape unused-f", here), ["unused-first"]);
    assert_eq!(offered("zprobe run --inject boundary-", here), ["boundary-leak"]);
}

#[test]
fn shells_complete_the_names_that_zprobe_knows() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert_eq!(offered("zprobe explain ZP101", here), ["ZP101"]);
    // A known bug, a fault and a rule have this name.
    assert_eq!(offered("zprobe explain boundary-l", here), ["boundary-leak"]);
    assert_eq!(offered("zprobe explain zp60", here)[0], "ZP601");
    assert_eq!(offered("zprobe zoo boundary-l", here), ["boundary-leak"]);
    assert_eq!(offered("zprobe run --minimise ZP101", here), ["ZP101"]);
    assert!(offered("zprobe check ", here).len() > 10);
}

#[test]
fn shells_complete_the_flags_that_the_engine_has() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let offered = |line| offered(line, here).into_iter().collect::<BTreeSet<_>>();
    let set = |flags: [&str; 2]| flags.map(str::to_owned).into();
    assert_eq!(offered("zprobe run --engine ddp --st"), set(["--steps", "--static-graph"]));
    assert_eq!(offered("zprobe run --engine deepspeed --st"), set(["--stage", "--steps"]));
}

#[test]
fn shells_complete_recorded_runs_with_the_newest_first_and_else_paths() {
    let dir = tempfile::tempdir().unwrap();
    let trace =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/traces/boundary-leak/trace.jsonl");
    let now = std::time::SystemTime::now();
    for (name, age) in [("20260101T000000Z-1", 0), ("20260102T000000Z-2", 60), ("evil;name", 9)] {
        let run = dir.path().join(".zprobe/runs").join(name);
        fs::create_dir_all(&run).unwrap();
        fs::copy(&trace, run.join("trace.jsonl")).unwrap();
        let written = fs::File::options().write(true).open(run.join("trace.jsonl")).unwrap();
        written.set_modified(now - std::time::Duration::from_secs(age)).unwrap();
    }
    let runs = ["20260101T000000Z-1", "20260102T000000Z-2", "latest"];
    assert_eq!(offered_in("bash", "zprobe show ", dir.path()).unwrap()[..3], runs);
    assert_eq!(offered("zprobe show 20260102", dir.path()), runs[1..2]);
    assert_eq!(offered("zprobe compare la", dir.path()), runs[2..]);
    assert_eq!(offered("zprobe show .zprobe/ru", dir.path()), [".zprobe/runs"]);
    fs::create_dir(dir.path().join("elsewhere")).unwrap();
    assert_eq!(offered("zprobe show elsew", dir.path()), ["elsewhere"]);
}

#[test]
fn every_shell_has_a_script_that_asks_zprobe() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = zprobe(&["completions", shell]);
        assert!(script.contains("ZPROBE_COMPLETE"), "{shell}: {script}");
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("man1");
    assert_eq!(zprobe(&["man", "--out-dir", out.to_str().unwrap()]), "");
    let written: BTreeSet<String> = fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut expected: BTreeSet<String> =
        commands().iter().map(|command| format!("zprobe-{command}.1")).collect();
    expected.insert("zprobe.1".to_owned());
    assert_eq!(written, expected);
    for command in commands() {
        let page = fs::read_to_string(out.join(format!("zprobe-{command}.1"))).unwrap();
        assert_eq!(zprobe(&["man", &command]), page);
        assert!(page.contains(&format!("zprobe {}", env!("CARGO_PKG_VERSION"))), "{page}");
    }
}

#[test]
fn the_manual_names_flags_their_variables_and_exit_codes() {
    // Dashes are escaped, so that they can be copied.
    let page = |args: &[&str]| zprobe(args).replace("\\-", "-");
    let run = page(&["man", "run"]);
    assert!(run.contains("--grad-accum-dtype") && run.contains("ZPROBE_GRAD_ACCUM_DTYPE"), "{run}");
    let zprobe = page(&["man"]);
    assert!(zprobe.contains("zprobe-run(1)") && zprobe.contains("inconclusive"), "{zprobe}");
}
