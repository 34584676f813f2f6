//! The exit codes of `zprobe`.

use super::Verdict;

/// Exit code of `zprobe`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Every gradient arrived; everything came out as expected; two runs are the same.
    Clean,
    /// Something is wrong, or not as expected; two runs differ.
    Findings,
    /// Usage or set-up error: nothing ran, or nothing that was asked for.
    NothingRan,
    /// An engine under test crashed or hung.
    Crashed,
    /// A run ended without an answer, or the user has interrupted the experiment.
    Inconclusive,
}

impl Exit {
    /// Every exit code, in ascending order.
    pub const ALL: &'static [Self] =
        &[Self::Clean, Self::Findings, Self::NothingRan, Self::Crashed, Self::Inconclusive];

    /// The number that the process ends with.
    pub const fn code(self) -> u8 {
        match self {
            Self::Clean => 0,
            Self::Findings => 1,
            Self::NothingRan => 2,
            Self::Crashed => 3,
            Self::Inconclusive => 4,
        }
    }

    /// The exit code of several: that of the worst. Findings weigh more than crashes, and these more than
    /// doubt, because each hides the next: 1, 3, 4, 0. An error weighs more than all of them.
    pub fn worst(all: impl IntoIterator<Item = Self>) -> Self {
        let weight = |exit: &Self| match exit {
            Self::NothingRan => 4,
            Self::Findings => 3,
            Self::Crashed => 2,
            Self::Inconclusive => 1,
            Self::Clean => 0,
        };
        all.into_iter().max_by_key(weight).unwrap_or(Self::Clean)
    }

    /// The exit codes with these words for them, as a command's help shows them.
    pub fn help(words: impl Fn(Self) -> &'static str) -> String {
        let lines = Self::ALL.iter().map(|exit| format!("\n  {}  {}", exit.code(), words(*exit)));
        format!("Exit codes:{}", lines.collect::<String>())
    }

    /// What the exit code says of one run, in a few words.
    pub const fn of_a_run(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Findings => "findings",
            Self::NothingRan => "usage or set-up error, nothing ran",
            Self::Crashed => "the engine under test crashed or hung",
            Self::Inconclusive => "inconclusive",
        }
    }

    /// What the exit code says of two runs side by side, in a few words.
    pub const fn of_a_comparison(self) -> &'static str {
        match self {
            Self::Clean => "the same",
            Self::Findings => "different",
            Self::NothingRan => "usage or set-up error",
            Self::Crashed => "one of the runs crashed or hung",
            Self::Inconclusive => "one of the runs is inconclusive",
        }
    }
}

impl From<Verdict> for Exit {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Clean => Self::Clean,
            Verdict::Findings => Self::Findings,
            Verdict::Crashed => Self::Crashed,
            Verdict::Inconclusive => Self::Inconclusive,
        }
    }
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}
