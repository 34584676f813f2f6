//! Environments of commits: a commit of a package, installed over the environment of one of its releases.
//!
//! Such an environment, a layer, holds only the package. Its import path ends with the environment of the release, which
//! has all other modules. So the environment of a release is never changed, and a commit costs a build of the package
//! and a few megabytes.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{
    Cache, Installer, Packages, Progress, ProvisionError, Site, cache_error, digest, recipe,
};

/// The `.pth` file that puts the packages of a release on the import path of an environment layered on the release.
const LINK: &str = "zprobe-release.pth";

/// Number of characters of a commit's hash in the name of its environment.
const SHORT: usize = 12;

/// A commit of a package, checked out into a directory.
#[derive(Clone, Copy, Debug)]
pub struct CommitCheckout<'a> {
    /// The name of the package.
    pub package: &'a str,
    /// The full hash of the commit.
    pub id: &'a str,
    /// The directory of the checkout.
    pub checkout: &'a Path,
}

impl Cache {
    /// Provides an environment with a commit of a package, over the environment with the packages `release`, and
    /// returns its interpreter. Both environments are made if they do not exist.
    ///
    /// # Errors
    /// If an environment cannot be made, for example because the commit cannot be built or imported.
    pub fn provide_commit(
        &self,
        commit: CommitCheckout<'_>,
        release: &Packages,
        installer: &Installer,
        progress: &mut Progress<'_>,
    ) -> Result<PathBuf, ProvisionError> {
        let below = self.provide(release, installer, progress)?;
        let CommitCheckout { package, id, checkout } = commit;
        let (stage, import) = recipe::from_directory(package, checkout.display().to_string())?;
        let text = format!("{package} {id}\nover {}\n{:#?}\n", below.display(), stage.variables);
        let short = id.get(..SHORT).unwrap_or(id);
        let site = Site {
            dir: self.envs.join(format!("{package}-{short}-{}", digest(&text))),
            holds: format!("{package} {short}"),
            installer,
        };
        site.provide(&text, progress, |site, progress| {
            site.create(installer.create_with(&site.dir, &below), progress)?;
            link(&site.python(), &below)?;
            // The environment of the release has all requirements, and none of its packages may be replaced.
            site.install(&stage, &["--no-deps"], progress)?;
            import.iter().try_for_each(|import| site.import(import, progress))
        })
    }
}

/// Lets an environment find the packages of the environment `below` after its own packages.
fn link(python: &Path, below: &Path) -> Result<(), ProvisionError> {
    let own = packages(python)?;
    let mut line = packages(below)?;
    line.push("\n");
    let file = Path::new(&own).join(LINK);
    fs::write(&file, line.as_bytes()).map_err(|cause| cache_error(&file, cause))
}

/// The directory in which an interpreter has its packages (`purelib`).
fn packages(python: &Path) -> Result<OsString, ProvisionError> {
    let asked = Command::new(python)
        .args(["-I", "-c", "import sysconfig; print(sysconfig.get_path('purelib'), end='')"])
        .stdin(Stdio::null())
        .output();
    let output = asked
        .map_err(|cause| ProvisionError::NoTool { program: python.display().to_string(), cause })?;
    Ok(std::os::unix::ffi::OsStringExt::from_vec(output.stdout))
}
