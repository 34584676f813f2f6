//! Chooses the device that the ranks compute on and the backend that they communicate over, by the request and the
//! machine.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{DEFAULT_WORLD_SIZE, Engine, Invalid, SpecRequest, named_enum};

named_enum! {
    /// The value of `--device`.
    pub enum DeviceChoice {
        /// CUDA if the engine can use a GPU, otherwise the CPU.
        Auto = "auto",
        /// The CPU, even if there is a GPU.
        Cpu = "cpu",
        /// GPUs: one for each rank, or one for several ranks.
        #[value(alias = "gpu")]
        Cuda = "cuda",
    }
}

named_enum! {
    /// The value of `--backend`.
    pub enum BackendChoice {
        /// NCCL if each rank has a GPU of its own, otherwise Gloo.
        Auto = "auto",
        /// Gloo; on GPUs through the host's memory.
        Gloo = "gloo",
        /// NCCL, which needs a GPU for each rank.
        Nccl = "nccl",
    }
}

named_enum! {
    /// The device that the ranks compute on.
    pub enum Device {
        /// The CPU of the machine.
        Cpu = "cpu",
        /// CUDA devices; rank r computes on GPU r modulo the number of GPUs.
        Cuda = "cuda",
    }
}

named_enum! {
    /// The backend over which gradients are communicated.
    pub enum Backend {
        /// Gloo; on CUDA devices through the host's memory.
        Gloo = "gloo",
        /// NCCL, which needs a GPU for each rank.
        Nccl = "nccl",
    }
}

/// The CPU, which was the only device before the setting existed.
impl Default for Device {
    fn default() -> Self {
        Self::Cpu
    }
}

/// Gloo, over which ranks on the CPU communicate.
impl Default for Backend {
    fn default() -> Self {
        Self::Gloo
    }
}

/// The parts of CUDA that an engine finds on a machine. An error says in words which part is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpus {
    /// The names of the GPUs that the driver shows.
    pub names: Result<Vec<String>, String>,
    /// The release and the directory of the libtorch that was loaded, if it has CUDA; for a real engine, those of
    /// its interpreter's torch.
    pub libtorch: Result<String, String>,
    /// The path of the NCCL library, or its version.
    pub nccl: Result<String, String>,
    /// True if the torch of an interpreter found these parts, for real engines.
    #[serde(default)]
    pub of_python: bool,
}

/// One missing part that keeps ranks from using CUDA, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// A description of the missing part.
    pub what: String,
    /// The advice on what to do about the missing part.
    pub advice: &'static str,
}

/// All missing parts that keep ranks from using CUDA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoCuda(pub Vec<Missing>);

impl fmt::Display for NoCuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Missing { what, advice } in &self.0 {
            write!(f, "\n  {what}\n    to do: {advice}")?;
        }
        Ok(())
    }
}

impl Gpus {
    /// The number of GPUs that the driver shows; 0 if the driver cannot be asked.
    pub fn count(&self) -> usize {
        self.names.as_ref().map_or(0, Vec::len)
    }

    /// Checks that ranks can compute on the GPUs.
    ///
    /// # Errors
    /// Fails with all parts that are missing.
    pub fn usable(&self) -> Result<(), NoCuda> {
        let mut missing = Vec::new();
        match &self.names {
            Err(what) => missing.push(Missing {
                what: what.clone(),
                advice: "install NVIDIA's driver, or start the container with `--gpus all`",
            }),
            Ok(names) if names.is_empty() => missing.push(Missing {
                what: "the driver shows no GPU".to_owned(),
                advice: "check `nvidia-smi` and CUDA_VISIBLE_DEVICES",
            }),
            Ok(_) => {}
        }
        if let Err(what) = &self.libtorch {
            let advice = if self.of_python {
                "install a torch with CUDA in that environment, or name another Python with --python"
            } else {
                "`pip install torch==2.11.0`, and name its interpreter with --python, \
                 or its directory with LIBTORCH, which takes precedence"
            };
            missing.push(Missing { what: what.clone(), advice });
        }
        if missing.is_empty() { Ok(()) } else { Err(NoCuda(missing)) }
    }

    /// Checks that ranks can compute on the GPUs and communicate over NCCL.
    fn usable_with_nccl(&self) -> Result<(), NoCuda> {
        let mut missing = self.usable().map_or_else(|NoCuda(missing)| missing, |()| Vec::new());
        // NCCL is only looked for next to a libtorch that has CUDA.
        if let (Err(what), Ok(_)) = (&self.nccl, &self.libtorch) {
            missing.push(Missing {
                what: what.clone(),
                advice: "`pip install nvidia-nccl-cu13` in the environment of that torch, or use --backend gloo",
            });
        }
        if missing.is_empty() { Ok(()) } else { Err(NoCuda(missing)) }
    }
}

/// The device, the backend and the number of ranks of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placement {
    pub(super) device: Device,
    pub(super) backend: Backend,
    pub(super) world_size: usize,
}

impl SpecRequest {
    /// Chooses the device, the backend and the number of ranks.
    pub(super) fn place(&self, engine: Engine) -> Result<Placement, Invalid> {
        let asked_device = self.device.unwrap_or(DeviceChoice::Auto);
        let asked_backend = self.backend.unwrap_or(BackendChoice::Auto);
        // The flags that are of no use without a GPU.
        let wants = [
            ("--device cuda", asked_device == DeviceChoice::Cuda),
            ("--backend nccl", asked_backend == BackendChoice::Nccl),
            ("--nproc-per-node gpu", self.rank_per_gpu),
        ];
        let wants = wants.into_iter().find_map(|(flag, asked)| asked.then_some(flag));
        let on_gpus = engine.traits().on_gpus;
        if let (Some(flag), false) = (wants, on_gpus) {
            return Err(Invalid::contradiction(
                flag,
                "ranks of this engine run only on the CPU over Gloo; use another engine with --engine, or drop \
                 the flag",
            ));
        }
        if let (Some(flag), DeviceChoice::Cpu) = (wants, asked_device) {
            return Err(Invalid::contradiction(
                format!("{flag} with --device cpu"),
                "ranks on the CPU have no GPU; drop one of the two flags",
            ));
        }
        let on_cpu = |this: &Self| -> Result<Placement, Invalid> {
            let world_size = this.ranks(DEFAULT_WORLD_SIZE)?;
            Ok(Placement { device: Device::Cpu, backend: Backend::Gloo, world_size })
        };
        if !on_gpus || asked_device == DeviceChoice::Cpu {
            return on_cpu(self);
        }
        let gpus = match (&self.gpus, wants) {
            (Some(gpus), _) => gpus,
            (None, None) => return on_cpu(self),
            (None, Some(flag)) => return Err(Invalid::GpusNotLookedFor { flag }),
        };
        match (gpus.usable(), wants) {
            (Err(_), None) => return on_cpu(self),
            (Err(missing), Some(flag)) => return Err(Invalid::NoCuda { flag, missing }),
            (Ok(()), _) => {}
        }
        let world_size = if self.rank_per_gpu { gpus.count() } else { self.ranks(gpus.count())? };
        let backend = match asked_backend {
            BackendChoice::Gloo => Backend::Gloo,
            BackendChoice::Auto if world_size > gpus.count() => Backend::Gloo,
            BackendChoice::Auto => Backend::Nccl,
            BackendChoice::Nccl if world_size > gpus.count() => {
                return Err(Invalid::RanksShareGpus { world_size, gpus: gpus.count() });
            }
            BackendChoice::Nccl => Backend::Nccl,
        };
        if let (Backend::Nccl, Err(missing)) = (backend, gpus.usable_with_nccl()) {
            return Err(Invalid::NoCuda { flag: "--backend nccl", missing });
        }
        Ok(Placement { device: Device::Cuda, backend, world_size })
    }

    fn ranks(&self, default: usize) -> Result<usize, Invalid> {
        match self.world_size {
            Some(0) => Err(Invalid::Zero { flag: "--nproc-per-node" }),
            asked => Ok(asked.unwrap_or(default)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(count: usize) -> Gpus {
        Gpus {
            names: Ok(vec!["H100".to_owned(); count]),
            libtorch: Ok("2.11.0 in /venv/torch/lib".to_owned()),
            nccl: Ok("/venv/nvidia/nccl/lib/libnccl.so.2".to_owned()),
            of_python: false,
        }
    }

    fn on(gpus: Gpus) -> SpecRequest {
        SpecRequest { gpus: Some(gpus), ..SpecRequest::default() }
    }

    fn placed(request: &SpecRequest) -> (Device, Backend, usize) {
        let Placement { device, backend, world_size } = request.place(Engine::Native).unwrap();
        (device, backend, world_size)
    }

    fn refusal(request: &SpecRequest, engine: Engine) -> String {
        request.place(engine).map_or_else(|invalid| invalid.to_string(), |it| format!("{it:?}"))
    }

    #[test]
    fn each_gpu_is_a_rank_and_ranks_that_share_one_use_gloo() {
        let ranks = |count, world_size| SpecRequest { world_size, ..on(gpus(count)) };
        assert_eq!(placed(&ranks(4, None)), (Device::Cuda, Backend::Nccl, 4));
        assert_eq!(placed(&ranks(4, Some(2))), (Device::Cuda, Backend::Nccl, 2));
        assert_eq!(placed(&ranks(4, Some(4))), (Device::Cuda, Backend::Nccl, 4));
        assert_eq!(placed(&ranks(4, Some(5))), (Device::Cuda, Backend::Gloo, 5));
        let per_gpu = SpecRequest { rank_per_gpu: true, ..ranks(3, None) };
        assert_eq!(placed(&per_gpu), (Device::Cuda, Backend::Nccl, 3));
        let gloo = SpecRequest { backend: Some(BackendChoice::Gloo), ..ranks(4, None) };
        assert_eq!(placed(&gloo), (Device::Cuda, Backend::Gloo, 4));
    }

    #[test]
    fn what_does_not_ask_for_a_gpu_runs_on_the_cpu_where_one_cannot_be_used() {
        let cpu = (Device::Cpu, Backend::Gloo, DEFAULT_WORLD_SIZE);
        assert_eq!(placed(&SpecRequest::default()), cpu);
        assert_eq!(placed(&on(gpus(0))), cpu);
        let no_driver = Gpus { names: Err("no driver".to_owned()), ..gpus(0) };
        assert_eq!(placed(&on(no_driver)), cpu);
        let no_cuda = Gpus { libtorch: Err("CPU only".to_owned()), ..gpus(8) };
        assert_eq!(placed(&on(no_cuda)), cpu);
        let asked = SpecRequest { device: Some(DeviceChoice::Cpu), ..on(gpus(8)) };
        assert_eq!(placed(&asked), cpu);
        let pipeline = on(gpus(8)).place(Engine::Pipeline).unwrap();
        assert_eq!(pipeline.device, Device::Cpu);
    }

    #[test]
    fn nccl_that_is_missing_is_not_replaced_by_gloo_unasked() {
        let without = Gpus { nccl: Err("no libnccl.so.2".to_owned()), ..gpus(2) };
        assert!(refusal(&on(without.clone()), Engine::Native).contains("no libnccl.so.2"));
        let gloo = SpecRequest { backend: Some(BackendChoice::Gloo), ..on(without) };
        assert_eq!(placed(&gloo), (Device::Cuda, Backend::Gloo, 2));
    }

    #[test]
    fn what_is_asked_for_and_cannot_be_had_is_refused_with_everything_that_is_missing() {
        let cuda = || SpecRequest { device: Some(DeviceChoice::Cuda), ..SpecRequest::default() };
        let nccl = || SpecRequest { backend: Some(BackendChoice::Nccl), ..SpecRequest::default() };
        let nothing = Gpus {
            names: Err("no NVIDIA driver: libcuda.so.1 is not there".to_owned()),
            libtorch: Err("the libtorch 2.11.0 in /lib has no CUDA".to_owned()),
            nccl: Err("not looked for".to_owned()),
            of_python: false,
        };
        let cpu = Some(DeviceChoice::Cpu);
        let native = Engine::Native;
        insta::assert_snapshot!(
            [
                refusal(&SpecRequest { gpus: Some(nothing.clone()), ..cuda() }, native),
                refusal(&SpecRequest { gpus: Some(nothing), ..nccl() }, native),
                refusal(&SpecRequest { gpus: Some(gpus(0)), ..cuda() }, native),
                refusal(
                    &SpecRequest { gpus: Some(gpus(2)), world_size: Some(3), ..nccl() },
                    native
                ),
                refusal(&SpecRequest { device: cpu, ..nccl() }, native),
                refusal(
                    &SpecRequest { device: cpu, rank_per_gpu: true, ..SpecRequest::default() },
                    native
                ),
                refusal(&cuda(), native),
                refusal(&cuda(), Engine::Pipeline),
                refusal(&nccl(), Engine::Pipeline),
            ]
            .join("\n")
        );
    }
}
