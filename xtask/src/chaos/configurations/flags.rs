//! Command lines with odd flags.

use anyhow::Result;

use super::{OF_A_LIST, OF_A_RUN, Question, run};
use crate::chaos::Case;

/// Flags of `zprobe run` with values that they take.
///
/// World sizes are small or far too large: a size in between would start that many processes.
const FLAGS: &[(&str, &[&str])] = &[
    ("--engine", &["native", "deepspeed", "ddp", "fsdp1", "fsdp2", "pipeline"]),
    ("--stage", &["0", "1", "2", "3"]),
    ("--ga", &["1", "2", "3", "4", "7", "64", "65536"]),
    ("--nproc-per-node", &["1", "2", "3", "65537", "4000000000"]),
    ("--device", &["auto", "cpu"]),
    ("--backend", &["auto", "gloo"]),
    ("--dtype", &["bf16", "fp16", "fp32"]),
    ("--grad-accum-dtype", &["bf16", "fp16", "fp32"]),
    ("--comm-dtype", &["bf16", "fp16", "fp32"]),
    ("--dataflow", &["accumulator", "ipg-bucket"]),
    ("--reduce-bucket-size", &["1", "64", "500000000", "18446744073709551615"]),
    ("--allgather-bucket-size", &["1", "500000000"]),
    ("--parameter-groups", &["1", "2"]),
    ("--offload", &["none", "cpu"]),
    ("--overlap-comm", &["true", "false"]),
    ("--contiguous-gradients", &["true", "false"]),
    ("--reduce-scatter", &["true", "false"]),
    ("--immediate-grad-update", &["true", "false"]),
    ("--loss-scale", &["dynamic", "1", "64", "3", "1e30"]),
    ("--gradient-clipping", &["0", "1", "0.125", "1e300"]),
    ("--bucket-cap-mb", &["0.0001", "25"]),
    ("--find-unused-parameters", &["true", "false"]),
    ("--static-graph", &["true", "false"]),
    ("--gradient-as-bucket-view", &["true", "false"]),
    ("--comm-hook", &["none", "bf16-compress", "fp16-compress"]),
    ("--reshard-after-forward", &["true", "false"]),
    ("--observe", &["full", "black-box"]),
    ("--poison-memory", &["true", "false"]),
    ("--optimizer", &["sgd", "adamw"]),
    ("--model", &["coded", "mlp"]),
    ("--parameters", &["1", "10000", "1000000"]),
    ("--shape", &["tied", "frozen", "unused-last", "unused-first", "unmanaged", "dict-output"]),
    ("--micro_batch_size", &["1", "4", "65536"]),
    ("--steps", &["1", "2", "3", "100"]),
    ("--seed", &["0", "1", "18446744073709551615"]),
    ("--inject", &["boundary-leak", "rank-dies", "dead-hooks", "stale-host-buffer"]),
    ("--repeat", &["1"]),
    ("--timeout", &["1", "60", "1000000"]),
    ("--output-format", &["full", "json", "sarif", "junit", "github"]),
];

/// Values that no flag takes, or that only some flags take.
const STRANGE: &[&str] = &[
    "",
    " ",
    "0",
    "-1",
    "-0",
    "1.5",
    "1e400",
    "NaN",
    "inf",
    "-inf",
    "99999999999999999999999999",
    "18446744073709551615",
    "0x10",
    "１２",
    "true",
    "none",
    "None",
    "auto,auto",
    "--",
    "-",
    "--help-me",
    "\u{1b}[2J\u{1b}]52;c;eHl6\u{7}",
    "\u{202e}evil",
    "a\nb",
    "%s%n",
    "$(touch injected)",
    "../../../../../../etc/passwd",
];

/// The call of `zprobe run` with some flags, one of which has a strange value in every second case.
pub fn of_a_run(case: &mut Case) -> Result<Question> {
    let mut words = Vec::new();
    let mut drawn = FLAGS.to_vec();
    case.rng.shuffle(&mut drawn);
    for (flag, values) in &drawn[1..case.rng.usize(1..9)] {
        words.push(format!("{flag}={}", case.one_of(values)));
    }
    let mut named = None;
    if case.rng.bool() {
        let flag = drawn[0].0;
        let value = match case.rng.u8(..12) {
            0 => "long".repeat(case.rng.usize(1..10_000)),
            1 => (0..30).map(|_| case.rng.char('\u{1}'..)).collect(),
            _ => (*case.one_of(STRANGE)).to_owned(),
        };
        words.push(format!("{flag}={value}"));
        named = (words.len() == 1).then(|| flag.trim_start_matches('-').to_owned());
    }
    if case.rng.u8(..20) == 0 {
        words.push("--no-such-flag".to_owned());
        named = None;
    }
    Ok(Question { call: run(case)?.args(words), named, codes: OF_A_RUN })
}

/// The call of a command of zprobe that only prints.
pub fn of_another_command(case: &mut Case) -> Result<Question> {
    let value = (*case.one_of(STRANGE)).to_owned();
    let number = case.rng.u32(..).to_string();
    let words: Vec<&str> = match case.rng.u8(..12) {
        0 => vec!["list", &value],
        1 => vec!["explain", &value],
        2 => vec!["sweep", "--list", "--random", "20", "--seed", &number, "--engine", "native"],
        3 => vec!["sweep", "--list", "--filter", &value],
        4 => vec!["sweep", "--list", "--stage", &value],
        5 => vec!["check", "--list", "--filter", &value],
        6 => vec!["check", "--list", "--engine", &value],
        7 => vec!["check", "--list", &value],
        8 => vec!["zoo", "--list", "--release", &value],
        9 => vec!["zoo", "--list", &value],
        10 => vec!["compare", &value, &value],
        _ => vec!["diagnose", &value],
    };
    // The value may be a valid flag, `--` or help, so exit code 0 is possible, too.
    Ok(Question { call: case.zprobe(words)?, named: None, codes: OF_A_LIST })
}
