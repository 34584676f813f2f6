"""Compares the training state of a rank before a checkpoint was saved with the state after the checkpoint was loaded.

A state is a dict of dicts: for each kind of state (such as `master weights`) the parts of that kind by number. A part
is a pair of its segments, as in a layout, and a flat tensor. A number that belongs to the whole engine has no segments.
"""

import torch

from zprobe_rank.channel import finite
from zprobe_rank.tensors import flat


def training_state(parameters, masters, fragments, optimizer, numbers):
    """A copy of the state of a rank: its whole `parameters`, and the master weights, if the optimizer holds any. Both
    are pairs of segments and tensor, like all `fragments` of the optimizer. `numbers` has the engine's, by name."""
    state = {"parameters": parameters, "master weights": masters}
    state = {kind: {n: (segments, copy(it)) for n, (segments, it) in enumerate(of)} for kind, of in state.items() if of}
    for number, (segments, fragment) in enumerate(fragments):
        for name, value in optimizer.state.get(fragment, {}).items():
            if isinstance(value, (int, float, torch.Tensor)):
                state.setdefault("optimizer.%s" % name, {})[number] = (segments, copy(value))
    for number, group in enumerate(optimizer.param_groups):
        for name, value in group.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                state.setdefault("optimizer.%s" % name, {})[number] = ([], copy(value))
    for name, value in numbers.items():
        state[name] = {0: ([], copy(value))}
    return state


def copy(value):
    """A flat copy of a tensor or of a number, in fp64 if the value is a number."""
    return flat(value).clone() if isinstance(value, torch.Tensor) else torch.tensor([float(value)], dtype=torch.float64)


def comparison(saved, loaded, dtype):
    """The comparison of two states, one entry for each kind of state. `dtype` is the dtype of the model."""
    kinds = {**saved, **loaded}
    return [dict(state=kind, **compared(saved.get(kind, {}), loaded.get(kind, {}), dtype)) for kind in kinds]


def compared(saved, loaded, dtype):
    """The comparison of all parts of one kind. A missing part counts as zeros, with which optimizers begin."""
    differing, numbers, rounded = [], None, True
    for number in sorted({*saved, *loaded}):
        segments, before = saved[number] if number in saved else nothing(loaded[number])
        _, after = loaded[number] if number in loaded else nothing(saved[number])
        unequal = (before != after) & ~(before.isnan() & after.isnan())
        found = list(places(segments, unequal))
        if segments and not found or not bool(unequal.any()):
            continue
        at = found[0][0] if found else 0
        numbers = numbers or dict(saved=finite(float(before[at])), loaded=finite(float(after[at])))
        differing += [place for _, place in found]
        rounded = rounded and torch.equal(after[unequal], before[unequal].to(dtype).to(before.dtype))
    return dict(differing=differing, rounded=numbers is not None and rounded, numbers=numbers)


def nothing(part):
    """A part of a state with the same segments, and with zeros."""
    segments, tensor = part
    return segments, torch.zeros_like(tensor)


def places(segments, unequal):
    """For each segment of a parameter with unequal elements, the index of the first such element, and the elements as
    in the event `checkpoint-loaded`. A tensor of one element is the state of all its segments. Padding is left out."""
    if len(unequal) == 1:
        unequal = unequal.expand(sum(segment["len"] for segment in segments))
    start = 0
    for segment in segments:
        part = unequal[start : start + segment["len"]]
        count = int(part.sum()) if segment["param"] is not None else 0
        if count > 0:
            first = int(part.to(torch.uint8).argmax())
            yield start + first, dict(param=segment["param"], elements=count, first=segment["offset"] + first)
        start += segment["len"]
