//! The exit codes of the `zprobe` process.

use super::Verdict;

/// The way in which the `zprobe` process exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Every gradient arrived, all results are as expected, or two compared runs are the same.
    Clean,
    /// A run has findings, a result is not as expected, or two compared runs differ.
    Findings,
    /// An error of usage or set-up prevented the requested runs.
    NothingRan,
    /// An engine under test crashed or hung.
    Crashed,
    /// A run was inconclusive, or the user interrupted the experiment.
    Inconclusive,
    /// The user's own command failed before there was a verdict; the value is the exit code of that command.
    OfCommand(u8),
}

impl Exit {
    /// All exits with codes that zprobe itself defines, in ascending order of the codes.
    pub const ALL: [Self; 5] =
        [Self::Clean, Self::Findings, Self::NothingRan, Self::Crashed, Self::Inconclusive];

    /// The exit code of the process.
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

    /// The exit with this code, for the code of another zprobe process.
    pub fn of_code(code: u8) -> Self {
        Self::ALL.into_iter().find(|exit| exit.code() == code).unwrap_or(Self::OfCommand(code))
    }

    /// The section on exit codes of a command's help; `words` describes the codes in ascending order.
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
