//! Unpacks the needed parts of the wheels.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::progress;
use super::stage::Stage;
use crate::host::Host;

/// A Python program that unpacks members of wheels; every machine of this set-up has Python.
const UNPACK: &str = include_str!("unpack.py");

/// The needed files and directories: the path in a wheel, and the path in a libtorch directory.
///
/// These are the headers, the two libraries to link, and the three libraries that the two load.
const CONTENTS: [(&str, &str); 6] = [
    ("torch/include", "include"),
    ("torch/lib/libtorch_cpu.so", "lib/libtorch_cpu.so"),
    ("torch/lib/libc10.so", "lib/libc10.so"),
    ("torch/lib/libgomp.so.1", "lib/libgomp.so.1"),
    ("nvidia/cu13/lib/libcudart.so.13", "lib/libcudart.so.13"),
    ("nvidia/cu13/lib/libcupti.so.13", "lib/libcupti.so.13"),
];

/// Unpacks the wheels into the libtorch directory of the stage.
pub fn wheels(host: &Host, stage: &Stage, wheels: &[PathBuf]) -> Result<()> {
    eprintln!("unpacking libtorch");
    let spinner = progress::spinner("unpacking");
    let output = host
        .command("python3")
        .args(["-c", UNPACK, "--destination"])
        .arg(stage.unpacked())
        .args(CONTENTS.map(|(member, _)| format!("--member={member}")))
        .args(wheels)
        .output()
        .context("cannot start python3")?;
    spinner.finish_and_clear();
    if !output.status.success() {
        bail!(
            "cannot unpack libtorch into {} ({}):\n{}",
            stage.unpacked().display(),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
    }

    let lib = stage.prefix().join("lib");
    fs::create_dir(&lib).with_context(|| format!("cannot create {}", lib.display()))?;
    for (member, place) in CONTENTS {
        fs::rename(stage.unpacked().join(member), stage.prefix().join(place))
            .with_context(|| format!("cannot take {member} out of the downloaded wheels"))?;
    }
    Ok(())
}
