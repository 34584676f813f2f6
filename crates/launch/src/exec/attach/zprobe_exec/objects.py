"""The objects of this process that the watch looks at: modules, optimizers, loss scalers, engines and trainers.

They are found through the garbage collector, so that nothing has to be put into their classes. A look at all objects
takes a tenth of a second; what it finds is kept until `look_again`.
"""

import gc
import weakref

import torch

# Classes, by name, that torch need not have imported, or that are not torch's.
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
    """Forgets what was found: the script may have made other objects."""
    global _found
    _found = None


def of(kind):
    """The instances of a class and of those derived from it."""
    return _chosen(lambda it: issubclass(it, kind))


def named(name):
    """The instances of classes of this name and of those derived from them."""
    return _chosen(lambda it: _is_named(it, name))


def of_package(package):
    """The modules, optimizers and engines, among others, whose class is of a package."""
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
