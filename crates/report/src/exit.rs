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
    /// The user's own command failed before there was an answer: its exit code.
    OfCommand(u8),
}

impl Exit {
    /// Every exit code of zprobe's own, in ascending order.
    pub const ALL: [Self; 5] =
        [Self::Clean, Self::Findings, Self::NothingRan, Self::Crashed, Self::Inconclusive];

    /// The number that the process ends with.
    pub const fn code(self) -> u8 {
        match self {
            Self::Clean => 0,
            Self::Findings => 1,
            Self::NothingRan => 2,
            Self::Crashed => 3,
            Self::Inconclusive => 4,
            Self::OfCommand(code) => code,
        }
    }

    /// The exit that ends with this number, as another process of zprobe has it.
    pub fn of_code(code: u8) -> Self {
        Self::ALL.into_iter().find(|exit| exit.code() == code).unwrap_or(Self::OfCommand(code))
    }

    /// The exit codes with these words for them, as a command's help shows them.
    pub fn help(words: [&str; 5]) -> String {
        let lines = Self::ALL.iter().zip(words);
        let lines = lines.map(|(exit, words)| format!("\n  {}  {words}", exit.code()));
        format!("Exit codes:{}", lines.collect::<String>())
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
