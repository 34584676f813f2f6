//! The task `cargo xtask record-traces`.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::tasks;
use crate::workspace;

/// The name of a trace in a run directory, as `zprobe` writes it.
const TRACE: &str = "trace.jsonl";

/// Runs `zprobe run` for every recorded trace, and keeps the new trace.
pub fn record_traces() -> Result<()> {
    tasks::build()?;
    let root = workspace::root().join("fixtures/traces");
    let mut fixtures: Vec<_> = fs::read_dir(&root)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| format!("cannot read {}", root.display()))?;
    fixtures.sort_by_key(fs::DirEntry::file_name);
    for fixture in fixtures {
        if !fixture.path().join("args").exists() {
            eprintln!("{}: recorded by hand; see its `command`", fixture.path().display());
            continue;
        }
        record(&fixture.path())
            .with_context(|| format!("cannot record {}", fixture.path().display()))?;
    }
    Ok(())
}

fn record(fixture: &Path) -> Result<()> {
    let args = fs::read_to_string(fixture.join("args")).context("cannot read the file `args`")?;
    let run_dir = fixture.join("run");
    eprintln!("$ zprobe run {}", args.trim());
    let output = Command::new(workspace::zprobe()?)
        .arg("run")
        .args(args.split_whitespace())
        .arg("--out")
        .arg(&run_dir)
        .stdout(Stdio::null())
        .output()?;
    // Findings and crashes are no failure: most of these runs exist for them.
    ensure!(
        output.status.code() != Some(2),
        "zprobe ran nothing: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    fs::rename(run_dir.join(TRACE), fixture.join(TRACE))?;
    fs::remove_dir_all(run_dir)?;
    Ok(())
}
