"""Finds the objects of this process that zprobe watches: modules, optimizers, loss scalers, engines and trainers.

The objects are found through the garbage collector, so that their classes need no change. A search of all objects takes
a tenth of a second; its result is kept until `look_again`.
"""

import gc
import weakref

import torch

# The names of watched classes that torch may not have imported yet, or that belong to other packages.
NAMES = frozenset(
    [
        "AcceleratedScheduler",
        "DeepSpeedEngine",
        "FSDPParam",
        "FSDPState",
        "GradScaler",
        "LRScheduler",
        "ModelAverager",
        "Trainer",
    ]
)

_found = None


def look_again():
    """Forgets the objects found so far, because the script may have made new objects."""
    global _found
    _found = None


def of(kind):
    """The living instances of a class and of its subclasses."""
    return _chosen(lambda it: issubclass(it, kind))


def named(name):
    """The living instances of classes with this name and of their subclasses."""
    return _chosen(lambda it: _is_named(it, name))


def of_package(package):
    """The living watched objects, such as modules, optimizers and engines, whose class belongs to a package."""
    return _chosen(lambda it: _is_of(it, package))


def _chosen(is_wanted):
    global _found
    if _found is None:
        everything = gc.get_objects()
        kinds = {it for it in set(map(type, everything)) if _is_looked_at(it)}
        _found = [weakref.ref(it) for it in everything if type(it) in kinds]
    alive = [it for it in (reference() for reference in _found) if it is not None]
    kinds = {it for it in set(map(type, alive)) if is_wanted(it)}
    return [it for it in alive if type(it) in kinds]


def _is_looked_at(kind):
    known = issubclass(kind, (torch.nn.Module, torch.optim.Optimizer)) or _is_of(kind, "deepspeed")
    return (known or any(_is_named(kind, name) for name in NAMES)) and bool(kind.__weakrefoffset__)


def _is_named(kind, name):
    return any(it.__name__ == name for it in kind.__mro__)


def _is_of(kind, package):
    return str(kind.__module__).partition(".")[0] == package
