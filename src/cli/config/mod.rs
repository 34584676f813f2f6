//! Configuration files: `zprobe.toml`, or `[tool.zprobe]` in `pyproject.toml`, in the working directory or its
//! closest parent that has one.
//!
//! The sections `[run]` and `[check]` hold the flags of these commands by their long names. A value of the file
//! replaces the default of a flag, so a flag and its environment variable win over the file.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Arg, ArgMatches, Command};
use serde::Deserialize;
use zprobe_model::document::{Complaint, Document, Flags};

use super::flags;

/// The name of the configuration file that only zprobe reads.
pub const FILE: &str = "zprobe.toml";

/// The name of the configuration file that zprobe shares with other programs.
const SHARED: &str = "pyproject.toml";

/// The commands that have a section in a configuration file.
const SECTIONS: [&str; 2] = ["run", "check"];

/// The flags that choose the configuration file.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Choice {
    /// Configuration file [default: the closest zprobe.toml, or pyproject.toml with [tool.zprobe]]
    #[arg(long, value_name = "FILE", env = "ZPROBE_CONFIG", help_heading = "Configuration")]
    pub config: Option<PathBuf>,

    /// Read no configuration file
    #[arg(long, help_heading = "Configuration")]
    pub no_config: bool,
}

/// A configuration file that was read.
#[derive(Debug)]
pub struct Config {
    /// The path of the configuration file.
    pub path: PathBuf,
    document: Document,
    sections: Sections,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sections {
    #[serde(default)]
    run: Flags,
    #[serde(default)]
    check: Flags,
}

/// A `pyproject.toml`, in which only one table belongs to zprobe.
#[derive(Deserialize)]
struct Pyproject {
    tool: Option<Tool>,
}

#[derive(Deserialize)]
struct Tool {
    zprobe: Option<Sections>,
}

impl Choice {
    /// Reads the configuration file for a command that runs in `dir`; `None` if there is none.
    ///
    /// # Errors
    /// Fails if the file cannot be read or parsed.
    pub fn find(&self, dir: &Path) -> Result<Option<Config>> {
        if self.no_config {
            return Ok(None);
        }
        if let Some(path) = &self.config {
            let config = Config::read(path)?;
            return config.with_context(|| no_section(path)).map(Some);
        }
        for dir in dir.ancestors() {
            for name in [FILE, SHARED] {
                if let Some(config) = Config::read(&dir.join(name))? {
                    return Ok(Some(config));
                }
            }
        }
        Ok(None)
    }
}

fn no_section(path: &Path) -> String {
    format!("{}: there is no such file, or it has no [tool.zprobe]", path.display())
}

impl Config {
    /// Reads a configuration file; `None` if the file does not exist or has nothing for zprobe.
    fn read(path: &Path) -> Result<Option<Self>> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        let document = Document { file: path.display().to_string(), text };
        let shared = path.file_name().is_some_and(|name| name == SHARED);
        let sections = if shared {
            // Syntax errors in a file that does not mention zprobe are none of its business.
            if !document.text.contains("zprobe") {
                return Ok(None);
            }
            document.read::<Pyproject>().map_err(advised)?.tool.and_then(|tool| tool.zprobe)
        } else {
            Some(document.read().map_err(advised)?)
        };
        Ok(sections.map(|sections| Self { path: path.to_owned(), document, sections }))
    }

    /// The clap command with the values of this file as defaults. Every section is checked, not only that of the
    /// command that is about to run.
    fn layer(&self, mut command: Command) -> Result<Command> {
        let base = self.path.parent().unwrap_or(Path::new(""));
        for (name, table) in SECTIONS.iter().zip([&self.sections.run, &self.sections.check]) {
            let section = command.find_subcommand(name);
            let section = section.with_context(|| format!("there is no command {name}"))?;
            let given = flags::read(section, table, &self.document, base, is_configurable)?;
            command = command.mut_subcommand(name, |section| {
                given.into_iter().fold(section, |section, flag| {
                    section.mut_arg(flag.id, |arg| arg.default_values(flag.values))
                })
            });
        }
        Ok(command)
    }
}

/// Adds to a complaint about an unknown section the sections in which flags belong.
fn advised(mut complaint: Complaint) -> Complaint {
    let [run, check] = SECTIONS;
    if complaint.problem.ends_with(&format!("use one of {run}, {check}")) {
        complaint.problem += &format!(
            "; put flags of `zprobe {run}` below [{run}], and those of `zprobe {check}` below [{check}]"
        );
    }
    complaint
}

/// True if a file may set the flag: all but the choice of the file itself, `--help`, and the arguments of a rank
/// program.
fn is_configurable(arg: &Arg) -> bool {
    !matches!(arg.get_id().as_str(), "config" | "no_config" | "help" | "rank_args")
}

/// Parses a command line; if the command has a section in the configuration file, its values are the defaults.
///
/// # Errors
/// Fails if the file or the command line is wrong, and if the command line asks for help.
pub fn matches(command: Command, line: &[OsString]) -> Result<ArgMatches> {
    let first = command.clone().try_get_matches_from(line)?;
    match found(&first)? {
        Some(config) => Ok(config.layer(command)?.try_get_matches_from(line)?),
        None => Ok(first),
    }
}

fn found(matches: &ArgMatches) -> Result<Option<Config>> {
    let Some((name, matches)) = matches.subcommand().filter(|(name, _)| SECTIONS.contains(name))
    else {
        return Ok(None);
    };
    let choice = Choice {
        config: matches.get_one::<PathBuf>("config").cloned(),
        no_config: matches.get_flag("no_config"),
    };
    let dir = std::env::current_dir().with_context(|| {
        format!("zprobe {name}: the working directory no longer exists; change to another one")
    })?;
    choice.find(&dir)
}

#[cfg(test)]
mod tests;
