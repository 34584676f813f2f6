//! CUDA support: loads a libtorch with CUDA, lists the GPUs, and provides streams and copies.
//!
//! This program is linked with only the CPU part of libtorch, so that it starts without CUDA. For a run on CUDA
//! devices, zprobe puts the directory of a libtorch with CUDA at the beginning of this program's library path (`native`
//! of the crate `zprobe-lab`). [`load`] then adds `libtorch_cuda.so`, and from then on libtorch has CUDA devices. A run
//! on the CPU uses nothing of this module.

mod host_copy;
mod library;
mod stream;

use anyhow::{Context as _, Result, anyhow, ensure};
use cudarc::driver::{result, sys};
use tch::Device;
use zprobe_model::spec::{self, Gpus, RunSpec};

pub use self::host_copy::HostCopy;
use self::library::Library;
pub use self::stream::{SideStream, StreamEvent};
use crate::shim;

/// The file name of libtorch's CUDA part.
const LIBTORCH_CUDA: &str = "libtorch_cuda.so";

/// The file name of libtorch's CPU part, which this program is linked with.
const LIBTORCH_CPU: &str = "libtorch_cpu.so";

/// The file name of the NCCL library. NVIDIA's wheel has the library under no other name.
const NCCL: &str = "libnccl.so.2";

/// Loads libtorch's CUDA part without a call to CUDA, so that this process can still fork: a forked child cannot use
/// CUDA if its parent did.
pub fn load() -> Result<()> {
    Library::open(LIBTORCH_CUDA).map(drop).context("this libtorch has no CUDA")
}

/// The device of the rank whose local rank is `rank`. GPUs are assigned to local ranks in turn.
pub fn device_of(spec: &RunSpec, rank: usize) -> Result<Device> {
    match spec.device {
        spec::Device::Cpu => Ok(Device::Cpu),
        spec::Device::Cuda => {
            let gpus = usize::try_from(tch::Cuda::device_count())?;
            ensure!(gpus > 0, "libtorch finds no GPU; check `nvidia-smi`");
            Ok(Device::Cuda(rank % gpus))
        }
    }
}

/// The name of a device in torch's notation, for example `cuda:0`.
pub fn name(device: Device) -> String {
    match device {
        Device::Cuda(index) => format!("cuda:{index}"),
        _ => "cpu".to_owned(),
    }
}

/// The usable GPUs, or the reasons why they cannot be used. After this call the process cannot fork.
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

/// The names of the GPUs that the driver lists.
fn names() -> Result<Vec<String>> {
    // SAFETY: the function only looks for the library.
    ensure!(unsafe { sys::is_culib_present() }, "no NVIDIA driver: libcuda.so.1 is not there");
    let refused = |what| move |error| anyhow!("NVIDIA's driver does not {what}: {error}");
    result::init().map_err(refused("start"))?;
    let count = result::device::get_count().map_err(refused("count its GPUs"))?;
    (0..count)
        .map(|index| result::device::get_name(result::device::get(index)?))
        .collect::<Result<_, _>>()
        .map_err(refused("name its GPUs"))
}

/// The release and the directory of the loaded libtorch; an error if this libtorch has no CUDA or cannot use all
/// `gpus`.
fn libtorch(gpus: usize) -> Result<String> {
    let directory = Library::open(LIBTORCH_CPU)?.directory()?;
    // The CUDA part is loaded first, because libtorch caches the result of the first query for CUDA.
    let loaded = load();
    let found = shim::loaded_release();
    let name = format!("libtorch {found} in {}", directory.display());
    let built = shim::torch_version();
    ensure!(
        minor(&found) == minor(&built),
        "zprobe-rank is built for libtorch {built}, but this is {name}"
    );
    loaded.with_context(|| name.clone())?;
    let usable = usize::try_from(tch::Cuda::device_count())?;
    ensure!(
        usable >= gpus,
        "{name} can use {usable} of {gpus} GPUs; its CUDA may be newer than the driver"
    );
    Ok(name)
}

/// The minor release of a full release number: `2.11` for `2.11.0`. All patch releases of a minor release have the same
/// interface.
fn minor(release: &str) -> &str {
    release.rsplit_once('.').map_or(release, |(minor, _)| minor)
}

/// The path of the NCCL library that libtorch has loaded, or of the library that the loader finds if libtorch has
/// loaded none.
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
