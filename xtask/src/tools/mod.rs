//! Programs that the tasks need and few machines have, installed below the target directory.
//!
//! The user's pip installs the programs as wheels, like libtorch, so this set-up works where that of libtorch
//! works. pip refuses every file whose hash is not in `requirements.txt`.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::host::Host;

/// A group of programs that are installed together.
pub struct Tools {
    /// The directory of the programs, below the target directory.
    dir: &'static str,
    /// The programs' wheels, with their hashes.
    requirements: &'static str,
}

/// The programs that the tests need.
pub const EVERYDAY: Tools = Tools { dir: "tools", requirements: include_str!("requirements.txt") };

/// The programs that build the wheels.
pub const DIST: Tools = Tools { dir: "dist-tools", requirements: include_str!("dist.txt") };

/// The package with the build of Perfetto that reads exported traces.
pub const PERFETTO: Tools = Tools { dir: "perfetto", requirements: include_str!("perfetto.txt") };

/// The file that marks a complete installation; it holds the list of installed wheels.
const STAMP: &str = "requirements.txt";

/// Makes programs ready, and returns their directory.
pub fn prepare(host: &Host, target: &Path, tools: &Tools) -> Result<PathBuf> {
    let home = target.join(tools.dir);
    let bin = home.join("bin");
    let stamp = home.join(STAMP);
    if fs::read(&stamp).is_ok_and(|text| text == tools.requirements.as_bytes()) {
        return Ok(bin);
    }
    match fs::remove_dir_all(&home) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove {}", home.display()));
        }
        _ => {}
    }
    run(host.command("python3").args(["-m", "venv"]).arg(&home))?;
    let wanted = home.join("wanted.txt");
    let cannot_write = |path: &Path| format!("cannot write {}", path.display());
    fs::write(&wanted, tools.requirements).with_context(|| cannot_write(&wanted))?;
    run(host
        .command(bin.join("python"))
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"])
        .args(["--require-hashes", "--only-binary=:all:", "--requirement"])
        .arg(&wanted))?;
    fs::rename(&wanted, &stamp).with_context(|| cannot_write(&stamp))?;
    Ok(bin)
}

/// Runs a command to its end; a failure is an error.
fn run(command: &mut Command) -> Result<()> {
    let line = format!("{command:?}");
    let status = command.status().with_context(|| {
        format!("cannot start {line}: install python3 with venv and pip (Debian: python3-venv)")
    })?;
    ensure!(status.success(), "{line} failed ({status}); see the messages above");
    Ok(())
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::host::fake::FakeHost;

    /// A `python3` whose venv holds a pip that logs its arguments, then exits with `code`.
    fn python(code: u8) -> String {
        format!(
            "export PATH=$REAL_PATH; mkdir -p $3/bin\n\
             printf '#!/bin/sh\\necho \"$@\" >> %s/asked\\nexit {code}\\n' $3 > $3/bin/python\n\
             chmod +x $3/bin/python"
        )
    }

    #[test]
    fn tools_are_installed_once_and_only_with_the_hashes_that_they_must_have() {
        let target = TempDir::new().unwrap();
        let host = FakeHost::new().with("python3", &python(0));
        let bin = prepare(&host, target.path(), &EVERYDAY).unwrap();
        assert_eq!(prepare(&FakeHost::new(), target.path(), &EVERYDAY).unwrap(), bin);
        let asked = fs::read_to_string(target.path().join("tools/asked")).unwrap();
        assert_eq!(asked.lines().count(), 1, "{asked}");
        assert!(asked.contains("--require-hashes"), "{asked}");
        for tools in [EVERYDAY, DIST, PERFETTO] {
            let mut pinned = tools.requirements.lines().filter(|line| !line.starts_with('#'));
            assert!(pinned.all(|line| line.contains("==") && line.contains(" --hash=")));
        }
    }

    #[test]
    fn an_installation_that_failed_is_made_again() {
        let target = TempDir::new().unwrap();
        let error = prepare(&FakeHost::new().with("python3", &python(1)), target.path(), &EVERYDAY);
        assert!(error.unwrap_err().to_string().contains("pip"));
        prepare(&FakeHost::new().with("python3", &python(0)), target.path(), &EVERYDAY).unwrap();
    }
}
