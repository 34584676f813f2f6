"""The devices that ranks compute on. No device is started before the ranks are forked, because a child process cannot
use a GPU whose driver its parent has started."""

import ctypes
import os

#: The type of the device, as torch names it; `choose` sets the type before an engine is imported.
kind = "cpu"

# The error code of `cuDeviceGetCount` in a process that has not called `cuInit`.
NOT_INITIALIZED = 3


def choose(name):
    """Sets the type of the device, such as `cuda`, for this process."""
    global kind
    kind = name
    # With this variable torch looks for GPUs through NVML, which does not start the driver.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")


def is_started():
    """True if this process has started a GPU's driver, so that ranks forked from this process could not use a GPU."""
    import torch

    if kind == "cpu":
        return False
    module = getattr(torch, kind, None)
    if module is not None and getattr(module, "is_initialized", bool)():
        return True
    return kind == "cuda" and _driver_is_started()


def _driver_is_started():
    """True if this process has called `cuInit`; the driver's library may be loaded without a call of `cuInit`."""
    try:
        # `CDLL` opens the library only if the library is loaded already.
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    return driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != NOT_INITIALIZED


def take():
    """Makes the rank's device the current device, and returns it. Of several GPUs the rank takes the one whose number
    is its local rank, modulo the number of GPUs."""
    import torch

    if kind == "cpu":
        return torch.device("cpu")
    # `torch.accelerator` came with torch 2.6.
    if hasattr(torch, "accelerator"):
        count, choose_index = torch.accelerator.device_count(), torch.accelerator.set_device_index
    else:
        module = getattr(torch, kind)
        count, choose_index = module.device_count(), module.set_device
    if count == 0:
        raise RuntimeError("torch finds no device of type %s here" % kind)
    index = int(os.environ["LOCAL_RANK"]) % count
    choose_index(index)
    return torch.device(kind, index)


def synchronize():
    """Waits until the current device has finished all queued work."""
    import torch

    (torch.accelerator if hasattr(torch, "accelerator") else getattr(torch, kind)).synchronize()


def name(device):
    """The name of a device for the report: `cpu`, or `cuda:0 (NVIDIA H200)`."""
    import torch

    module = getattr(torch, device.type, None)
    describe = getattr(module, "get_device_name", None)
    return str(device) if device.type == "cpu" or describe is None else "%s (%s)" % (device, describe(device))


def upload(tensor, device):
    """Copies a tensor from the host to a device. The copy is queued after the device's present work, and the caller
    does not wait for it."""
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
