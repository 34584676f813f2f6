//! `zprobe clean`: removes recorded runs, experiments and environments that are too old, too many or too large.

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use bytesize::ByteSize;
use zprobe_lab::console;
use zprobe_lab::environment::Cache;
use zprobe_lab::runs::ListedRun;
use zprobe_lab::store::{self, ROOT, Recorded};
use zprobe_model::spec::settings::size;
use zprobe_model::visible;
use zprobe_report::words::{amount, one_line};
use zprobe_report::{Exit, Form};

/// The arguments of `zprobe clean`.
#[derive(clap::Args)]
pub struct CleanArgs {
    /// Remove what is older than this: 7d, 12h, 30min
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    older_than: Option<Duration>,

    /// Remove all but the newest N, whatever their names; 0 removes all (unlike --keep-runs 0 of `zprobe run`, which
    /// keeps all)
    #[arg(long, value_name = "N")]
    keep: Option<usize>,

    /// Remove the oldest ones, until the others take no more than this: 500MB, 2GiB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_size: Option<ByteSize>,

    /// Instead of runs, checks and other experiments: the cached Python environments of `zprobe provision`, `zoo` and
    /// `bisect`, by the time of their last use
    #[arg(long)]
    environments: bool,

    /// List what would be removed, and remove nothing
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

/// A directory that was removed, or would be without `--dry-run`.
#[derive(serde::Serialize)]
struct Removed {
    run_dir: String,
    bytes: u64,
    /// The verdicts of the runs in the directory, each once; empty for an environment.
    verdicts: Vec<String>,
    /// The command that the user typed; `None` if it is not known.
    command: Option<String>,
}

pub fn main(args: &CleanArgs) -> Result<Exit> {
    let is_text = args.output_format == Form::Full;
    if is_text && !args.has_limit() {
        return overview();
    }
    let cache = args.environments.then(Cache::locate).transpose()?;
    let all = match &cache {
        Some(cache) => cache.environments()?.into_iter().map(|it| (it, vec![])).collect(),
        None => recordings()?,
    };
    let count = all.len();
    let surplus = surplus(all, args, SystemTime::now());
    let (mut freed, mut removed) = (0, Vec::new());
    // The oldest ones come first, so that an error leaves the newest ones.
    for (it, runs) in surplus.iter().rev() {
        let row = Removed::new(it, runs);
        match &cache {
            _ if args.dry_run => {}
            Some(cache) => cache.remove(it)?,
            None => it.remove()?,
        }
        freed += it.bytes;
        if is_text {
            console::plain(&row.line())?;
        }
        removed.push(row);
    }
    if !is_text {
        console::print(&visible::json(&removed)?)?;
    }
    let would = if args.dry_run { "would remove" } else { "removed" };
    let what = match &cache {
        Some(cache) => format!("environments in {}", cache.dir().display()),
        None => format!("runs and experiments in {ROOT}"),
    };
    let freed = ByteSize(freed).display().si();
    console::say(format_args!("{would} {} of {count} {what}, {freed}", removed.len()));
    Ok(Exit::Clean)
}

/// The recorded runs and the experiments, the newest first, each with its runs.
fn recordings() -> Result<Vec<(Recorded, Vec<Recorded>)>> {
    let runs = store::recorded(Path::new(""))?;
    let runs = runs.into_iter().map(|run| (run.clone(), vec![run]));
    let mut all: Vec<_> = runs.chain(store::experiments(Path::new(""))?).collect();
    all.sort_by(|(a, _), (b, _)| (b.written, &b.path).cmp(&(a.written, &a.path)));
    Ok(all)
}

/// Prints what is there, and removes nothing.
fn overview() -> Result<Exit> {
    let cache = Cache::locate()?;
    let experiments = store::experiments(Path::new(""))?.into_iter().map(|(it, _)| it).collect();
    let rows: [(&str, String, Vec<Recorded>); 3] = [
        ("run", store::RUNS.to_owned(), store::recorded(Path::new(""))?),
        ("experiment", ROOT.to_owned(), experiments),
        ("cached environment", cache.dir().display().to_string(), cache.environments()?),
    ];
    for (what, place, all) in rows {
        let bytes = ByteSize(all.iter().map(|it| it.bytes).sum()).display().si();
        console::plain(&format!("{} in {place}, {bytes}\n", amount(all.len(), what)))?;
    }
    console::say(
        "nothing was removed: give a limit (--older-than 7d, --keep 10 or --max-size 1GB), with --environments for \
         the environments; --dry-run lists what would be removed",
    );
    Ok(Exit::Clean)
}

impl CleanArgs {
    /// True if a limit is given, without which nothing is removed.
    fn has_limit(&self) -> bool {
        self.older_than.is_some() || self.keep.is_some() || self.max_size.is_some()
    }
}

impl Removed {
    fn new(it: &Recorded, runs: &[Recorded]) -> Self {
        let listed: Vec<ListedRun> = runs.iter().map(ListedRun::of).collect();
        let mut verdicts: Vec<String> = listed.iter().map(ListedRun::verdict).collect();
        verdicts.sort();
        verdicts.dedup();
        Self {
            run_dir: it.path.display().to_string(),
            bytes: it.bytes,
            verdicts,
            command: listed.into_iter().find_map(|run| run.command),
        }
    }

    /// The line of the directory in the listing.
    fn line(&self) -> String {
        let size = ByteSize(self.bytes).display().si().to_string();
        let mut fields = vec![one_line(&self.run_dir), size];
        if !self.verdicts.is_empty() {
            fields.push(self.verdicts.join(", "));
        }
        fields.extend(self.command.clone());
        fields.join("  ") + "\n"
    }
}

/// The part of `all`, sorted with the newest first, that is beyond the limits.
fn surplus(
    all: Vec<(Recorded, Vec<Recorded>)>,
    args: &CleanArgs,
    now: SystemTime,
) -> Vec<(Recorded, Vec<Recorded>)> {
    let mut bytes = 0;
    let is_kept = |(at, (it, _)): &(usize, &(Recorded, Vec<Recorded>))| {
        let age = now.duration_since(it.written).unwrap_or_default();
        bytes += it.bytes;
        args.older_than.is_none_or(|limit| age <= limit)
            && args.keep.is_none_or(|keep| *at < keep)
            && args.max_size.is_none_or(|limit| bytes <= limit.0)
    };
    // Each limit keeps a prefix of the sorted list, and so do all limits together.
    let kept = all.iter().enumerate().take_while(is_kept).count();
    all.into_iter().skip(kept).collect()
}
