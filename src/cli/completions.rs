//! `zprobe completions`: what a shell needs to complete zprobe's command lines.

use anyhow::Result;
use clap::Command;
use clap_complete::{Shell, generate};
use zprobe::console;
use zprobe::report::Exit;

/// Arguments of `zprobe completions`.
#[derive(clap::Args)]
pub struct Args {
    /// Shell that reads them
    shell: Shell,
}

/// Prints the completions of `zprobe`.
pub fn main(args: &Args, zprobe: &Command) -> Result<Exit> {
    let mut script = Vec::new();
    generate(args.shell, &mut visible(zprobe), "zprobe", &mut script);
    console::print(&String::from_utf8(script)?)?;
    Ok(Exit::Clean)
}

/// The command without those that people do not call.
fn visible(command: &Command) -> Command {
    let subcommands = command.get_subcommands().filter(|it| !it.is_hide_set());
    Command::new("zprobe")
        .version(env!("CARGO_PKG_VERSION"))
        .args(command.get_arguments())
        .subcommands(subcommands)
}
