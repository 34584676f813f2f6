"""The warm side of a pool: load an engine once, then fork a host for each run.

The other side is zprobe; docs/protocol.md describes their messages. Standard library only, Python 3.8
or later.
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

# As in zprobe::trace::handover.
WARM = b"warm"
MESSAGE_LIMIT = 128 << 10
MOST_DESCRIPTORS = 253

PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def is_pool():
    """True if zprobe started this program as a pool, and not for a single run."""
    return SOCKET in os.environ


def serve(run_host):
    """Calls ``run_host(environment)`` in a process of its own for each run.

    That process is then like one that zprobe started for the run: it has the run's variables, in
    ``os.environ`` and as ``environment``, the run's descriptors and no others, and its output goes
    to the run's logs. When ``run_host`` returns it exits, through whatever stands around the call
    of ``serve``; so do the ranks that it forks when they call ``sys.exit``. In the process that
    stays, ``serve`` returns when zprobe has no more runs.

    Call it when everything that the runs share is loaded, and before a thread is started: only the
    thread that forks goes on in the child.
    """
    pool = socket.socket(fileno=int(os.environ.pop(SOCKET)))
    pool.set_inheritable(False)
    launcher = os.getppid()
    # Loaded objects are permanent, so the collector need not touch (and so copy) them in every child.
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
    """Receives the next message with its descriptors; an empty one when the launcher is gone."""
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
    """Forks a process that forks the host and exits, so that the host becomes the launcher's child.

    Returns the id of the process in between to the host, and None to the calling process.
    """
    # Otherwise the child would write buffered output a second time.
    sys.stdout.flush()
    sys.stderr.flush()
    _libc.fflush(None)
    try:
        child = os.fork()
    except OSError as error:
        # The descriptor for the answer is closed then, which tells the launcher.
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
    """Turns this process into the host that the launcher would have started; returns the run's variables."""
    answer, stdout, stderr, store, host_channel, *events = descriptors
    for log, number in [(stdout, 1), (stderr, 2)]:
        os.dup2(log, number)
        os.close(log)
    os.setpgid(0, 0)
    while os.getppid() == go_between:
        time.sleep(0.0001)
    # Not before: the end of the process in between would count too.
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
