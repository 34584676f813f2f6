"""Finds places in source code: the lines of the script itself, and the packages that call torch for the script."""

import ast
import linecache
import os
import re
import sys
import sysconfig

import torch

# The directories whose code is not the user's own: the standard library, torch and zprobe.
_FOREIGN = tuple(
    os.path.realpath(path) + os.sep
    for path in {
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("platstdlib"),
        os.path.dirname(torch.__file__),
        os.path.dirname(os.path.dirname(__file__)),
    }
)
_PACKAGES = "-packages" + os.sep

_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d*)?(?:e-?\d+)?(?![\w.])")

# The usual names of variables that hold the number of microbatches or of ranks.
_COUNT = re.compile(
    r"accum|world|micro|\bgas?\b|num_(processes|replicas|ranks|devices|gpus|nodes)|n_(ranks|gpus)|dp_size",
    re.IGNORECASE,
)


def own_line(frame):
    """The innermost line of the user's own code at or above a frame, as `file:line`; `None` without such a line."""
    while frame is not None:
        path = frame.f_code.co_filename
        if _is_own(path):
            return "%s:%d" % (_short(path), frame.f_lineno)
        frame = frame.f_back
    return None


def is_in_forward(frame):
    """True if a frame runs the user's own code, within a function `forward` or called from one."""
    is_own = frame is not None and _is_own(frame.f_code.co_filename)
    while is_own and frame is not None and frame.f_code.co_name != "forward":
        frame = frame.f_back
    return is_own and frame is not None


def package(frame):
    """The name of the innermost installed package at or above a frame, except torch and zprobe; `None` if the user's
    own code comes first."""
    while frame is not None:
        path = frame.f_code.co_filename
        if _is_own(path):
            return None
        name = path.rsplit(_PACKAGES, 1)[-1].split(os.sep)[0] if _PACKAGES in path else None
        if name is not None and name != "torch":
            return name
        frame = frame.f_back
    return None


def written(path, line):
    """The numeric literals in a line of a file, without exponents. A line that is no complete Python statement is
    searched as text."""
    text = linecache.getline(path, line).strip().rstrip(":")
    for prefix in ("", "if True: "):
        try:
            tree = ast.parse(prefix + text + (" pass" if prefix else ""))
        except SyntaxError:
            continue
        powers = [it for it in ast.walk(tree) if isinstance(it, ast.BinOp) and isinstance(it.op, ast.Pow)]
        exponents = {id(it.right) for it in powers}
        constants = [it for it in ast.walk(tree) if isinstance(it, ast.Constant) and id(it) not in exponents]
        return [it.value for it in constants if type(it.value) in (int, float)]
    return [float(it) for it in _NUMBER.findall(text)]


def names_count(path, line):
    """True if a line of a file has a variable whose name suggests a number of microbatches or of ranks."""
    return _COUNT.search(linecache.getline(path, line)) is not None


def caller(depth):
    """The frame that is `depth` calls above the caller of this function."""
    return sys._getframe(depth + 1)


def _is_own(path):
    return not path.startswith("<") and _PACKAGES not in path and not os.path.realpath(path).startswith(_FOREIGN)


def _short(path):
    """The path relative to the working directory, or only the file name if the path is outside of the working
    directory."""
    inside = os.path.relpath(path)
    return os.path.basename(path) if inside.startswith(os.pardir) else inside
