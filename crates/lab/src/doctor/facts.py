"""Prints, as one JSON object, what this Python can run. Standard library and torch only, 3.8+.

Arguments are names of facts; without any, all are tried.

Any attempt may fail, and its failure is then the fact: `Attempt` in python.rs, with `value` or
`problem`. Output of the modules goes to standard error.
"""

import json
import os
import sys
import tempfile

# Output of an import must not end up in the middle of the JSON.
FACTS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def attempt(function):
    """The value that the function returns, or the message of its exception."""
    try:
        return {"value": function()}
    except BaseException as error:  # SystemExit too: an import may end the process.
        lines = str(error).strip().splitlines() or [""]
        return {"problem": "{}: {}".format(type(error).__name__, lines[-1]).rstrip(": ")}


def torch_version():
    import torch

    return str(torch.__version__)


# Facts by name, in the order in which they are tried: those that need torch, and the others.
WITH_TORCH, WITHOUT_TORCH = {}, {}


def fact(function):
    """Makes a fact of a function, which is tried if torch is there."""
    WITH_TORCH[function.__name__] = function
    return function


def fact_without_torch(function):
    """Makes a fact of a function, which is tried whether or not torch is there."""
    WITHOUT_TORCH[function.__name__] = function
    return function


@fact
def onednn_fp16():
    """True if oneDNN computes in fp16 on this CPU, as far as ONEDNN_MAX_CPU_ISA lets it."""
    import torch

    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


@fact
def backends():
    import torch.distributed as dist

    if not dist.is_available():
        return []
    known = [("gloo", "is_gloo_available"), ("nccl", "is_nccl_available")]
    # Old releases cannot say whether they have gloo, and have it.
    return [name for name, asks in known if getattr(dist, asks, lambda: True)()]


@fact
def gpus():
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [torch.cuda.get_device_name(index) for index in range(count)]


@fact
def cuda():
    import torch

    if torch.version.cuda:
        return "CUDA %s" % torch.version.cuda
    # torch shows AMD's GPUs as CUDA's.
    hip = getattr(torch.version, "hip", None)
    return "ROCm %s" % hip if hip else "none"


@fact
def nccl():
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


#: engines


def main():
    """Collects and prints the requested facts."""
    wanted = sys.argv[1:] or [*WITH_TORCH, *WITHOUT_TORCH]
    facts = {
        "executable": sys.executable,
        "version": "{}.{}.{}".format(*sys.version_info[:3]),
        "torch": attempt(torch_version),
    }

    def collect(functions):
        facts.update((name, attempt(functions[name])) for name in functions if name in wanted)

    if "value" in facts["torch"]:
        collect(WITH_TORCH)
    collect(WITHOUT_TORCH)
    FACTS.write(json.dumps(facts) + "\n")
    FACTS.flush()
    # Some releases crash while an interpreter with a process group shuts down.
    os._exit(0)


main()
