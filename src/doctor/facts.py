"""Prints, as one JSON object, what this Python can run. Standard library and torch only, 3.8+.

Arguments are names of facts; without any, all are tried.

Everything that is tried may fail, and its failure is the fact that is wanted: `Attempt` in
python.rs, with `value` or `problem`. What the modules print goes to standard error.
"""

import json
import os
import sys
import tempfile

# Whatever an import prints must not end up in the middle of the JSON.
FACTS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def attempt(function):
    """The function's value, or its exception in its own words."""
    try:
        return {"value": function()}
    except BaseException as error:  # SystemExit too: an import may end the process.
        lines = str(error).strip().splitlines() or [""]
        return {"problem": "{}: {}".format(type(error).__name__, lines[-1]).rstrip(": ")}


def torch_version():
    import torch

    return str(torch.__version__)


def deepspeed_version():
    import deepspeed

    return str(deepspeed.__version__)


def onednn_fp16():
    """Whether oneDNN computes in fp16 on this CPU, as far as ONEDNN_MAX_CPU_ISA lets it."""
    import torch

    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def deepspeed_fp16():
    """Whether DeepSpeed takes fp16 on the accelerator that its ranks have: what its engine asks, too."""
    from deepspeed.accelerator import get_accelerator

    return bool(get_accelerator().is_fp16_supported())


def backends():
    import torch.distributed as dist

    if not dist.is_available():
        return []
    known = [("gloo", "is_gloo_available"), ("nccl", "is_nccl_available")]
    # Old releases cannot say whether they have gloo, and have it.
    return [name for name, asks in known if getattr(dist, asks, lambda: True)()]


def gpus():
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [torch.cuda.get_device_name(index) for index in range(count)]


def cuda_version():
    import torch

    return str(torch.version.cuda or "none")


def nccl_version():
    import torch

    return ".".join(map(str, torch.cuda.nccl.version()))


def alone(function):
    """Runs a function in a process group of one rank."""
    import torch.distributed as dist

    with tempfile.TemporaryDirectory() as directory:
        store = dist.FileStore(os.path.join(directory, "store"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            return function()
        finally:
            dist.destroy_process_group()


def ddp_step():
    """One backward under DDP on the CPU."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    def step():
        module = DistributedDataParallel(torch.nn.Linear(4, 4))
        module(torch.ones(1, 4)).sum().backward()
        return True

    return alone(step)


def fsdp2_step():
    """One backward under fully_shard on the CPU."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def step():
        module = torch.nn.Linear(4, 4)
        fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
        module(torch.ones(1, 4)).sum().backward()
        return True

    return alone(step)


# In the order in which they are tried.
WITH_TORCH = {
    "backends": backends,
    "gpus": gpus,
    "cuda": cuda_version,
    "nccl": nccl_version,
    "onednn_fp16": onednn_fp16,
    "ddp": ddp_step,
    "fsdp2": fsdp2_step,
}
WITH_DEEPSPEED = {"deepspeed": deepspeed_version, "deepspeed_fp16": deepspeed_fp16}


def main():
    """Collects the facts; without torch there are no others to try but DeepSpeed's version."""
    wanted = sys.argv[1:] or [*WITH_TORCH, *WITH_DEEPSPEED]
    facts = {
        "executable": sys.executable,
        "version": "{}.{}.{}".format(*sys.version_info[:3]),
        "torch": attempt(torch_version),
    }

    def collect(functions):
        facts.update((name, attempt(functions[name])) for name in functions if name in wanted)

    if "value" in facts["torch"]:
        collect(WITH_TORCH)
    # As DeepSpeed's ranks are started; by itself it looks for a GPU, then for a compiler.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    collect(WITH_DEEPSPEED)
    FACTS.write(json.dumps(facts) + "\n")
    FACTS.flush()
    # Some releases crash while an interpreter with a process group shuts down.
    os._exit(0)


main()
