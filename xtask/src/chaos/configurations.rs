//! Command lines and files that ask for something: valid, contradictory, extreme, or no configuration at all.
//!
//! The ranks of a run are replaced by a program that prints nothing, so that a valid run ends at once, as
//! crashed.

mod deepspeed;
mod flags;
mod toml;

use anyhow::{Result, ensure};

use super::calls::Call;
use super::{Campaign, Case, Survival};

/// The campaign of command lines and files. Each is either run or refused with a message of reasonable
/// length.
pub const CAMPAIGN: Campaign = Campaign {
    name: "configurations",
    faults: "command lines, DeepSpeed files, zprobe.toml, probes, zoo rows, baselines: wrong, extreme, hostile",
    full: 2000,
    short: 120,
    try_case,
};

/// A call of zprobe, and the answers that zprobe may give.
struct Question {
    call: Call,
    /// The name that a refusal has to contain; `None` if several things may be wrong.
    named: Option<String>,
    /// The exit codes that the call may end with.
    codes: &'static [i64],
}

/// A function that makes a call of zprobe, with the permitted answers.
type Ask = fn(&mut Case) -> Result<Question>;

/// All kinds of calls; a kind that is listed twice is drawn twice as often.
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
    // A file that is too large for a configuration is refused before anything in it is read.
    let is_read = !ended.stderr.contains("larger than 1 MiB");
    if let (2, Some(name), true) = (code, named, is_read) {
        // Flags have dashes where keys have underscores.
        let said = ended.stderr.replace('_', "-").contains(&name.replace('_', "-"));
        ensure!(said, "the message does not name `{name}`: {}", ended.stderr.trim_end());
    }
    case.nothing_is_left()?;
    Ok(Survival::Survived)
}

/// `zprobe run` whose ranks are replaced by a program that prints nothing and ends at once.
fn run(case: &Case) -> Result<Call> {
    case.zprobe(["run", "--out", "run", "--rank-program", "true"])
}

/// The possible exit codes of a run without ranks, which is refused, crashes, or is interrupted.
const OF_A_RUN: &[i64] = &[2, 3];

/// The possible exit codes of a command that only lists.
const OF_A_LIST: &[i64] = &[0, 2];
