"""Starts ranks of a script as torchrun does, with one import of torch and the trainers for all of them.

    python ranks.py NUMBER SCRIPT [ARGUMENT...]
"""

import ast
import os
import pkgutil
import runpy
import socket
import sys

import torch
import torch._dynamo  # An optimizer imports it, in each rank anew unless it is there.


def import_for(script):
    """Imports the packages that a script imports at its top level; modules in the script's own directory are left to it."""
    with open(script) as file:
        body = ast.parse(file.read()).body
    names = [name.name for it in body if isinstance(it, ast.Import) for name in it.names]
    froms = [it for it in body if isinstance(it, ast.ImportFrom) and not it.level]
    names += ["%s.%s" % (it.module, name.name) for it in froms for name in it.names]
    beside = {os.path.splitext(it)[0] for it in os.listdir(os.path.dirname(os.path.abspath(script)))}
    for name in names:
        if name.partition(".")[0] not in beside:
            pkgutil.resolve_name(name)


def spare_compiler():
    """Keeps DeepSpeed from compiling its collectives over shared memory, which takes two minutes."""
    import deepspeed.comm.torch

    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None


def rank(number, count, port, script, arguments):
    """Runs one rank and ends its process."""
    os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE=str(count))
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    os.environ.update(LOCAL_WORLD_SIZE=str(count), TORCHELASTIC_RUN_ID="none")
    sys.argv = [script] + arguments
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    torch.set_num_threads(1)
    runpy.run_path(script, run_name="__main__")


def main():
    count, script, arguments = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    import_for(script)
    if "deepspeed" in sys.modules:
        spare_compiler()
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    ranks = []
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            # Not `_exit`: what a script has registered for its end has to happen.
            return rank(number, count, port, script, arguments)
        ranks.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    return next((abs(code) for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main())
