"""The host: imports torch and the engine once, forks the ranks, and reports how each of them ended."""

import ctypes
import importlib
import json
import os
import signal
import sys

from zprobe_rank import device, pool
from zprobe_rank.records import Records


# First argument of a process that is a rank and no host.
RANK = "rank"


def main():
    """Entry point that the launcher starts; docs/protocol.md describes its environment.

    As a pool it loads the engine that its first argument names, for the device that the second names, and then
    hosts run after run.
    """
    if sys.argv[1:2] == [RANK]:
        _rank_alone(*sys.argv[2:])
    elif pool.is_pool():
        load(*sys.argv[1:3])
        # A thread that an import has started is in no child.
        imports = len(os.listdir("/proc/self/task")) > 1
        pool.serve(lambda environment: run_host(environment, imports))
    else:
        run_host(dict(os.environ))


def run_host(environment, imports=False):
    """Forks one rank per event channel and waits for all of them; ranks import the engine themselves if `imports`."""
    from zprobe_rank.rendezvous import keep_listener

    # Before the engine is loaded: processes that it starts on import inherit every descriptor.
    store = environment.get("ZPROBE_STORE_FD")
    listener = keep_listener(int(store)) if store else None
    # This process is no rank yet, for what an engine looks up on import.
    first, first_local = (int(environment[name]) for name in ("RANK", "LOCAL_RANK"))
    for name in ("RANK", "LOCAL_RANK"):
        os.environ.pop(name, None)
    spec = json.loads(environment["ZPROBE_SPEC"])
    records = Records(environment["ZPROBE_RUN"], None, int(environment["ZPROBE_HOST_FD"]))
    load(spec["engine"], spec["device"], records.importing)
    # Importing an engine may start the GPU's driver, which ranks that are forked from here could not use then.
    imports = imports or device.is_started()
    event_fds = [int(fd) for fd in environment["ZPROBE_EVENT_FDS"].split(",")]
    host_pid = os.getpid()
    ranks = {}
    for place in range(len(event_fds)):
        rank = first + place
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(first_local + place))
            _leave(_become_rank, environment, spec, rank, event_fds, place, listener, host_pid, imports)
        records.emit("rank-spawned", rank=rank, pid=pid)
        ranks[pid] = rank
    for fd in event_fds + [listener]:
        if fd is not None:
            os.close(fd)
    while ranks:
        pid, status = os.wait()
        if pid in ranks:
            # Not `os.waitstatus_to_exitcode`, which is younger than Python 3.8.
            signalled = os.WIFSIGNALED(status)
            outcome = dict(signal=os.WTERMSIG(status)) if signalled else dict(code=os.WEXITSTATUS(status))
            records.emit("rank-exited", rank=ranks.pop(pid), outcome=outcome)


def load(engine, kind, importing=lambda what: None):
    """Imports torch and the engine for a type of device; the ranks that are forked from here have them already.

    `importing` is told what is imported next, where it is not there yet.
    """
    device.choose(kind)
    if "torch" not in sys.modules:
        importing("torch")
    import torch

    script = "zprobe_rank.engines.%s.script" % engine.replace("-", "_")
    if script not in sys.modules:
        importing(engine)
    module = importlib.import_module(script)

    # The first optimizer imports torch's compiler, which takes longer than a run.
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    return module


def _leave(body, *args):
    """Runs `body` and ends this process without the clean-up of the process it was forked from."""
    code = 1
    try:
        code = body(*args)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _become_rank(environment, spec, rank, event_fds, place, listener, host_pid, imports):
    """Makes this process die with its host, sends its output to its own logs, and runs the rank, whose event
    channel is at `place`; in a new interpreter if it `imports` the engine itself."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != host_pid:
        return 1
    os.close(int(environment["ZPROBE_HOST_FD"]))
    for other, fd in enumerate(event_fds):
        if other != place:
            os.close(fd)
    if listener is not None and rank != 0:
        os.close(listener)
        listener = None
    for stream, number in [("stdout", 1), ("stderr", 2)]:
        path = os.path.join(environment["ZPROBE_RUN_DIR"], "rank-%d.%s.log" % (rank, stream))
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        os.dup2(log, number)
        os.close(log)
    if imports:
        _start_anew(event_fds[place], listener)
    from zprobe_rank import rank as rank_module

    return rank_module.main(spec, Records(environment["ZPROBE_RUN"], rank, event_fds[place]), listener)


def _start_anew(event_fd, listener):
    """Replaces this process by a new interpreter that runs the rank."""
    kept = [event_fd] if listener is None else [event_fd, listener]
    for descriptor in kept:
        os.set_inheritable(descriptor, True)
    program = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    os.execv(sys.executable, [sys.executable, "-B", program, RANK, *map(str, kept)])


def _rank_alone(event_fd, listener=None):
    """Runs the rank that `_start_anew` made this process for, and exits."""
    kept = [int(descriptor) for descriptor in (event_fd, listener) if descriptor is not None]
    for descriptor in kept:
        # Not for programs that the engine starts.
        os.set_inheritable(descriptor, False)
    event_fd, listener = (kept + [None])[:2]
    spec = json.loads(os.environ["ZPROBE_SPEC"])
    device.choose(spec["device"])
    records = Records(os.environ["ZPROBE_RUN"], int(os.environ["RANK"]), event_fd)
    records.importing("torch")
    from zprobe_rank import rank as rank_module

    sys.exit(rank_module.main(spec, records, listener))
