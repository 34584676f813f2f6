//! The TOML files that people write: zprobe.toml, probes, rows of the zoo, baselines.

use std::fs;

use anyhow::{Context as _, Result};

use super::{OF_A_LIST, OF_A_RUN, Question, run};
use crate::chaos::Case;
use crate::workspace;

/// TOML values, each valid for some key and wrong for most.
const VALUES: &[&str] = &[
    "1",
    "0",
    "-1",
    "2",
    "9223372036854775807",
    "99999999999999999999",
    "1.5",
    "nan",
    "inf",
    "true",
    "\"\"",
    "\"bf16\"",
    "\"../../etc/passwd\"",
    "\"\\u001b]52;c;eHl6\\u0007\"",
    "\"\\u202e\"",
    "[]",
    "[1, 2]",
    "[\"native\"]",
    "[\"native\", 3]",
    "{}",
    "{ a = { b = 1 } }",
    "1979-05-27",
    "'''\n::error::injected\n'''",
    "",
    "=",
];

/// The call of a run with a `zprobe.toml` in its directory, or of a check with a `pyproject.toml`.
pub fn configuration(case: &mut Case) -> Result<Question> {
    let keys =
        ["stage", "ga", "nproc-per-node", "dtype", "shape", "timeout", "seed", "jobs", "no-such"];
    let sections = ["[run]", "[check]", "[run]", "[other]", ""];
    let mut text = format!("{}\n", case.one_of(&sections));
    for _ in 0..case.rng.usize(1..4) {
        text += &format!("{} = {}\n", case.one_of(&keys), case.one_of(VALUES));
    }
    let text = damaged(case, text);
    if case.rng.bool() {
        write(case, "zprobe.toml", &text)?;
        let words: &[&str] = &["--nproc-per-node", "2", "--repeat", "1", "--timeout", "5"];
        Ok(Question { call: run(case)?.args(words), named: None, codes: OF_A_RUN })
    } else {
        write(case, "pyproject.toml", &text.replace('[', "[tool.zprobe."))?;
        Ok(Question { call: case.zprobe(["check", "--list"])?, named: None, codes: OF_A_LIST })
    }
}

/// The call of `zprobe check` on a user-defined probe.
pub fn probe(case: &mut Case) -> Result<Question> {
    let base = "description = \"Own\"\nengines = [\"native\"]\n\n[run]\nstage = 2\nga = 2\n";
    let keys =
        ["description", "engines", "run", "stage", "shape", "expect", "dtype", "seed", "out"];
    let text = changed(case, base, &keys);
    write(case, "own.toml", &text)?;
    Ok(Question {
        call: case.zprobe(["check", "--list", "own.toml"])?,
        named: None,
        codes: OF_A_LIST,
    })
}

/// The call of `zprobe zoo` on a user-defined row.
pub fn zoo_row(case: &mut Case) -> Result<Question> {
    let path = workspace::root().join("probes/zoo/bf16-asserts-on-infinity.toml");
    let base = fs::read_to_string(path).context("cannot read the zoo's row of this campaign")?;
    let keys =
        ["name", "title", "links", "engine", "run", "known", "expect", "packages", "message"];
    let text = changed(case, &base, &keys);
    write(case, "bf16-asserts-on-infinity.toml", &text)?;
    let call = case.zprobe(["zoo", "--list", "./bf16-asserts-on-infinity.toml"])?;
    Ok(Question { call, named: None, codes: OF_A_LIST })
}

/// The call of `zprobe check` with a baseline.
pub fn baseline(case: &mut Case) -> Result<Question> {
    let base =
        "[[accept]]\ncode = \"ZP101\"\nprobe = \"*\"\nreason = \"known\"\nexpires = 2030-01-01\n";
    let keys = ["code", "probe", "reason", "expires", "rank", "param", "accept"];
    let text = changed(case, base, &keys);
    write(case, "baseline.toml", &text)?;
    let call = case.zprobe(["check", "--list", "--baseline", "baseline.toml"])?;
    Ok(Question { call, named: None, codes: OF_A_LIST })
}

/// A file in which the value of one key is changed, or to which a line is added.
fn changed(case: &mut Case, base: &str, keys: &[&str]) -> String {
    let (key, value) = (*case.one_of(keys), *case.one_of(VALUES));
    let mut found = false;
    let mut lines: Vec<String> = Vec::new();
    for line in base.lines() {
        let is_it = line.split('=').next().is_some_and(|name| name.trim() == key) && !found;
        found |= is_it;
        lines.push(if is_it { format!("{key} = {value}") } else { line.to_owned() });
    }
    if !found {
        let at = case.rng.usize(..=lines.len());
        lines.insert(at, format!("{key} = {value}"));
    }
    damaged(case, lines.join("\n") + "\n")
}

/// The text; in one of four cases with damage that no parser expects.
fn damaged(case: &mut Case, mut text: String) -> String {
    match case.rng.u8(..28) {
        0 => text.insert(0, '\u{feff}'),
        1 => text.insert_str(0, &"[a]\n".repeat(3)),
        2 => text += &format!("deep = {}{}\n", "[".repeat(20_000), "]".repeat(20_000)),
        3 => text += &format!("long = \"{}\"\n", "x".repeat(1 << 20)),
        4 => text.truncate(text.len() / 2),
        5 => text.insert(text.len() / 2, '\0'),
        6 => text = text.replace('\n', "\r"),
        _ => {}
    }
    text
}

fn write(case: &Case, name: &str, text: &str) -> Result<()> {
    fs::write(case.dir.join(name), text).with_context(|| format!("cannot write {name}"))
}
