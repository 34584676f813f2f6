//! The release of a libtorch, read from its headers.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::VERSION;

/// The headers that define the version numbers: the first since torch 2.9, the second before.
const HEADERS: [&str; 2] =
    ["include/torch/headeronly/version.h", "include/torch/csrc/api/include/torch/version.h"];

/// A release: the major, minor and patch number.
pub struct Version([u32; 3]);

impl Version {
    /// The release of the libtorch in `dir`.
    pub fn of(dir: &Path) -> Result<Self> {
        HEADERS
            .iter()
            .filter_map(|header| fs::read_to_string(dir.join(header)).ok())
            .find_map(|text| Self::parse(&text))
            .with_context(|| {
                format!(
                    "cannot find the release of the libtorch in {}: there is no version in {}",
                    dir.display(),
                    HEADERS.join(" or ")
                )
            })
    }

    /// Returns true if the release differs from [`VERSION`] at most in the patch number.
    pub fn is_compatible(&self) -> bool {
        let wanted = VERSION.split('.').map(str::parse);
        wanted.zip(self.0).take(2).all(|(wanted, found)| wanted == Ok(found))
    }

    /// Reads the three numbers of a version header; `None` if a number is missing.
    fn parse(header: &str) -> Option<Self> {
        let number = |name: &str| {
            let mut lines = header.lines().map(|line| line.split_whitespace());
            let mut words = lines.find(|words| words.clone().take(2).eq(["#define", name]))?;
            words.nth(2)?.parse().ok()
        };
        Some(Self([
            number("TORCH_VERSION_MAJOR")?,
            number("TORCH_VERSION_MINOR")?,
            number("TORCH_VERSION_PATCH")?,
        ]))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self([major, minor, patch]) = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "#pragma once\n\n#define TORCH_VERSION_MAJOR 2\n\
        #define TORCH_VERSION_MINOR 11\n#define TORCH_VERSION_PATCH 1\n\n\
        #define TORCH_VERSION \\\n  \"2.11.1\"\n";

    #[test]
    fn a_header_is_read() {
        let version = Version::parse(HEADER).unwrap();
        assert_eq!(version.to_string(), "2.11.1");
        assert!(version.is_compatible());
    }

    #[test]
    fn a_header_without_numbers_is_not() {
        assert!(Version::parse("#include <torch/headeronly/version.h>\n").is_none());
    }
}
