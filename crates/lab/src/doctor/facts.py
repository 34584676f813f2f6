"""Prints facts about this Python and its packages as one JSON object. Needs only Python 3.8 or later.

The arguments are the names of facts; without arguments all facts are tried.

A fact is an `Attempt` as in python.rs: it has a `value`, or a `problem` if the attempt has failed. The output of
imported modules goes to standard error.
"""

import json
import os
import sys
import tempfile

# The JSON gets a separate descriptor, so that the output of an import cannot mix with the JSON.
FACTS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def attempt(function):
    """The return value of the function as `value`, or the message of its exception as `problem`."""
    try:
        return {"value": function()}
    except BaseException as error:  # Catches SystemExit, too, which an import may raise.
        lines = str(error).strip().splitlines() or [""]
        return {"problem": "{}: {}".format(type(error).__name__, lines[-1]).rstrip(": ")}


def torch_version():
    import torch

    return str(torch.__version__)


# The functions of facts that need torch, and of all other facts, by name and in the order of the attempts.
WITH_TORCH, WITHOUT_TORCH = {}, {}


def fact(function):
    """Registers a function as a fact that is tried only if torch can be imported."""
    WITH_TORCH[function.__name__] = function
    return function


def fact_without_torch(function):
    """Registers a function as a fact that is tried whether or not torch can be imported."""
    WITHOUT_TORCH[function.__name__] = function
    return function


@fact
def backends():
    import torch.distributed as dist

    if not dist.is_available():
        return []
    known = [("gloo", "is_gloo_available"), ("nccl", "is_nccl_available")]
    # Old releases of torch have no `is_gloo_available`, but always have gloo.
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
    # torch presents AMD GPUs as CUDA devices.
    hip = getattr(torch.version, "hip", None)
    return "ROCm %s" % hip if hip else "none"


@fact
def nccl():
    import torch

    return ".".join(map(str, torch.cuda.nccl.version()))


def alone(function):
    """Runs a function in a Gloo process group that consists of only this process, and returns the result."""
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
    # Some releases of torch crash when an interpreter that had a process group shuts down.
    os._exit(0)


main()
