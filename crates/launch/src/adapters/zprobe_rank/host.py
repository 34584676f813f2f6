"""The host process: imports torch and the engine once, forks the ranks, and reports how each rank ended."""

import ctypes
import importlib
import json
import os
import signal
import sys

from zprobe_rank import device, pool
from zprobe_rank.records import Records


# The first argument of a process that is a rank instead of a host.
RANK = "rank"


def main():
    """The entry point that the launcher starts; docs/protocol.md describes its environment.

    A pool loads the engine that the first argument names, for the device that the second argument names, and then
    hosts run after run.
    """
    if sys.argv[1:2] == [RANK]:
        _rank_alone(*sys.argv[2:])
    elif pool.is_pool():
        load(*sys.argv[1:3])
        # A forked child does not have the threads that imports have started, so that ranks have to import again.
        imports = len(os.listdir("/proc/self/task")) > 1
        pool.serve(lambda environment: run_host(environment, imports))
    else:
        run_host(dict(os.environ))


def run_host(environment, imports=False):
    """Forks one rank for each event channel and waits for all ranks. If `imports`, each rank starts a new interpreter
    and imports the engine itself."""
    from zprobe_rank.rendezvous import keep_listener

    # Done before the engine is loaded: processes that the engine starts on import inherit every descriptor.
    store = environment.get("ZPROBE_STORE_FD")
    listener = keep_listener(int(store)) if store else None
    # An engine that reads these variables on import must not take this process for a rank.
    first, first_local = (int(environment[name]) for name in ("RANK", "LOCAL_RANK"))
    for name in ("RANK", "LOCAL_RANK"):
        os.environ.pop(name, None)
    spec = json.loads(environment["ZPROBE_SPEC"])
    records = Records(environment["ZPROBE_RUN"], None, int(environment["ZPROBE_HOST_FD"]))
    load(spec["engine"], spec["device"], records.importing)
    # The import of an engine may start the GPU's driver; ranks that are forked afterwards could not use a GPU.
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
            # `os.waitstatus_to_exitcode` came after Python 3.8.
            signalled = os.WIFSIGNALED(status)
            outcome = dict(signal=os.WTERMSIG(status)) if signalled else dict(code=os.WEXITSTATUS(status))
            records.emit("rank-exited", rank=ranks.pop(pid), outcome=outcome)


def load(engine, kind, importing=lambda what: None):
    """Imports torch and the engine for a type of device. Ranks that are forked afterwards inherit the modules.

    `importing` is called with the name of a package right before its first import.
    """
    device.choose(kind)
    if "torch" not in sys.modules:
        importing("torch")
    import torch

    script = "zprobe_rank.engines.%s.script" % engine.replace("-", "_")
    if script not in sys.modules:
        importing(engine)
    module = importlib.import_module(script)

    # The first optimizer of a process imports torch's compiler, which takes longer than a run.
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    return module


def _leave(body, *args):
    """Runs `body` and ends this process without running the exit handlers of its parent process."""
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
    """Ties this process to the life of its host, sends its output to its own logs, and runs the rank whose event
    channel is `event_fds[place]`. If `imports`, the rank runs in a new interpreter."""
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
    """Replaces this process with a new interpreter that runs the rank."""
    kept = [event_fd] if listener is None else [event_fd, listener]
    for descriptor in kept:
        os.set_inheritable(descriptor, True)
    program = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    os.execv(sys.executable, [sys.executable, "-B", program, RANK, *map(str, kept)])


def _rank_alone(event_fd, listener=None):
    """Runs the rank in the interpreter that `_start_anew` has started, and exits."""
    kept = [int(descriptor) for descriptor in (event_fd, listener) if descriptor is not None]
    for descriptor in kept:
        # Programs that the engine starts must not inherit the descriptor.
        os.set_inheritable(descriptor, False)
    event_fd, listener = (kept + [None])[:2]
    spec = json.loads(os.environ["ZPROBE_SPEC"])
    device.choose(spec["device"])
    records = Records(os.environ["ZPROBE_RUN"], int(os.environ["RANK"]), event_fd)
    records.importing("torch")
    from zprobe_rank import rank as rank_module

    sys.exit(rank_module.main(spec, records, listener))
