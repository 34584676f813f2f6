//! The native engine: its rank program, and the libtorch that it runs on.
//!
//! `zprobe-rank` is built for one libtorch, with which it starts. A build puts the program next to `zprobe`; the
//! package zprobe-native puts the program into an environment, next to the torch that it was built for. On CUDA
//! devices the same program starts with a libtorch that has CUDA, whose directory is first on the library path.

mod gpus;
mod libtorch;
mod program;

use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

pub use gpus::{driver_is_there, gpus};
pub use libtorch::Libtorch;
pub use program::program;

use zprobe_engines::INSTALL_NATIVE;
use zprobe_launch::{Hosting, RankProgram};
use zprobe_model::run_dir;

/// The directory, inside of a run directory, for libraries under the names by which ranks look for them.
const LIBRARIES: &str = "libraries";

/// The Python package that holds the rank program.
const PACKAGE: &str = "zprobe-native";

/// The release of zprobe, which is also the release of its rank program.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The name by which ranks look for NCCL; NVIDIA's wheel has NCCL only as `libnccl.so.2`.
const NCCL: &str = "libnccl.so";

/// An error that prevents ranks of the native engine from being started.
#[derive(Debug, thiserror::Error)]
pub enum NativeError {
    /// The rank program cannot be found, or is of another release; holds the reason.
    #[error("the native engine is missing: {0}; {INSTALL_NATIVE}")]
    Missing(String),
    /// The run directory cannot be written.
    #[error("cannot write {path}: {cause}; choose another run directory with --out")]
    Unwritable {
        /// The path that could not be written.
        path: PathBuf,
        /// The error of the operating system.
        cause: io::Error,
    },
}

/// The rank program for ranks on the CPU.
pub fn cpu_ranks(program: PathBuf) -> RankProgram {
    RankProgram { program, args: Vec::new(), hosting: Hosting::Forked, library_path: Vec::new() }
}

/// The rank program for ranks on CUDA devices, with `libtorch` in place of the libtorch that the program was built
/// for, and with the NCCL library at the path `nccl` if there is one.
///
/// # Errors
/// When the run directory cannot be written.
pub fn cuda_ranks(
    program: PathBuf,
    libtorch: &Libtorch,
    nccl: Option<&Path>,
    dir: &Path,
) -> Result<RankProgram, NativeError> {
    let mut library_path = libtorch.library_path();
    if let Some(nccl) = nccl {
        let directory = dir.join(LIBRARIES);
        let unwritable = |path: &Path| {
            let path = path.to_owned();
            |cause| NativeError::Unwritable { path, cause }
        };
        run_dir::create_dir(&directory).map_err(unwritable(&directory))?;
        let link = directory.join(NCCL);
        symlink(nccl, &link).map_err(unwritable(&link))?;
        // The path is absolute, because ranks may change their directory.
        library_path.push(directory.canonicalize().map_err(unwritable(&directory))?);
    }
    Ok(RankProgram { library_path, ..cpu_ranks(program) })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn nccl_stands_on_the_library_path_under_the_name_that_is_looked_for() {
        let dir = tempfile::tempdir().unwrap();
        let nccl = dir.path().join("libnccl.so.2");
        fs::write(&nccl, "nccl").unwrap();
        let libtorch = Libtorch::in_directory(Path::new("/venv/torch/lib"));
        let run_dir = dir.path().join("run");
        let ranks = cuda_ranks("zprobe-rank".into(), &libtorch, Some(&nccl), &run_dir).unwrap();
        assert_eq!(ranks.library_path[0], Path::new("/venv/torch/lib"));
        let found = ranks.library_path.iter().map(|it| it.join(NCCL)).find(|it| it.is_file());
        assert_eq!(fs::read_to_string(found.unwrap()).unwrap(), "nccl");
    }
}
