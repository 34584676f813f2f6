//! The settings of a run: each setting is one row of the table, and everything else follows from the row.
//!
//! The following are made from a row: the field of [`SpecRequest`]; the flag of `zprobe run` with its environment
//! variable and its line of the help; the key in configuration files and probes; the refusal by engines that lack
//! the setting; the key in DeepSpeed's configuration; the words in the command that repeats a run; and the
//! treatment by the search for the smallest configuration.

mod row;
mod table;
mod value;

use clap::builder::Resettable;
use clap::error::ErrorKind;
use clap::{ArgMatches, Args, Command, FromArgMatches};

pub(super) use row::configured;
pub use row::{About, Description, Reduction, Setting};
pub(super) use table::TABLE;
pub use table::{ALL, MOST_RANKS, SpecRequest};
pub use value::size;

use super::Engine;

impl Args for SpecRequest {
    fn augment_args(command: Command) -> Command {
        ALL.iter().fold(command, |command, setting| command.arg(setting.arg()))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SpecRequest {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut request = Self::default();
        request.update_from_arg_matches(matches)?;
        Ok(request)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        ALL.iter().try_for_each(|setting| setting.take(matches, self).map_err(wrong))
    }
}

/// The `--timeout` of a command that makes many runs, passed on to each run.
#[derive(Clone, Debug, Default)]
pub struct Timeout(Option<u64>);

impl Timeout {
    /// The command-line words that pass the timeout on to a run; empty if the engine's default applies.
    pub fn arguments(&self) -> Vec<String> {
        SpecRequest { timeout_s: self.0, ..SpecRequest::default() }.arguments()
    }
}

impl Args for Timeout {
    fn augment_args(command: Command) -> Command {
        command.arg(TABLE.timeout_s.arg().help_heading(Resettable::Reset))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Timeout {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut timeout = Self::default();
        timeout.update_from_arg_matches(matches)?;
        Ok(timeout)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let mut request = SpecRequest::default();
        TABLE.timeout_s.take(matches, &mut request).map_err(wrong)?;
        self.0 = request.timeout_s;
        let refusal = TABLE.timeout_s.refusal(&request, Engine::default());
        refusal.map_or(Ok(()), |refusal| Err(wrong(refusal.to_string())))
    }
}

/// The settings that place the ranks of a run, without those about training.
#[derive(Clone, Debug, Default)]
pub struct Placing(pub SpecRequest);

impl Placing {
    fn settings() -> impl Iterator<Item = &'static dyn Setting> {
        const FLAGS: [&str; 5] =
            ["--engine", "--nproc-per-node", "--device", "--backend", "--timeout"];
        ALL.iter().copied().filter(|setting| FLAGS.contains(&setting.flag()))
    }
}

impl Args for Placing {
    fn augment_args(command: Command) -> Command {
        let without_heading = |setting: &dyn Setting| setting.arg().help_heading(Resettable::Reset);
        Self::settings().fold(command, |command, setting| command.arg(without_heading(setting)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Placing {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut placing = Self::default();
        placing.update_from_arg_matches(matches)?;
        Ok(placing)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        Self::settings().try_for_each(|setting| setting.take(matches, &mut self.0).map_err(wrong))
    }
}

fn wrong(text: String) -> clap::Error {
    clap::Error::raw(ErrorKind::ValueValidation, text + "\n")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::spec::deepspeed::has_key;

    #[test]
    fn no_two_settings_share_a_flag_and_each_says_what_it_is() {
        let flags: HashSet<&str> = ALL.iter().map(|setting| setting.flag()).collect();
        assert_eq!(flags.len(), ALL.len());
        for setting in ALL {
            let Description { flag, help, .. } = setting.describe();
            assert!(flag.starts_with("--") && help.len() > 5, "{flag}");
        }
    }

    #[test]
    fn every_key_is_one_that_deepspeed_has() {
        let keys = ALL.iter().filter_map(|setting| setting.describe().key);
        for key in keys.flat_map(|keys| keys.split(", ")) {
            assert!(has_key(key), "{key}");
        }
    }

    #[test]
    fn a_command_that_is_told_no_timeout_leaves_it_to_the_engine() {
        let command = || Timeout::augment_args(Command::new("zprobe check").no_binary_name(true));
        let parsed = |words: &[&str]| {
            let matches = command().try_get_matches_from(words).expect("flags");
            Timeout::from_arg_matches(&matches).map(|timeout| timeout.arguments().join(" "))
        };
        assert_eq!(parsed(&["--timeout", "7"]).expect("a timeout"), "--timeout 7");
        assert!(parsed(&["--timeout", "0"]).is_err());
        if std::env::var_os("ZPROBE_TIMEOUT").is_none() {
            assert_eq!(parsed(&[]).expect("no timeout"), "");
        }
        for (engine, seconds) in [(Engine::Native, 60), (Engine::DeepSpeed, 180)] {
            let request = SpecRequest { engine: Some(engine), ..SpecRequest::default() };
            assert_eq!(request.resolve().expect("a valid request").timeout_s, seconds);
        }
    }
}
