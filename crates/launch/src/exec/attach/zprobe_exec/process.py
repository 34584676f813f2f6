"""Facts about this process: its rank, its backend, and the versions of the packages that train in it."""

import os
import platform
import sys

import torch
import torch.distributed as dist


def place():
    """The rank of this process, and the number of ranks."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def backend():
    """The backend of the default process group, `nccl` or `gloo`; `gloo` without a process group."""
    if dist.is_available() and dist.is_initialized():
        return "nccl" if "nccl" in dist.get_backend() else "gloo"
    return "gloo"


def versions():
    """The versions of Python, torch and the imported training packages, by name."""
    found = dict(python=platform.python_version(), torch=torch.__version__)
    for name in ("deepspeed", "transformers", "accelerate", "lightning", "pytorch_lightning"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            found[name.replace("_", "-")] = str(version)
    return found
