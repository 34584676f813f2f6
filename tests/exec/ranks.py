"""Starts ranks of a script as torchrun does, with one import of torch for all of them.

    python ranks.py NUMBER SCRIPT [ARGUMENT...]
"""

import os
import runpy
import socket
import sys

import torch  # noqa: F401  (imported once, before the ranks are forked)


def spare_compiler():
    """Keeps DeepSpeed from compiling its collectives over shared memory, which takes two minutes."""
    import deepspeed.comm.torch

    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None


def rank(number, count, port, script, arguments):
    """Runs one rank and ends its process."""
    os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE=str(count))
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    sys.argv = [script] + arguments
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    torch.set_num_threads(1)
    runpy.run_path(script, run_name="__main__")


def main():
    count, script, arguments = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    if os.path.basename(script).startswith("deepspeed"):
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
