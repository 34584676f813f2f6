//! CUDA for the native engine: the GPUs of this machine, and the ranks that run on them.

use std::path::{Path, PathBuf};

use crate::launch::RankProgram;
use crate::native::{self, Libtorch};
use crate::spec::{Backend, Gpus, RunSpec};
use anyhow::{Context as _, Result};

/// The GPUs of this machine, and the software to use them.
#[derive(Clone, Debug)]
pub struct Cuda {
    /// The GPUs that the rank program sees.
    pub gpus: Gpus,
    program: PathBuf,
    libtorch: Result<Libtorch, String>,
}

impl Cuda {
    /// Looks for GPUs, with the libtorch that `LIBTORCH` names, or the torch of an interpreter.
    pub fn look(python: Option<&Path>) -> Result<Self> {
        let program = native::program()?;
        let named = std::env::var_os("LIBTORCH").filter(|path| !path.is_empty());
        let libtorch = Libtorch::named(named.as_deref().map(Path::new), python);
        let gpus = native::gpus(&program, &libtorch);
        Ok(Self { gpus, program, libtorch })
    }

    /// Ranks on the GPUs.
    pub fn ranks(&self, spec: &RunSpec, run_dir: &Path) -> Result<RankProgram> {
        let libtorch =
            self.libtorch.as_ref().ok().context("a run on CUDA without a libtorch for it")?;
        let nccl = self.gpus.nccl.as_ref().ok().filter(|_| spec.backend == Backend::Nccl);
        let nccl = nccl.map(Path::new);
        Ok(native::cuda_ranks(self.program.clone(), libtorch, nccl, run_dir)?)
    }
}
