"""The warm process of a pool: loads an engine once, then forks a host for each run.

The process exchanges messages with zprobe, which docs/protocol.md describes. This module needs only the standard
library of Python 3.8 or later.
"""

import array
import ctypes
import gc
import os
import signal
import socket
import sys
import time

SOCKET = "ZPROBE_POOL_FD"

# These constants of the handover protocol equal those of zprobe::trace::handover.
WARM = b"warm"
MESSAGE_LIMIT = 128 << 10
MOST_DESCRIPTORS = 253

PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def is_pool():
    """True if zprobe has started this program as a pool instead of for a single run."""
    return SOCKET in os.environ


def serve(run_host):
    """Calls ``run_host(environment)`` in a new process for each run.

    The new process is like a process that zprobe has started for the run. It has the run's variables in ``os.environ``
    and as ``environment``, it has the run's descriptors and no others, and its output goes to the run's logs. When
    ``run_host`` returns, the process exits by ``SystemExit``, which passes through the code around the call of
    ``serve``. The ranks that the process forks exit in the same way when they call ``sys.exit``. In the pool's own
    process ``serve`` returns when zprobe has no more runs.

    Call ``serve`` after everything that the runs share is loaded, and before any thread is started: a forked child has
    only the thread that forked.
    """
    pool = socket.socket(fileno=int(os.environ.pop(SOCKET)))
    pool.set_inheritable(False)
    launcher = os.getppid()
    # After the freeze the garbage collector of a child does not touch, and thereby copy, the loaded objects.
    gc.freeze()
    pool.send(WARM)
    while True:
        message, descriptors = _receive(pool)
        if not message:
            return
        go_between = _fork_twice()
        if go_between is not None:
            break
        for descriptor in descriptors:
            os.close(descriptor)
    pool.close()
    environment = _become_host(launcher, go_between, message, descriptors)
    run_host(environment)
    sys.exit(0)


def _receive(pool):
    """Receives the next message with its descriptors; the message is empty if the launcher has exited."""
    descriptors = array.array("i")
    space = socket.CMSG_SPACE(MOST_DESCRIPTORS * descriptors.itemsize)
    message, beside, flags, _ = pool.recvmsg(MESSAGE_LIMIT, space)
    for level, kind, data in beside:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        raise RuntimeError(
            "the run message is incomplete: this process may not open more files; "
            "raise the limit with `ulimit -n`"
        )
    return message, list(descriptors)


def _fork_twice():
    """Forks an intermediate process that forks the host and exits, so that the launcher adopts the host.

    Returns the id of the intermediate process in the host, and `None` in the calling process.
    """
    # Without the flush the child would write buffered output a second time.
    sys.stdout.flush()
    sys.stderr.flush()
    _libc.fflush(None)
    try:
        child = os.fork()
    except OSError as error:
        # The caller then closes the descriptor for the answer, which tells the launcher of the failure.
        print(f"cannot fork the host of a run: {error}", file=sys.stderr, flush=True)
        return None
    if child != 0:
        os.waitpid(child, 0)
        return None
    go_between = os.getpid()
    try:
        host = os.fork()
    except OSError as error:
        print(f"cannot fork the host of a run: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    if host != 0:
        os._exit(0)
    return go_between


def _become_host(launcher, go_between, message, descriptors):
    """Turns this process into a host like one that the launcher has started, and returns the run's variables."""
    answer, stdout, stderr, store, host_channel, *events = descriptors
    for log, number in [(stdout, 1), (stderr, 2)]:
        os.dup2(log, number)
        os.close(log)
    os.setpgid(0, 0)
    while os.getppid() == go_between:
        time.sleep(0.0001)
    # The signal is set only after the exit of the intermediate process, which would trigger the signal.
    if _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "cannot tie this process to zprobe")
    if os.getppid() != launcher:
        raise RuntimeError("zprobe is gone, or has not adopted this process")
    variables = os.fsdecode(message).rstrip("\0").split("\0")
    environment = dict(variable.split("=", 1) for variable in variables)
    environment["ZPROBE_STORE_FD"] = str(store)
    environment["ZPROBE_HOST_FD"] = str(host_channel)
    environment["ZPROBE_EVENT_FDS"] = ",".join(map(str, events))
    os.environ.update(environment)
    os.write(answer, str(os.getpid()).encode())
    os.close(answer)
    return environment
