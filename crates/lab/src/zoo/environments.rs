//! The environments of all cases, made with progress on standard error.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::rows::Case;
use crate::console::Line;
use crate::environment::{Cache, Installer};
use zprobe_zoo::Packages;

/// The interpreter of each environment, or the reason why there is none.
pub type Environments<'a> = BTreeMap<&'a Packages, Result<PathBuf, String>>;

/// Makes all environments one after the other: the network and the disk are the limit, not the processor.
/// One that cannot be made is a failure of its cases only.
pub fn provide<'a>(cache: &Cache, cases: &[Case<'a>]) -> Environments<'a> {
    let installer = Installer::find();
    let mut environments = Environments::new();
    for case in cases {
        let packages = &case.release.packages;
        if packages.is_empty() || environments.contains_key(packages) {
            continue;
        }
        let line = Line::steps();
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
