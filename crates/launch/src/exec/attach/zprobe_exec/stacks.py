"""Records how this process ended, and its Python stacks when it crashes or hangs.

Each process has a file with lines of JSON, in which the process describes itself. Between the lines are the stacks that
`faulthandler` writes: when a fatal signal ends the process, and when zprobe asks for stacks with a signal that is
otherwise unused. `faulthandler` works even while the interpreter waits in C code. An error of this module is written to
the same file, and never reaches the script.
"""

import faulthandler
import functools
import json
import os
import sys
import threading
import time
import traceback

# The largest number of frames of an exception that are reported, counted from the innermost frame.
MOST_FRAMES = 100

_settings = None
_fd = None  # The descriptor of the file; `None` before the file is opened.
_about = {}  # The facts that are known about this process.


def _harmless(function):
    """Wraps a function so that its errors are written to the file, and never reach the script."""

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
    """Opens the file of a process at once if its environment has RANK, as launchers set it. Other processes open their
    files when they import torch."""
    global _settings
    _settings = settings
    if "RANK" in os.environ:
        _open()
        _watch_ends()


@_harmless
def see_torch(origin):
    """Called before the process imports torch from the file `origin`."""
    _about.update(torch=True, torch_at=os.path.dirname(origin or ""))
    if _fd is None:
        _open()
        _watch_ends()
    else:
        _say_who()


@_harmless
def see_joining():
    """Called before the process joins a process group: writes the rank that the environment names by now."""
    _say_who()


@_harmless
def see_place(place):
    """Called once the rank of this process and the number of ranks are known; `place` returns both."""
    _about["rank"], _about["world_size"] = place()
    _say_who()


def slipped(where, error):
    """Writes an error of zprobe itself, which was raised in the function `where`, to the file."""
    try:
        _say("slipped", where=where, why="%s: %s" % (type(error).__name__, error))
    except Exception:
        pass


def _open():
    """Opens the file of this process, and directs the stacks of `faulthandler` to the file."""
    global _fd
    name = "%d-%d.log" % (os.getpid(), time.time_ns())
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
    _fd = os.open(os.path.join(_settings["processes"], name), flags, 0o600)
    # If the script has enabled `faulthandler` already, its output goes on to the script's own file.
    if _about.setdefault("tells_fatal", not faulthandler.is_enabled()):
        faulthandler.enable(file=_fd)
    faulthandler.register(_settings["signal"], file=_fd, all_threads=True, chain=False)
    # zprobe asks a process for stacks only after this line, when the signal is registered.
    _say_who()


@_harmless
def _after_fork():
    """Opens a new file for a forked process, in place of the file of its parent."""
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
    """The directories whose code is not the user's own: Python, zprobe and torch."""
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
    """Begins to record exceptions that end the process, and exit codes."""
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
    """Called before the process exits: records the exit code, and the exception that is being handled, if any."""
    error = sys.exc_info()[1]
    if isinstance(error, Exception) and code:
        _see_exception(type(error), error, error.__traceback__)
    number = code if isinstance(code, int) else int(code is not None)
    _say("exiting", code=number, message=None if code == number else str(code))


def _frames(trace):
    """The file, line and function of each frame of an exception, beginning with the innermost frame."""
    frames = [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in traceback.walk_tb(trace)]
    return frames[::-1][:MOST_FRAMES]
