"""Python stacks of this process, for when it crashes or hangs, and how it ended.

A file of its own has a line of JSON for each thing that the process says of itself, and between them what
`faulthandler` writes: when a fatal signal ends the process, and when zprobe asks for stacks, with a signal that
nobody else uses. Interpreters that wait in C for ever answer as well. What fails here is written down in that
file and let go.
"""

import faulthandler
import functools
import json
import os
import sys
import threading
import time
import traceback

# Frames of an exception that are told, from the innermost on.
MOST_FRAMES = 100

_settings = None
_fd = None  # Descriptor of the file; None while there is none.
_about = {}  # What is known of the process.


def _harmless(function):
    """The function with its errors written down and let go: they must not become the script's."""

    @functools.wraps(function)
    def harmless(*args):
        try:
            return function(*args)
        except Exception as error:
            slipped(function.__name__, error)
            return None

    return harmless


@_harmless
def begin(settings):
    """Begins with a process that its launcher calls a rank; with others once they import torch."""
    global _settings
    _settings = settings
    if "RANK" in os.environ:
        _open()
        _watch_ends()


@_harmless
def see_torch(origin):
    """The process is about to import torch, which lies in this file."""
    _about.update(torch=True, torch_at=os.path.dirname(origin or ""))
    if _fd is None:
        _open()
        _watch_ends()
    else:
        _say_who()


@_harmless
def see_joining():
    """The process is about to join others, by what its environment says by now."""
    _say_who()


@_harmless
def see_place(place):
    """The rank of this process, and the number of ranks, are known; `place` returns them."""
    _about["rank"], _about["world_size"] = place()
    _say_who()


def slipped(where, error):
    """Writes down that something of zprobe's failed."""
    try:
        _say("slipped", where=where, why="%s: %s" % (type(error).__name__, error))
    except Exception:
        pass


def _open():
    """Opens the file, and has stacks written to it from now on."""
    global _fd
    name = "%d-%d.log" % (os.getpid(), time.time_ns())
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
    _fd = os.open(os.path.join(_settings["processes"], name), flags, 0o600)
    # Who has it enabled already wants to read it elsewhere.
    if _about.setdefault("tells_fatal", not faulthandler.is_enabled()):
        faulthandler.enable(file=_fd)
    faulthandler.register(_settings["signal"], file=_fd, all_threads=True, chain=False)
    # Who has said who it is can be asked for its stacks.
    _say_who()


@_harmless
def _after_fork():
    """A forked process has a file of its own."""
    global _fd
    inherited, _fd = _fd, None
    if inherited is not None:
        _open()
        os.close(inherited)


def _say_who():
    number = dict(rank=_number("RANK"), world_size=_number("WORLD_SIZE"))
    _say(
        "process",
        pid=os.getpid(),
        parent=os.getppid(),
        thread=threading.get_ident(),
        directory=os.getcwd(),
        foreign=_foreign(),
        torch=bool(_about.get("torch")),
        **{key: _about.get(key, value) for key, value in number.items()}
    )


def _number(variable):
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else None


def _foreign():
    """Directories of code that is not the user's own."""
    places = {
        os.path.dirname(os.__file__),
        os.path.dirname(sys.executable or ""),
        os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
        _about.get("torch_at", ""),
    }
    return sorted({path for place in places if place for path in (place, os.path.realpath(place))})


def _say(type, **fields):
    if _fd is not None:
        os.write(_fd, (json.dumps(dict(type=type, **fields)) + "\n").encode())


def _watch_ends():
    """Notes down exceptions that end the process, and exit codes."""
    os.register_at_fork(after_in_child=_after_fork)
    sys.excepthook = _noting(sys.excepthook, _see_exception)
    sys.exit = _noting(sys.exit, _see_exit)
    os._exit = _noting(os._exit, _see_exit)


def _noting(function, note):
    @functools.wraps(function)
    def noting(*args, **kwargs):
        note(*args, **kwargs)
        return function(*args, **kwargs)

    return noting


@_harmless
def _see_exception(kind, error, trace):
    _say_who()
    _say("failed", message="%s: %s" % (kind.__name__, error), frames=_frames(trace))


@_harmless
def _see_exit(code=None):
    """The process is about to exit; perhaps because of an exception that is being handled."""
    error = sys.exc_info()[1]
    if isinstance(error, Exception) and code:
        _see_exception(type(error), error, error.__traceback__)
    number = code if isinstance(code, int) else int(code is not None)
    _say("exiting", code=number, message=None if code == number else str(code))


def _frames(trace):
    """File, line and function of each frame of an exception, the innermost first."""
    frames = [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in traceback.walk_tb(trace)]
    return frames[::-1][:MOST_FRAMES]
