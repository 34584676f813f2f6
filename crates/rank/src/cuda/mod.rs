//! CUDA: a libtorch that has it, the GPUs that the driver shows, and streams.
//!
//! This program is linked with the CPU part of libtorch alone, and starts where there is no CUDA. A
//! run on CUDA devices is started with the directory of a libtorch that has CUDA first on its library
//! path (`native` of the crate `zprobe-lab`); [`load`] then adds `libtorch_cuda.so`, and from there on libtorch has
//! CUDA devices. Nothing of this is touched in a run on the CPU.

mod host_copy;
mod library;
mod stream;

use anyhow::{Context as _, Result, anyhow, ensure};
use cudarc::driver::{result, sys};
use tch::Device;
use zprobe_model::spec::{self, Gpus, RunSpec};

pub use self::host_copy::HostCopy;
use self::library::Library;
pub use self::stream::{Mark, SideStream};
use crate::shim;

/// The library of libtorch that has CUDA.
const LIBTORCH_CUDA: &str = "libtorch_cuda.so";

/// The library of libtorch that this program is linked with.
const LIBTORCH_CPU: &str = "libtorch_cpu.so";

/// File name of NCCL, the only one in NVIDIA's wheel.
const NCCL: &str = "libnccl.so.2";

/// Loads libtorch's CUDA part. Calls nothing of CUDA, so that this process may still fork: a forked
/// child cannot use CUDA if its parent did.
pub fn load() -> Result<()> {
    Library::open(LIBTORCH_CUDA).map(drop).context("this libtorch has no CUDA")
}

/// The device of a rank: GPUs are assigned to ranks in turn.
pub fn device_of(spec: &RunSpec, rank: usize) -> Result<Device> {
    match spec.device {
        spec::Device::Cpu => Ok(Device::Cpu),
        spec::Device::Cuda => {
            let gpus = usize::try_from(tch::Cuda::device_count())?;
            ensure!(gpus > 0, "libtorch finds no GPU; look at `nvidia-smi`");
            Ok(Device::Cuda(rank % gpus))
        }
    }
}

/// A device's name as torch has it.
pub fn name(device: Device) -> String {
    match device {
        Device::Cuda(index) => format!("cuda:{index}"),
        _ => "cpu".to_owned(),
    }
}

/// The GPUs that can be used, or the reasons why they cannot. This process cannot fork afterwards.
pub fn describe() -> Gpus {
    let words = |error: anyhow::Error| format!("{error:#}");
    let names = names();
    let count = names.as_ref().map_or(0, Vec::len);
    Gpus {
        names: names.map_err(words),
        libtorch: libtorch(count).map_err(words),
        nccl: nccl().map_err(words),
        of_python: false,
    }
}

/// Names of the GPUs that the driver shows.
fn names() -> Result<Vec<String>> {
    // SAFETY: only looks for the library.
    ensure!(unsafe { sys::is_culib_present() }, "no NVIDIA driver: libcuda.so.1 is not there");
    let refused = |what| move |error| anyhow!("NVIDIA's driver does not {what}: {error}");
    result::init().map_err(refused("start"))?;
    let count = result::device::get_count().map_err(refused("count its GPUs"))?;
    (0..count)
        .map(|index| result::device::get_name(result::device::get(index)?))
        .collect::<Result<_, _>>()
        .map_err(refused("name its GPUs"))
}

/// Release and directory of the libtorch that is loaded, if it has CUDA and can use all `gpus`.
fn libtorch(gpus: usize) -> Result<String> {
    let directory = Library::open(LIBTORCH_CPU)?.directory()?;
    // CUDA is loaded first: libtorch remembers the answer to the first question about CUDA.
    let loaded = load();
    let found = shim::loaded_release();
    let name = format!("libtorch {found} in {}", directory.display());
    let built = shim::torch_version();
    ensure!(
        minor(&found) == minor(&built),
        "zprobe-rank is built for libtorch {built}, and this is {name}"
    );
    loaded.with_context(|| name.clone())?;
    let usable = usize::try_from(tch::Cuda::device_count())?;
    ensure!(
        usable >= gpus,
        "{name} can use {usable} of {gpus} GPUs; its CUDA may be newer than the driver"
    );
    Ok(name)
}

/// `2.11` of `2.11.0`: patch releases keep the interface.
fn minor(release: &str) -> &str {
    release.rsplit_once('.').map_or(release, |(minor, _)| minor)
}

/// The NCCL library that libtorch has loaded, or that the loader finds otherwise.
fn nccl() -> Result<String> {
    let directory = Library::open(NCCL).context("no NCCL library")?.directory()?.canonicalize()?;
    Ok(directory.join(NCCL).display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patch_releases_are_alike_and_minor_ones_are_not() {
        assert_eq!(minor("2.11.0"), minor("2.11.1"));
        assert_ne!(minor("2.11.0"), minor("2.1.0"));
    }

    #[test]
    fn the_libtorch_that_is_loaded_is_the_one_that_was_built_against() {
        assert_eq!(minor(&shim::loaded_release()), minor(&shim::torch_version()));
    }
}
