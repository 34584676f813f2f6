"""Records the order of the collectives that this rank enters from Python.

Ranks that enter different collectives hang, crash, or add up unrelated tensors.
This module does not observe collectives that an engine issues from C++, as DDP's reducer does.
"""

import functools
import itertools

import torch.distributed as dist

from zprobe_rank.channel import DTYPE_NAMES

# The watched functions of `torch.distributed`, each with its operation and with the position and the name of its input
# tensor. torch has renamed some collectives from release to release; FSDP2 uses the newest names.
WATCHED = {
    "all_reduce": ("all-reduce", 0, "tensor"),
    "reduce": ("reduce", 0, "tensor"),
    "broadcast": ("broadcast", 0, "tensor"),
    "all_gather": ("all-gather", 1, "tensor"),
    "all_gather_into_tensor": ("all-gather", 1, "input_tensor"),
    "all_gather_single": ("all-gather", 1, "input_tensor"),
    "_all_gather_base": ("all-gather", 1, "input_tensor"),
    "reduce_scatter": ("reduce-scatter", 1, "input_list"),
    "reduce_scatter_tensor": ("reduce-scatter", 1, "input"),
    "reduce_scatter_single": ("reduce-scatter", 1, "input"),
    "_reduce_scatter_base": ("reduce-scatter", 1, "input"),
}


def watch(channel):
    """Makes each collective emit an event before it runs; call `watch` before the engine imports the collectives."""
    sequence = itertools.count()
    for name, place in WATCHED.items():
        function = getattr(dist, name, None)
        if function is not None:
            setattr(dist, name, _watched(function, place, channel, sequence))


def _watched(function, place, channel, sequence):
    op, position, keyword = place

    @functools.wraps(function)
    def enter(*args, **kwargs):
        given = args[position] if len(args) > position else kwargs.get(keyword)
        tensors = given if isinstance(given, (list, tuple)) else [given]
        dtype = DTYPE_NAMES.get(tensors[0].dtype, str(tensors[0].dtype).replace("torch.", ""))
        numel = sum(tensor.numel() for tensor in tensors)
        with channel.lock:  # Another thread does not write a later number before this one.
            channel.emit("collective-entered", sequence=next(sequence), op=op, dtype=dtype, numel=numel)
        return function(*args, **kwargs)

    return enter
