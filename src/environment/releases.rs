//! Releases of a package, as the package index has them.

use std::process::Stdio;

use pep440_rs::Version;

use super::{Installer, ProvisionError};

/// Releases of a package that the index has for the interpreter of the installer, without pre-releases.
///
/// # Errors
/// If the index cannot be asked, or has no such package.
pub fn releases(package: &str, installer: &Installer) -> Result<Vec<Version>, ProvisionError> {
    let mut command = installer.list(package);
    let program = command.get_program().display().to_string();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|cause| ProvisionError::NoTool { program, cause })?;
    let all = listed(&String::from_utf8_lossy(&output.stdout));
    if output.status.success() && !all.is_empty() {
        return Ok(all);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().map(str::trim).rfind(|line| line.starts_with("ERROR"));
    Err(ProvisionError::NoReleases {
        package: package.to_owned(),
        said: said.unwrap_or("the index answered with none").to_owned(),
    })
}

/// The releases in the output of `pip index versions`.
fn listed(text: &str) -> Vec<Version> {
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix("Available versions:"));
    lines.flat_map(|all| all.split(',')).filter_map(|word| word.trim().parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_releases_are_read_from_what_pip_says() {
        let text = "deepspeed (0.19.8)\nAvailable versions: 0.19.8, 0.19.7, 0.18.10\n  INSTALLED: 0.19.8\n";
        let all: Vec<String> = listed(text).iter().map(Version::to_string).collect();
        assert_eq!(all, ["0.19.8", "0.19.7", "0.18.10"]);
        assert!(listed("ERROR: No matching distribution").is_empty());
    }
}
