//! Chromium, in which the tests open HTML reports.
//!
//! Chromium is the one thing that is not installed below the target directory: it consists of a
//! program and dozens of the system's libraries.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::host::Host;

/// The program that the tests start.
const PROGRAM: &str = "chromium";

/// Packages of Debian with Chromium and with fonts.
const PACKAGES: [&str; 2] = ["chromium", "fonts-liberation"];

/// Advice where Chromium cannot be installed.
const ADVICE: &str = "install Chromium so that `chromium` is on PATH (on Debian: apt-get install \
                      chromium fonts-liberation), or name another build of it in ZPROBE_TEST_CHROMIUM";

/// Makes Chromium ready: uses the one that is there, or installs it with apt-get as root.
pub fn prepare(host: &Host) -> Result<()> {
    if host.chromium.is_some() || host.has(PROGRAM) {
        return Ok(());
    }
    ensure!(host.has("apt-get"), "there is no Chromium, and no apt-get to install it: {ADVICE}");
    ensure!(is_root(host), "there is no Chromium, and only root can install it: {ADVICE}");
    apt_get(host, &["update"])?;
    apt_get(host, &[&["install", "--yes", "--no-install-recommends"][..], &PACKAGES].concat())?;
    ensure!(host.has(PROGRAM), "apt-get installed no program `{PROGRAM}`: {ADVICE}");
    Ok(())
}

fn is_root(host: &Host) -> bool {
    let id = host.command("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

fn apt_get(host: &Host, args: &[&str]) -> Result<()> {
    let mut command: Command = host.command("apt-get");
    command.arg("--quiet").args(args).env("DEBIAN_FRONTEND", "noninteractive");
    let line = format!("apt-get {}", args.join(" "));
    eprintln!("$ {line}");
    let done = command.status().is_ok_and(|status| status.success());
    ensure!(done, "`{line}` failed; see the messages above; or else {ADVICE}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeHost;

    fn error(host: &Host) -> String {
        prepare(host).unwrap_err().to_string()
    }

    #[test]
    fn where_it_cannot_be_installed_is_said_what_to_do() {
        let bare = FakeHost::new();
        assert!(error(&bare).starts_with("there is no Chromium, and no apt-get"));
        let user = FakeHost::new().with("apt-get", "exit 0").with("id", "echo 1000");
        assert!(error(&user).contains("only root"));
        let offline = FakeHost::new().with("apt-get", "exit 100").with("id", "echo 0");
        assert!(error(&offline).starts_with("`apt-get update` failed"));
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
