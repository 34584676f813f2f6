//! CUDA for a run: the GPUs of this machine as the run's engine finds them, and native ranks on these GPUs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::doctor::{PythonAttempt, PythonFacts};
use crate::native::{self, Libtorch, NativeError};
use anyhow::{Context as _, Result};
use zprobe_launch::RankProgram;
use zprobe_model::spec::{Backend, Gpus, RunSpec};

use super::limits::PATIENCE;

/// The GPUs for the engine of a run, and the software to use them.
#[derive(Clone, Debug)]
pub enum EngineGpus {
    /// The GPUs that the native engine finds.
    Native(Cuda),
    /// The GPUs that the torch of a real engine's interpreter finds.
    Real(Gpus),
}

/// The GPUs that this process has found so far. A key has true and the interpreter of a real engine, or false and the
/// interpreter whose libtorch the native engine uses.
static FOUND: Mutex<BTreeMap<(bool, Option<PathBuf>), EngineGpus>> = Mutex::new(BTreeMap::new());

impl EngineGpus {
    /// Looks for the GPUs of the native engine, with the libtorch of the interpreter `python` if it is given. The
    /// engine itself may be in the environment of the interpreter `home`.
    pub fn native(python: Option<&Path>, home: &Path) -> Result<Self> {
        Self::look((false, python), || Cuda::look(python, home).map(Self::Native))
    }

    /// Looks for the GPUs of a real engine, with the torch of the interpreter `python`.
    pub fn real(python: &Path) -> Result<Self> {
        Self::look((true, Some(python)), || Ok(Self::Real(of_python(python))))
    }

    fn look(
        (is_real, python): (bool, Option<&Path>),
        look: impl FnOnce() -> Result<Self>,
    ) -> Result<Self> {
        let key = (is_real, python.map(Path::to_owned));
        let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = found.get(&key) {
            return Ok(known.clone());
        }
        let new = look()?;
        found.insert(key, new.clone());
        Ok(new)
    }

    /// The GPUs that were found.
    pub fn gpus(&self) -> &Gpus {
        match self {
            Self::Native(cuda) => &cuda.gpus,
            Self::Real(gpus) => gpus,
        }
    }
}

/// The GPUs of this machine, and the software with which the native engine uses them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cuda {
    /// The GPUs that the rank program sees.
    pub gpus: Gpus,
    program: PathBuf,
    libtorch: Result<Libtorch, String>,
}

impl Cuda {
    /// Looks for GPUs, with the libtorch that the variable `LIBTORCH` names, or with the torch of an interpreter.
    pub fn look(python: Option<&Path>, home: &Path) -> Result<Self> {
        let program = native::program(Some(home)).map_err(NativeError::Missing)?;
        let named = std::env::var_os("LIBTORCH").filter(|path| !path.is_empty());
        let libtorch = Libtorch::named(named.as_deref().map(Path::new), python);
        let gpus = native::gpus(&program, &libtorch);
        Ok(Self { gpus, program, libtorch })
    }

    /// The rank program for a run on the GPUs.
    pub fn ranks(&self, spec: &RunSpec, run_dir: &Path) -> Result<RankProgram> {
        let libtorch =
            self.libtorch.as_ref().ok().context("a run on CUDA needs a libtorch with CUDA")?;
        let nccl = self.gpus.nccl.as_ref().ok().filter(|_| spec.backend == Backend::Nccl);
        let nccl = nccl.map(Path::new);
        Ok(native::cuda_ranks(self.program.clone(), libtorch, nccl, run_dir)?)
    }
}

/// The GPUs that the torch of an interpreter finds, as a real engine needs them.
fn of_python(python: &Path) -> Gpus {
    match PythonFacts::ask_about(&["gpus", "cuda", "nccl", "backends"], python, PATIENCE) {
        Ok(answer) => reported_by(&answer),
        Err(error) => {
            let problem = error.to_string();
            let (names, nccl) = (Err(problem.clone()), Err(problem.clone()));
            Gpus { names, libtorch: Err(problem), nccl, of_python: true }
        }
    }
}

/// The GPUs that the answer of an interpreter reports.
fn reported_by(python: &PythonFacts) -> Gpus {
    let problem = |what: &str, problem: &str| format!("{what} ({}): {problem}", python.executable);
    let libtorch = match (&python.torch, &python.cuda) {
        (PythonAttempt::Value(torch), PythonAttempt::Value(cuda)) if cuda == "none" => {
            Err(format!("torch {torch} ({}) was built only for the CPU", python.executable))
        }
        (PythonAttempt::Value(torch), PythonAttempt::Value(cuda)) => {
            Ok(format!("torch {torch}, {cuda}"))
        }
        (PythonAttempt::Problem(reason), _) | (_, PythonAttempt::Problem(reason)) => {
            Err(problem("torch", reason))
        }
    };
    let names = match (&python.gpus, &libtorch) {
        (PythonAttempt::Value(names), Ok(_)) if names.is_empty() => {
            Err(problem("no GPU", "torch finds no GPU that it can use"))
        }
        (PythonAttempt::Value(names), _) => Ok(names.clone()),
        (PythonAttempt::Problem(reason), _) => Err(problem("the GPUs", reason)),
    };
    let has_nccl = python.backends.value().is_some_and(|it| it.iter().any(|name| name == "nccl"));
    let nccl = match &python.nccl {
        PythonAttempt::Value(version) if has_nccl => Ok(version.clone()),
        PythonAttempt::Value(_) => Err(problem("NCCL", "torch.distributed has no backend nccl")),
        PythonAttempt::Problem(reason) => Err(problem("NCCL", reason)),
    };
    Gpus { names, libtorch, nccl, of_python: true }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zprobe_model::spec::{Backend, Device, DeviceChoice, Engine, SpecRequest};

    fn answer(cuda: &str, gpus: &[&str]) -> PythonFacts {
        serde_json::from_value(serde_json::json!({
            "executable": "/venv/bin/python",
            "version": "3.12.3",
            "torch": {"value": "2.11.0+cu130"},
            "backends": {"value": ["gloo", "nccl"]},
            "gpus": {"value": gpus},
            "cuda": {"value": cuda},
            "nccl": {"value": "2.28.3"},
        }))
        .unwrap()
    }

    fn placed(
        python: &PythonFacts,
        device: Option<DeviceChoice>,
    ) -> Result<(Device, Backend), String> {
        let (engine, gpus) = (Some(Engine::Ddp), Some(reported_by(python)));
        let request = SpecRequest { engine, gpus, device, ..SpecRequest::default() };
        request.resolve().map(|spec| (spec.device, spec.backend)).map_err(|it| it.to_string())
    }

    #[test]
    fn a_real_engine_is_on_the_gpus_that_its_torch_finds() {
        let cuda = Some(DeviceChoice::Cuda);
        let there = answer("CUDA 13.0", &["H200", "H200"]);
        assert_eq!(placed(&there, None), Ok((Device::Cuda, Backend::Nccl)));
        assert_eq!(placed(&there, cuda), Ok((Device::Cuda, Backend::Nccl)));
        let no_gpu = answer("CUDA 13.0", &[]);
        assert_eq!(placed(&no_gpu, None), Ok((Device::Cpu, Backend::Gloo)));
        let reason = placed(&no_gpu, cuda).unwrap_err();
        assert!(reason.contains("torch finds no GPU that it can use"), "{reason}");
        let cpu = answer("none", &[]);
        assert_eq!(placed(&cpu, None), Ok((Device::Cpu, Backend::Gloo)));
        let reason = placed(&cpu, cuda).unwrap_err();
        assert!(reason.contains("was built only for the CPU"), "{reason}");
        assert!(reason.contains("name another Python with --python"), "{reason}");
    }
}
