"""The order of collectives, as this rank enters them from Python.

Ranks that enter different collectives hang, crash, or add up unrelated tensors.
Collectives that an engine issues from C++ (DDP's reducer) are not observed here.
"""

import functools
import itertools

import torch.distributed as dist

from zprobe_rank.channel import DTYPE_NAMES

# Function of `torch.distributed`: operation, and position and name of the input tensor. A collective has a name for
# each of torch's releases; FSDP2 uses the newest.
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
    """Makes each collective emit an event first; call it before the engine imports the functions."""
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
        channel.emit(
            "collective-entered",
            sequence=next(sequence),
            op=op,
            dtype=DTYPE_NAMES.get(tensors[0].dtype, str(tensors[0].dtype).replace("torch.", "")),
            numel=sum(tensor.numel() for tensor in tensors),
        )
        return function(*args, **kwargs)

    return enter
