//! `zprobe man`: prints or writes the manual pages for man(1).

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Command, ValueHint};
use clap_mangen::Man;
use zprobe_lab::console;
use zprobe_report::Exit;

/// The arguments of `zprobe man`.
#[derive(clap::Args)]
pub struct ManArgs {
    /// Command whose page is printed [default: zprobe itself]
    command: Option<String>,

    /// Write the pages of zprobe and all its commands into this directory instead of printing one
    #[arg(
        long,
        value_name = "DIR",
        value_hint = ValueHint::DirPath,
        conflicts_with = "command"
    )]
    out_dir: Option<PathBuf>,
}

/// Prints one manual page, or writes those of `zprobe` and all its commands into a directory.
pub fn main(args: &ManArgs, zprobe: Command) -> Result<Exit> {
    // Otherwise clap_mangen would make an empty page for every `zprobe help COMMAND`.
    let mut zprobe = zprobe.disable_help_subcommand(true);
    zprobe.build();
    if let Some(dir) = &args.out_dir {
        write(&zprobe, dir)
            .with_context(|| format!("cannot write pages into {}", dir.display()))?;
        return Ok(Exit::Clean);
    }
    let command = match &args.command {
        Some(name) => zprobe.find_subcommand(name).with_context(|| {
            format!("{name}: zprobe has no such command; `zprobe --help` lists them")
        })?,
        None => &zprobe,
    };
    let mut text = Vec::new();
    page(command).render(&mut text)?;
    console::print(&String::from_utf8(text)?)?;
    Ok(Exit::Clean)
}

fn write(zprobe: &Command, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir)?;
    let commands = zprobe.get_subcommands().filter(|it| !it.is_hide_set());
    for command in commands.chain([zprobe]) {
        page(command).generate_to(dir)?;
    }
    Ok(())
}

fn page(command: &Command) -> Man {
    let version = concat!("zprobe ", env!("CARGO_PKG_VERSION"));
    Man::new(command.clone()).source(version).manual("zprobe manual")
}
