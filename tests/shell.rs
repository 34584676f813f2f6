//! Shell completions and manual pages. Needs no libtorch.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

fn zprobe(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_zprobe")).args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Commands that `zprobe --help` lists.
fn commands() -> BTreeSet<String> {
    let help = zprobe(&["--help"]);
    let (_, listed) = help.split_once("Usage:").unwrap();
    let (listed, _) = listed.split_once("Options:").unwrap();
    let names = listed.lines().filter_map(|line| line.strip_prefix("  "));
    names.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

/// Completions that bash offers for the last of these words.
fn bash(words: &[&str]) -> Vec<String> {
    let [.., before, last] = words else { panic!("{words:?}") };
    let call = format!(
        "COMP_WORDS=({}); COMP_CWORD={}; _zprobe zprobe '{last}' '{before}'\n\
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.iter().map(|word| format!("'{word}' ")).collect::<String>(),
        words.len() - 1,
    );
    let mut bash = Command::new("bash")
        .args(["--norc", "-s"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let script = zprobe(&["completions", "bash"]) + "\n" + &call;
    bash.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let output = bash.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_flags_and_values() {
    assert_eq!(bash(&["zprobe", "sh"]), ["show"]);
    assert_eq!(bash(&["zprobe", "run", "--deepspeed-c"]), ["--deepspeed-config"]);
    let engines = bash(&["zprobe", "run", "--engine", ""]);
    assert_eq!(engines, ["native", "deepspeed", "ddp", "fsdp2", "pipeline"]);
    assert_eq!(bash(&["zprobe", "pool"]), [""; 0], "nobody calls pool-worker");
}

#[test]
fn every_shell_is_told_of_every_command_that_people_call() {
    // How each of them writes that a word is a command.
    let offer = |shell: &str, command: &str| match shell {
        "bash" => format!("zprobe,{command})"),
        "zsh" => format!("\n'{command}:"),
        "fish" => format!("__fish_zprobe_needs_command\" -f -a \"{command}\""),
        "powershell" => format!("[CompletionResult]::new('{command}', '{command}', "),
        "elvish" => format!("cand {command} '"),
        _ => panic!("{shell}"),
    };
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = zprobe(&["completions", shell]);
        for command in commands() {
            let offered = offer(shell, &command);
            assert!(script.contains(&offered), "{shell}: no {offered}");
        }
        assert!(!script.contains("pool-worker"), "{shell}");
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
