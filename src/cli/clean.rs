//! `zprobe clean`: removes recorded runs that are too old, too many or too large.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Result;
use bytesize::ByteSize;
use clap::ArgGroup;
use zprobe_lab::console;
use zprobe_lab::store::{self, RUNS, Recorded};
use zprobe_model::spec::settings::size;
use zprobe_model::visible;
use zprobe_report::{Exit, Form};

/// The arguments of `zprobe clean`.
#[derive(clap::Args)]
#[command(group(ArgGroup::new("what").required(true).multiple(true)))]
pub struct CleanArgs {
    /// Remove runs that are older than this: 7d, 12h, 30min
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, group = "what")]
    older_than: Option<Duration>,

    /// Remove all runs but the newest N, whatever their names; 0 removes all (unlike --keep-runs 0 of
    /// `zprobe run`, which keeps all)
    #[arg(long, value_name = "N", group = "what")]
    keep: Option<usize>,

    /// Remove the oldest runs, until the others take no more than this: 500MB, 2GiB
    #[arg(long, value_name = "SIZE", value_parser = size, group = "what")]
    max_size: Option<ByteSize>,

    /// List the runs that would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,

    /// Form of the listing on standard output
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "full",
        value_parser = Form::among(&[Form::Full, Form::Json])
    )]
    output_format: Form,
}

/// A run that was removed, or would be without `--dry-run`.
#[derive(serde::Serialize)]
struct Removed {
    run_dir: PathBuf,
    bytes: u64,
}

pub fn main(args: &CleanArgs) -> Result<Exit> {
    let runs = store::recorded(Path::new(""))?;
    let count = runs.len();
    let surplus = surplus(runs, args, SystemTime::now());
    let (mut freed, mut removed) = (0, Vec::new());
    let is_text = args.output_format == Form::Full;
    // The oldest runs come first, so that an error leaves the newest ones.
    for run in surplus.iter().rev() {
        if !args.dry_run {
            run.remove()?;
        }
        freed += run.bytes;
        removed.push(Removed { run_dir: run.path.clone(), bytes: run.bytes });
        if is_text {
            let size = ByteSize(run.bytes).display().si();
            console::plain(&format!("{}  {size}\n", run.path.display()))?;
        }
    }
    if !is_text {
        console::print(&visible::json(&removed)?)?;
    }
    let would = if args.dry_run { "would remove" } else { "removed" };
    console::say(format_args!(
        "{would} {} of {count} recorded runs in {RUNS}, {}",
        removed.len(),
        ByteSize(freed).display().si()
    ));
    Ok(Exit::Clean)
}

/// The runs to remove; `runs` are sorted with the newest first.
fn surplus(runs: Vec<Recorded>, args: &CleanArgs, now: SystemTime) -> Vec<Recorded> {
    let mut bytes = 0;
    let is_kept = |(at, run): &(usize, Recorded)| {
        let age = now.duration_since(run.written).unwrap_or_default();
        bytes += run.bytes;
        args.older_than.is_none_or(|limit| age <= limit)
            && args.keep.is_none_or(|keep| *at < keep)
            && args.max_size.is_none_or(|limit| bytes <= limit.0)
    };
    // Each limit keeps a prefix of the sorted runs, and so do all limits together.
    let kept = runs.iter().cloned().enumerate().take_while(is_kept).count();
    runs.into_iter().skip(kept).collect()
}
