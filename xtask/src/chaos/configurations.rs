//! Command lines and files that ask for something: valid, contradictory, extreme, or no such thing at all.
//!
//! Where a run would begin, a program that says nothing stands for its ranks, so that what can be run ends
//! at once, as crashed.

mod deepspeed;
mod flags;
mod toml;

use anyhow::{Result, ensure};

use super::calls::Call;
use super::{Campaign, Case, Survival};

/// A command line or a file, which is refused with a message of reasonable length, or run.
pub const CAMPAIGN: Campaign = Campaign {
    name: "configurations",
    faults: "command lines, DeepSpeed files, zprobe.toml, probes, zoo rows, baselines: wrong, extreme, hostile",
    full: 2000,
    short: 120,
    try_case,
};

/// Something that zprobe is asked.
struct Question {
    call: Call,
    /// What a refusal has to name, where only one thing is wrong.
    named: Option<String>,
    /// Exit codes that are possible.
    codes: &'static [i64],
}

/// A way of asking.
type Ask = fn(&mut Case) -> Result<Question>;

/// All ways, as often as they are drawn.
const WAYS: &[Ask] = &[
    flags::of_a_run,
    deepspeed::file,
    flags::of_a_run,
    deepspeed::file,
    toml::configuration,
    flags::of_a_run,
    deepspeed::file,
    toml::probe,
    deepspeed::text,
    flags::of_another_command,
    toml::zoo_row,
    deepspeed::file,
    toml::baseline,
];

fn try_case(case: &mut Case) -> Result<Survival> {
    let way = WAYS[case.number % WAYS.len()];
    let Question { call, named, codes } = way(case)?;
    let ended = call.ended()?;
    let code = ended.code_of(codes)?;
    // What is too large to be a configuration is refused before anything in it is read.
    let is_read = !ended.stderr.contains("larger than 1 MiB");
    if let (2, Some(name), true) = (code, named, is_read) {
        // Underscores in flags are dashes.
        let said = ended.stderr.replace('_', "-").contains(&name.replace('_', "-"));
        ensure!(said, "the message does not name `{name}`: {}", ended.stderr.trim_end());
    }
    case.nothing_is_left()?;
    Ok(Survival::Survived)
}

/// `zprobe run` with a program in place of its ranks that ends at once, and says nothing.
fn run(case: &Case) -> Result<Call> {
    case.zprobe(["run", "--out", "run", "--rank-program", "true"])
}

/// What such a run can come to: refused, crashed, or interrupted.
const OF_A_RUN: &[i64] = &[2, 3];

/// What a list can come to.
const OF_A_LIST: &[i64] = &[0, 2];
