//! Downloads the wheels with the user's pip.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::thread;

use anyhow::{Context, Result, bail};

use super::progress;
use super::stage::Stage;
use crate::host::Host;
use crate::libtorch::VERSION;

/// The list of the wheels, with their hashes.
pub const REQUIREMENTS: &str = include_str!("requirements.txt");

/// The size of all wheels together, in bytes.
const BYTES: u64 = 543_671_191;

/// The platform tags under which the wheels are published.
const PLATFORMS: [&str; 4] = [
    "manylinux_2_28_x86_64",
    "manylinux_2_25_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
];

/// The number of lines of pip's output that an error quotes.
const QUOTED_LINES: usize = 8;

/// Downloads the wheels, and returns their paths.
pub fn wheels(host: &Host, stage: &Stage) -> Result<Vec<PathBuf>> {
    check_pip(host)?;
    let requirements = stage.root().join("requirements.txt");
    fs::write(&requirements, REQUIREMENTS)
        .with_context(|| format!("cannot write {}", requirements.display()))?;
    let log = stage.root().join("pip.log");
    let output = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;

    eprintln!("downloading libtorch {VERSION} ({} MiB) with python3 -m pip", BYTES >> 20);
    let mut command = pip_download(host, stage, &requirements);
    command.stdout(output.try_clone().context("cannot share pip's log")?).stderr(output);
    let mut pip = command.spawn().context("cannot start python3")?;
    let status = watch(&mut pip, &stage.temporary()).context("cannot wait for pip")?;
    if !status.success() {
        bail!(
            "pip could not download libtorch {VERSION} ({status}). Its last lines:\n{}\n\
             check the network and pip's configuration (`python3 -m pip config list`: index, \
             proxy, certificates), and that pip is 21.1 or newer; then run this again, or set \
             LIBTORCH to the directory of a libtorch {VERSION} that you have",
            last_lines(&fs::read_to_string(&log).unwrap_or_default())
        );
    }
    files(&stage.wheels()).context("cannot list the downloaded wheels")
}

/// Checks that the machine has Python and pip.
fn check_pip(host: &Host) -> Result<()> {
    match host.command("python3").args(["-m", "pip", "--version"]).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(_) => bail!(
            "python3 has no pip, with which libtorch is downloaded\n\
             install it (Debian, Ubuntu: `apt install python3-pip`; Fedora: `dnf install \
             python3-pip`; elsewhere: `python3 -m ensurepip`), or set LIBTORCH"
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => bail!(
            "there is no python3 on PATH, with whose pip libtorch is downloaded\n\
             install it (Debian, Ubuntu: `apt install python3 python3-pip`; Fedora: `dnf install \
             python3 python3-pip`), or set LIBTORCH"
        ),
        Err(error) => Err(error).context("cannot start python3"),
    }
}

/// The command of the download: the same wheels for any Python of the user.
fn pip_download(host: &Host, stage: &Stage, requirements: &Path) -> Command {
    let mut command = host.command("python3");
    command
        .args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:"])
        .args(["--no-input", "--disable-pip-version-check", "--progress-bar=off"])
        .arg("--python-version=3.12")
        .args(PLATFORMS.map(|platform| format!("--platform={platform}")))
        .arg("--dest")
        .arg(stage.wheels())
        .arg("--requirement")
        .arg(requirements)
        // The wheels have half a gigabyte, which is more than some /tmp hold.
        .env("TMPDIR", stage.temporary())
        // Careful users set this variable against installations; this command installs nothing.
        .env("PIP_REQUIRE_VIRTUALENV", "0");
    command
}

/// Waits for pip, and shows the downloaded share of the wheels.
fn watch(pip: &mut Child, temporary: &Path) -> io::Result<ExitStatus> {
    let bar = progress::bytes(BYTES);
    let status = loop {
        if let Some(status) = pip.try_wait()? {
            break status;
        }
        bar.set_position(wheel_bytes(temporary));
        thread::sleep(progress::INTERVAL);
    };
    bar.finish_and_clear();
    Ok(status)
}

/// The size of all wheels below `dir`, complete or not, in bytes; pip may move files meanwhile.
fn wheel_bytes(dir: &Path) -> u64 {
    let size = |path: PathBuf| match path.metadata() {
        Ok(found) if found.is_dir() => wheel_bytes(&path),
        Ok(found) if path.extension().is_some_and(|extension| extension == "whl") => found.len(),
        _ => 0,
    };
    files(dir).unwrap_or_default().into_iter().map(size).sum()
}

/// The paths of all entries of a directory.
fn files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect()
}

/// The end of pip's output, with a mark before each line.
fn last_lines(log: &str) -> String {
    let lines: Vec<_> = log.lines().map(|line| format!("  | {line}")).collect();
    lines[lines.len().saturating_sub(QUOTED_LINES)..].join("\n")
}
