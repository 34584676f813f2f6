"""The life of one rank, from joining the other ranks to the last event."""

import importlib
import os
import platform
import sys
import traceback

import torch
import torch.distributed as dist

from zprobe_rank import device, rendezvous
from zprobe_rank.channel import Channel
from zprobe_rank.host import load
from zprobe_rank.run import Run


# The errors that are kept alive until the process ends.
kept = []


def main(spec, records, listener):
    """Runs the rank that writes `records`, and returns the exit code of the rank's process."""
    channel = Channel(records.run, records.rank, records.fd, records.seq)
    try:
        run(spec, channel.rank, channel, listener)
        return 0
    except BaseException as error:
        settle_after_failure(channel)
        # The error is recorded twice: in the trace as an event, and in the log through standard error.
        channel.emit("failed", message=account(error))
        traceback.print_exc()
        # The frames of the error hold contexts of the engine, which might wait for other ranks when they are freed.
        kept.append(error)
        return 1


def settle_after_failure(channel):
    """Emits the buffers recorded before a failure; a failed device may be unable to deliver them."""
    try:
        channel.settle()
    except Exception:
        traceback.print_exc()


def run(spec, rank, channel, listener):
    """Runs all training steps of one rank."""
    # Each rank uses one thread: ranks share the machine, and sums must not depend on the number of threads.
    torch.set_num_threads(1)
    if spec["poison_memory"]:
        poison_memory(channel)
    script = load(spec["engine"], spec["device"], channel.importing)
    own_device = device.take()
    channel.emit("rank-ready", versions=versions(spec["engine"]), device=device.name(own_device))
    group = rendezvous.join(spec, rank, listener)
    run = Run(spec, rank, own_device, channel, group)
    try:
        script.train(run)
    finally:
        run.end_backward()
    run.observer.describe_afterwards()
    dist.barrier(group=group)
    channel.emit("finished")


def poison_memory(channel):
    """Makes torch fill newly allocated memory with NaN, or with the largest integer."""
    try:
        deterministic = importlib.import_module("torch.utils.deterministic")
    except ImportError:
        why = "torch %s cannot fill new memory with NaN; use torch 2.2 or newer" % torch.__version__
        channel.emit("not-observed", what="memory that is read before it is written", why=why)
        return
    # torch fills new memory only if deterministic algorithms are enabled, too.
    torch.use_deterministic_algorithms(True, warn_only=True)
    deterministic.fill_uninitialized_memory = True


def versions(engine):
    """The versions of Python, torch and the engine's package, if the engine has a package of its own."""
    found = dict(python=platform.python_version(), torch=torch.__version__)
    if hasattr(sys.modules.get(engine), "__version__"):
        found[engine] = sys.modules[engine].__version__
    return found


def account(error):
    """The message of an error, followed by the innermost frame inside of an installed package, if any."""
    text = "%s: %s" % (type(error).__name__, error)
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if "site-packages" in frame.filename:
            place = frame.filename.split("site-packages" + os.sep, 1)[1]
            return "%s (%s:%d, in %s)" % (text, place, frame.lineno, frame.name)
    return text
