//! The packages of an environment, with their versions.

use std::collections::BTreeMap;
use std::fmt;

use pep440_rs::Version;
use serde::{Deserialize, Serialize};

/// Packages with one version each, sorted by name: `deepspeed` 0.18.9, `torch` 2.11.0.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Packages(BTreeMap<String, Version>);

impl Packages {
    /// Returns true if there are no packages, so that no environment is needed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The version of the package `name`; `None` if the package is not included.
    pub fn version(&self, name: &str) -> Option<&Version> {
        self.0.get(name)
    }

    /// Iterates over the packages and their versions, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Version)> {
        self.0.iter().map(|(name, version)| (name.as_str(), version))
    }

    /// A name for files and directories: `deepspeed-0.18.9-torch-2.11.0`.
    pub fn file_name(&self) -> String {
        let parts: Vec<String> =
            self.iter().map(|(name, version)| format!("{name}-{version}")).collect();
        parts.join("-")
    }
}

impl<N: Into<String>> FromIterator<(N, Version)> for Packages {
    fn from_iter<I: IntoIterator<Item = (N, Version)>>(packages: I) -> Self {
        Self(packages.into_iter().map(|(name, version)| (name.into(), version)).collect())
    }
}

impl IntoIterator for Packages {
    type Item = (String, Version);
    type IntoIter = std::collections::btree_map::IntoIter<String, Version>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl Extend<(String, Version)> for Packages {
    fn extend<T: IntoIterator<Item = (String, Version)>>(&mut self, packages: T) {
        self.0.extend(packages);
    }
}

/// The packages in words: `deepspeed 0.18.9, torch 2.11.0`.
impl fmt::Display for Packages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> =
            self.iter().map(|(name, version)| format!("{name} {version}")).collect();
        f.pad(&parts.join(", "))
    }
}
