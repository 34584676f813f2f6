//! Environments of commits: a commit of a package, installed over the environment of one of its releases.
//!
//! The layer is an environment of its own that holds the package alone and finds all else in that of the
//! release, whose modules come later on its path. So no release's environment is ever changed, and a commit
//! costs a build of the package and a few megabytes.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{
    Cache, Installer, Packages, Progress, ProvisionError, Site, cache_error, digest, recipe,
};

/// File that leads from a layer to the packages of the release.
const LINK: &str = "zprobe-release.pth";

/// Length of the name of a commit in the name of its environment.
const SHORT: usize = 12;

/// A commit of a package, as it is checked out.
#[derive(Clone, Copy, Debug)]
pub struct Commit<'a> {
    /// The package.
    pub package: &'a str,
    /// Name of the commit, in full.
    pub id: &'a str,
    /// Directory of the checkout.
    pub checkout: &'a Path,
}

impl Cache {
    /// The interpreter of an environment with a commit of a package, over the environment of a release with
    /// these packages. Both are made if they do not exist.
    ///
    /// # Errors
    /// If one cannot be made, for example because the commit cannot be built or imported.
    pub fn provide_commit(
        &self,
        commit: Commit<'_>,
        release: &Packages,
        installer: &Installer,
        progress: &mut Progress<'_>,
    ) -> Result<PathBuf, ProvisionError> {
        let below = self.provide(release, installer, progress)?;
        let Commit { package, id, checkout } = commit;
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
            // What it requires is there: nothing of the release may be replaced.
            site.install(&stage, &["--no-deps"], progress)?;
            import.iter().try_for_each(|import| site.import(import, progress))
        })
    }
}

/// Lets an environment find the packages of another behind its own.
fn link(python: &Path, below: &Path) -> Result<(), ProvisionError> {
    let own = packages(python)?;
    let mut line = packages(below)?;
    line.push("\n");
    let file = Path::new(&own).join(LINK);
    fs::write(&file, line.as_bytes()).map_err(|cause| cache_error(&file, cause))
}

/// The directory in which an interpreter has its packages.
fn packages(python: &Path) -> Result<OsString, ProvisionError> {
    let asked = Command::new(python)
        .args(["-I", "-c", "import sysconfig; print(sysconfig.get_path('purelib'), end='')"])
        .stdin(Stdio::null())
        .output();
    let output = asked
        .map_err(|cause| ProvisionError::NoTool { program: python.display().to_string(), cause })?;
    Ok(std::os::unix::ffi::OsStringExt::from_vec(output.stdout))
}
