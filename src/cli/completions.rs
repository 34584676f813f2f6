//! `zprobe completions`: what a shell needs to complete zprobe's command lines.

use anyhow::Result;
use clap::{Command, CommandFactory as _};
use clap_complete::{Shell, generate};

/// Arguments of `zprobe completions`.
#[derive(clap::Args)]
pub struct Args {
    /// Shell that reads them
    shell: Shell,
}

pub fn main(args: &Args) -> Result<u8> {
    let mut script = Vec::new();
    generate(args.shell, &mut visible(&super::Cli::command()), "zprobe", &mut script);
    super::print(&String::from_utf8(script)?)?;
    Ok(0)
}

/// The command without those that people do not call.
fn visible(command: &Command) -> Command {
    let subcommands = command.get_subcommands().filter(|it| !it.is_hide_set());
    Command::new("zprobe")
        .version(env!("CARGO_PKG_VERSION"))
        .args(command.get_arguments())
        .subcommands(subcommands)
}
