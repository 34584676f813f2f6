//! Makes the environments of all cases, with progress on standard error.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::rows::ZooCase;
use crate::console::ProgressLine;
use crate::environment::{Cache, Installer};
use zprobe_zoo::Packages;

/// The interpreter of each environment, or the reason why the environment could not be made.
pub type Environments<'a> = BTreeMap<&'a Packages, Result<PathBuf, String>>;

/// Makes all environments one after the other, because the network and the disk are the limit, not the processor. If
/// an environment cannot be made, only its cases fail.
pub fn provide<'a>(cache: &Cache, cases: &[ZooCase<'a>]) -> Environments<'a> {
    let installer = Installer::find();
    let mut environments = Environments::new();
    for case in cases {
        let packages = &case.release.packages;
        if packages.is_empty() || environments.contains_key(packages) {
            continue;
        }
        let line = ProgressLine::steps();
        let python = cache.provide(packages, &installer, &mut |step| {
            line.step(&format!("{packages}: {step}"));
        });
        let python = python.map_err(|error| {
            line.error(&error.to_string());
            error.to_string()
        });
        environments.insert(packages, python);
    }
    environments
}
