//! The releases of a package, as the package index lists them.

use std::process::Stdio;

use pep440_rs::Version;

use super::{Installer, ProvisionError};

/// The releases of a package that the index lists for the installer's interpreter, with pre-releases if `pre`.
///
/// # Errors
/// If the index cannot be reached, or has no such package.
pub fn releases(
    package: &str,
    pre: bool,
    installer: &Installer,
) -> Result<Vec<Version>, ProvisionError> {
    let mut command = installer.list(package, pre);
    let program = command.get_program().display().to_string();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|cause| ProvisionError::NoTool { program, cause })?;
    let all = listed(&String::from_utf8_lossy(&output.stdout));
    if output.status.success() && !all.is_empty() {
        return Ok(all);
    }
    let reason = complaint(&String::from_utf8_lossy(&output.stderr));
    Err(ProvisionError::NoReleases {
        package: package.to_owned(),
        reason: reason.unwrap_or_else(|| "the index listed no releases".to_owned()),
    })
}

/// The error of pip, or of the uv that fetches pip: the last line of the output that names a cause or an error.
fn complaint(text: &str) -> Option<String> {
    let mut reason = None;
    for line in
        text.lines().map(|line| line.trim().trim_start_matches(['×', '╰', '├', '─', '▶', ' ']))
    {
        let rest = ["cause:", "Caused by:", "ERROR:", "error:"]
            .iter()
            .find_map(|it| line.strip_prefix(it));
        reason = rest.or(reason);
    }
    reason.map(|text| text.trim().to_owned())
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

    #[test]
    fn the_reason_why_no_releases_are_known_is_the_last_that_the_tool_says() {
        for word in ["cause", "Caused by"] {
            let uv = format!(
                "Using Python 3.11\nerror: Request failed after 3 retries\n  {word}: Failed to fetch: \
                 `https://index/pip/`\n  {word}: dns error\n"
            );
            assert_eq!(complaint(&uv).as_deref(), Some("dns error"));
        }
        let pip = "WARNING: slow\nERROR: No matching distribution found for no-such\n";
        assert_eq!(complaint(pip).as_deref(), Some("No matching distribution found for no-such"));
        assert_eq!(complaint("WARNING: slow\n"), None);
    }
}
