//! Debian's packages, for the few programs that do not fit into one directory.

use std::process::Command;

use anyhow::{Result, ensure};

use super::Host;

/// Installs packages with apt-get, as root.
///
/// # Errors
/// If there is no apt-get, if the user is not root, or if apt-get fails.
pub fn install(host: &Host, packages: &[&str]) -> Result<()> {
    ensure!(host.has("apt-get"), "there is no apt-get to install {} with", packages.join(", "));
    ensure!(is_root(host), "only root can install {}", packages.join(", "));
    apt_get(host, &["update"])?;
    apt_get(host, &[&["install", "--yes", "--no-install-recommends"][..], packages].concat())
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
    ensure!(done, "`{line}` failed; see the messages above");
    Ok(())
}
