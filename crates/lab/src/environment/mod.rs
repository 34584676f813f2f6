//! Python environments with pinned packages: made once, kept in a cache, used by many runs.
//!
//! An environment is made in its final directory, because the scripts in a virtual environment hold its path. It
//! counts as complete once its mark has been written, after all of its packages were imported. An environment that a
//! killed process left incomplete has no mark and is made anew. A lock on a file next to the environment keeps two
//! processes from making the same environment. The name of an environment ends in a digest of the whole plan, so a
//! changed recipe gives a new environment.

mod cached;
mod error;
mod installer;
mod layer;
mod recipe;
mod releases;

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use blake2::digest::consts::U4;
use blake2::{Blake2b, Digest as _};
use etcetera::BaseStrategy as _;
use zprobe_zoo::Packages;

pub use error::{ProvisionError, ToolFailure};
pub use installer::Installer;
pub use layer::CommitCheckout;
pub use recipe::{Plan, Stage};
pub use releases::releases;

use recipe::Import;

/// The file that marks an environment as complete; it holds the plan.
const MARK: &str = "zprobe-environment.txt";

/// The environment variable that names the directory of the cache.
pub const CACHE_VARIABLE: &str = "ZPROBE_CACHE_DIR";

/// Number of lines of a tool's output that an error shows.
const TAIL_LINES: usize = 15;

/// Advice for a failure of the installer.
const CHECK_INSTALL: &str =
    "Check the network, the space on the disk, and that the versions exist; then try again.";

/// Advice for an installed package that does not import.
const CHECK_IMPORT: &str = "The versions do not fit each other or this machine; state their requirements in \
     crates/lab/src/environment/recipe.toml.";

/// The directory in which Python environments are kept.
#[derive(Clone, Debug)]
pub struct Cache {
    envs: PathBuf,
}

impl Cache {
    /// Finds the cache: at `$ZPROBE_CACHE_DIR`, or at `zprobe` in the user's cache directory.
    ///
    /// # Errors
    /// If the user has no home directory.
    pub fn locate() -> Result<Self, ProvisionError> {
        if let Some(dir) = std::env::var_os(CACHE_VARIABLE).filter(|dir| !dir.is_empty()) {
            return Ok(Self::at(Path::new(&dir)));
        }
        let strategy = etcetera::choose_base_strategy()
            .map_err(|error| ProvisionError::NoCache { cause: error.to_string() })?;
        Ok(Self::at(&strategy.cache_dir().join("zprobe")))
    }

    /// The cache in the directory `dir`.
    pub fn at(dir: &Path) -> Self {
        // Every script of an environment holds this path, so the path must be absolute.
        let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
        Self { envs: dir.join("envs") }
    }

    /// Provides an environment with the given packages, made if it does not exist, and returns its interpreter.
    /// `progress` is called at each slow step, with the name of the step.
    ///
    /// # Errors
    /// If the environment cannot be made: no interpreter, no network, no space, versions that do not fit.
    pub fn provide(
        &self,
        packages: &Packages,
        installer: &Installer,
        progress: &mut dyn FnMut(&str),
    ) -> Result<PathBuf, ProvisionError> {
        let plan = Plan::new(packages)?;
        let (text, dir) = self.place(packages, &plan);
        let site = Site { dir, holds: packages.to_string(), installer };
        site.provide(&text, progress, |site, progress| {
            let create = installer.create(&site.dir, &plan.python);
            let none = || ProvisionError::NoPython { versions: plan.python.join(" or ") };
            site.create(create.ok_or_else(none)?, progress)?;
            plan.stages.iter().try_for_each(|stage| site.install(stage, &[], progress))?;
            plan.imports.iter().try_for_each(|import| site.import(import, progress))
        })
    }

    /// True if the environment with the given packages exists, so that it need not be made.
    pub fn has(&self, packages: &Packages) -> bool {
        let plan = Plan::new(packages);
        plan.is_ok_and(|plan| self.place(packages, &plan).1.join(MARK).is_file())
    }

    /// The text of a plan, and the directory for its environment.
    fn place(&self, packages: &Packages, plan: &Plan) -> (String, PathBuf) {
        // The digest of this text is part of the directory's name: with another name of a field, all environments are
        // made anew.
        let text = format!("{plan:#?}\n");
        let name = format!("{}-{}", packages.file_name(), digest(&text));
        (text, self.envs.join(name))
    }

    /// The directory for checkouts of commits, each of which exists only for a short while.
    pub fn checkouts(&self) -> PathBuf {
        self.in_cache("checkouts")
    }

    /// The directory for a copy of the git repository at `url`.
    pub fn repository(&self, url: &str) -> PathBuf {
        let name = url.trim_end_matches(['/', '.']).rsplit(['/', ':']).next().unwrap_or_default();
        let name: String =
            name.chars().filter(|it| it.is_ascii_alphanumeric() || "-_.".contains(*it)).collect();
        self.in_cache("repositories").join(format!("{name}-{}", digest(url)))
    }

    fn in_cache(&self, name: &str) -> PathBuf {
        self.envs.parent().unwrap_or(&self.envs).join(name)
    }
}

/// A short digest of a text, for the names of directories.
fn digest(text: &str) -> String {
    let digest = Blake2b::<U4>::digest(text.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The callback that receives the name of each slow step.
type Progress<'a> = dyn FnMut(&str) + 'a;

/// An environment that exists, or is going to be made.
struct Site<'a> {
    dir: PathBuf,
    /// The packages of the environment, in words.
    holds: String,
    installer: &'a Installer,
}

impl Site<'_> {
    /// Provides the environment, which `make` makes if it does not exist, and returns its interpreter. `text` is the
    /// plan.
    fn provide(
        &self,
        text: &str,
        progress: &mut Progress<'_>,
        make: impl FnOnce(&Self, &mut Progress<'_>) -> Result<(), ProvisionError>,
    ) -> Result<PathBuf, ProvisionError> {
        if self.is_complete() {
            self.mark_as_used();
            return Ok(self.python());
        }
        let envs = self.envs_dir();
        fs::create_dir_all(&envs).map_err(|cause| cache_error(&envs, cause))?;
        let _lock = self.lock(progress)?;
        // Another process may have made the environment meanwhile.
        if !self.is_complete() {
            self.clear()?;
            make(self, progress)?;
            let mark = self.dir.join(MARK);
            fs::write(&mark, text).map_err(|cause| cache_error(&mark, cause))?;
        }
        Ok(self.python())
    }

    fn python(&self) -> PathBuf {
        self.dir.join("bin/python")
    }

    /// The path next to the environment that has the same name and this extension.
    fn sibling(&self, extension: &str) -> PathBuf {
        sibling(&self.dir, extension)
    }

    /// Returns true if the environment is complete, and the interpreter that it links to still exists.
    fn is_complete(&self) -> bool {
        self.dir.join(MARK).is_file() && self.python().exists()
    }

    /// Writes the time of this use into the environment's mark, for `zprobe clean`. A failure is ignored, because the
    /// environment works without it.
    fn mark_as_used(&self) {
        let mark = File::options().append(true).open(self.dir.join(MARK));
        let _ = mark.and_then(|mark| mark.set_modified(SystemTime::now()));
    }

    /// Waits until no other process makes this environment, and locks the environment. The lock ends when the file is
    /// closed, at the latest when the process exits.
    fn lock(&self, progress: &mut Progress<'_>) -> Result<File, ProvisionError> {
        let path = self.sibling(".lock");
        let lock = File::create(&path).map_err(|cause| cache_error(&path, cause))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                progress("another process is making this environment: waiting for it");
                lock.lock().map_err(|cause| cache_error(&path, cause))?;
            }
            Err(TryLockError::Error(cause)) => return Err(cache_error(&path, cause)),
        }
        Ok(lock)
    }

    /// Removes the incomplete environment of a killed process, and begins a new log.
    fn clear(&self) -> Result<(), ProvisionError> {
        match fs::remove_dir_all(&self.dir) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                return Err(cache_error(&self.dir, cause));
            }
            _ => {}
        }
        let log = self.sibling(".log");
        File::create(&log).map(drop).map_err(|cause| cache_error(&log, cause))
    }

    /// Makes an empty virtual environment.
    fn create(&self, create: Command, progress: &mut Progress<'_>) -> Result<(), ProvisionError> {
        let step = "making a virtual environment";
        progress(step);
        self.run(step, create, CHECK_INSTALL)
    }

    /// Installs the requirements of a stage, with additional flags for the installer.
    fn install(
        &self,
        stage: &Stage,
        flags: &[&str],
        progress: &mut Progress<'_>,
    ) -> Result<(), ProvisionError> {
        let step = format!("installing {}", stage.requirements.join(" "));
        progress(&step);
        let mut install = self.installer.install(&self.python(), stage);
        install.args(flags);
        self.run(&step, install, CHECK_INSTALL)
    }

    /// Imports a package in the environment, to check that the package works.
    fn import(&self, import: &Import, progress: &mut Progress<'_>) -> Result<(), ProvisionError> {
        let step = format!("importing {}", import.package);
        progress(&step);
        let mut command = Command::new(self.python());
        command.args(["-c", &format!("import {}", import.package)]).envs(&import.variables);
        self.run(&step, command, CHECK_IMPORT)
    }

    /// Runs a tool, and appends all of its output to the log.
    fn run(
        &self,
        step: &str,
        mut command: Command,
        advice: &'static str,
    ) -> Result<(), ProvisionError> {
        let log = self.sibling(".log");
        let open = || File::options().append(true).open(&log);
        let cannot = |cause| cache_error(&log, cause);
        let before = fs::metadata(&log).map_err(cannot)?.len();
        let status = command
            .stdin(Stdio::null())
            .stdout(open().map_err(cannot)?)
            .stderr(open().map_err(cannot)?)
            // The user's own Python modules must not hide those of the environment.
            .env_remove("PYTHONPATH")
            .env_remove("PYTHONHOME")
            // Builds ask git for the commit; these variables, which a git hook sets, would point git to the user's
            // repository.
            .env_remove("GIT_DIR")
            .env_remove("GIT_WORK_TREE")
            .env_remove("GIT_INDEX_FILE")
            .env("OMP_NUM_THREADS", "1")
            .current_dir(self.envs_dir())
            .status()
            .map_err(|cause| ProvisionError::NoTool {
                program: command.get_program().display().to_string(),
                cause,
            })?;
        if status.success() {
            return Ok(());
        }
        let printed = fs::read(&log).map_err(cannot)?;
        let own = usize::try_from(before).ok().and_then(|start| printed.get(start..));
        Err(ProvisionError::Failed(Box::new(ToolFailure {
            packages: self.holds.clone(),
            step: step.to_owned(),
            status: status.to_string(),
            tail: tail(&String::from_utf8_lossy(own.unwrap_or_default())),
            advice,
            log,
        })))
    }

    /// The directory that holds the environment. Tools run there, because the directory has no project files of the
    /// user.
    fn envs_dir(&self) -> PathBuf {
        self.dir.parent().map(Path::to_owned).unwrap_or_default()
    }
}

/// The path next to an environment that has the same name and this extension.
fn sibling(dir: &Path, extension: &str) -> PathBuf {
    // Not `with_extension`, because versions hold dots.
    let mut path = dir.to_owned().into_os_string();
    path.push(extension);
    path.into()
}

/// The last lines of a tool's output, indented.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(TAIL_LINES)..];
    last.iter().map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n")
}

fn cache_error(path: &Path, cause: io::Error) -> ProvisionError {
    ProvisionError::Cache { path: path.to_owned(), cause }
}
