//! The recorded traces that campaigns start from.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::workspace;

/// A recorded trace.
pub struct Fixture {
    /// The name of the trace's directory.
    pub name: String,
    /// The lines of the trace, without line feeds.
    pub lines: Vec<String>,
}

/// All recorded traces, by name.
pub fn all() -> Result<&'static [Fixture]> {
    static ALL: LazyLock<Result<Vec<Fixture>>> = LazyLock::new(read);
    match &*ALL {
        Ok(fixtures) => Ok(fixtures),
        Err(error) => anyhow::bail!("{error:#}"),
    }
}

/// The recorded trace of this name.
pub fn named(name: &str) -> Result<&'static Fixture> {
    let found = all()?.iter().find(|fixture| fixture.name == name);
    found.with_context(|| format!("there is no recorded trace {name}"))
}

/// The directory of the recorded trace of this name.
pub fn dir(name: &str) -> PathBuf {
    workspace::root().join("fixtures/traces").join(name)
}

fn read() -> Result<Vec<Fixture>> {
    let root = workspace::root().join("fixtures/traces");
    let entries = fs::read_dir(&root).with_context(|| format!("cannot read {}", root.display()))?;
    let mut fixtures = Vec::new();
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let path = dir(&name).join(TRACE);
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        fixtures.push(Fixture { name, lines: text.lines().map(str::to_owned).collect() });
    }
    fixtures.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(fixtures)
}

/// The file name of a trace in a run directory.
pub const TRACE: &str = "trace.jsonl";

impl Fixture {
    /// The record in line `number`, as JSON.
    pub fn record(&self, number: usize) -> Result<Value> {
        serde_json::from_str(&self.lines[number])
            .with_context(|| format!("{}, line {}", self.name, number + 1))
    }
}

/// Makes a run directory, and writes a trace into it.
pub fn write(run_dir: &Path, text: &[u8]) -> Result<()> {
    fs::create_dir_all(run_dir)
        .and_then(|()| fs::write(run_dir.join(TRACE), text))
        .with_context(|| format!("cannot write into {}", run_dir.display()))
}
