"""What the optimizers of this rank hold and consume."""

import torch


class Fragment:
    """A tensor that an optimizer updates, and the places of its elements in the model's parameters."""

    def __init__(self, tensor, segments):
        # The tensor is kept alive, so that no other one gets its identity.
        self.tensor, self.segments = tensor, segments
        self.chosen = None  # Places of the recorded elements.
        self.gradient = None  # These elements of what was consumed since the last record.


class Fragments:
    """All fragments of this rank, in the order in which optimizers stepped with them."""

    def __init__(self):
        self.all, self.of = [], {}

    def meet(self, tensor, segments):
        """Adds a fragment whose place is known now."""
        self.of[id(tensor)] = fragment = Fragment(tensor, segments)
        self.all.append(fragment)

    def choose(self, pick):
        """Fixes the elements that are recorded: `pick` has the chosen pieces of some segments, each with
        the place of its first element. Returns all of them, one after the other."""
        pieces = []
        for fragment in self.all:
            chosen = pick(fragment.segments)
            fragment.chosen = _index(chosen)
            pieces.extend(piece for _, piece in chosen)
        return pieces

    def name_by_index(self, indices):
        """Replaces names by indices; `indices` has that of each parameter, by name."""
        for fragment in self.all:
            for segment in fragment.segments:
                segment["param"] = indices.get(segment["param"])

    def segments(self):
        """The segments of all fragments, one after the other."""
        return [segment for fragment in self.all for segment in fragment.segments]

    def consume(self, tensor):
        """Copies the chosen elements of a fragment's gradient; the copy stays on its device."""
        fragment = self.of.get(id(tensor))
        if fragment is None or fragment.chosen is None:
            return
        gradient = flat(tensor.grad)
        picked = gradient[fragment.chosen.to(gradient.device)]
        # Stepped twice: for any optimizer that is two updates with one gradient each.
        fragment.gradient = picked if fragment.gradient is None else fragment.gradient + picked

    def forget(self):
        """Drops what was consumed since the last record."""
        for fragment in self.all:
            fragment.gradient = None

    def waits(self):
        """True if some fragment was not stepped with since the last record."""
        return any(fragment.gradient is None for fragment in self.all)

    def record(self, channel, step):
        """Emits what was consumed since the last record, if anything was."""
        if all(fragment.gradient is None for fragment in self.all):
            return
        parts = []
        for fragment in self.all:
            part = fragment.gradient
            if part is None:
                part = torch.zeros(len(fragment.chosen), dtype=fragment.tensor.dtype)
            parts.append(part.to("cpu"))
            fragment.gradient = None
        dtypes = {part.dtype for part in parts}
        if len(dtypes) > 1 or not dtypes <= {torch.bfloat16, torch.float16, torch.float32}:
            parts = [part.to(torch.float32) for part in parts]
        channel.buffer("optimizer-input", "partition", torch.cat(parts), step=step)


def flat(tensor):
    """A tensor's content on this rank, flat."""
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    return tensor.reshape(-1)


def whole_or_shard(tensor, name, sizes):
    """The place, (name, offset), at which a parameter or this rank's shard of it lies; None where that
    cannot be said."""
    if name is None:
        return None
    mesh, placements = getattr(tensor, "device_mesh", None), getattr(tensor, "placements", None)
    if mesh is None:
        return (name, 0) if tensor.numel() == sizes[name] else None
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    row = 1
    for side in tensor.shape[1:]:
        row *= side
    if list(shape[1:]) != list(tensor.shape[1:]):
        return None
    return (name, offset[0] * row if offset else 0)


def located(reader, tensor, name, sizes):
    """Segments of an optimizer's tensor, read from the stamps in its gradient; without a gradient, from
    what the tensor is."""
    hint = whole_or_shard(tensor, name, sizes)
    size = flat(tensor).numel()
    if size == 0:
        return []
    gradient = None if tensor.grad is None else flat(tensor.grad)
    if gradient is None or not bool(gradient.any()):
        return [dict(param=hint and hint[0], offset=hint[1] if hint else 0, len=size)]
    return reader.locate(gradient, hint)


def free_runs(stamp, sizes, most):
    """A choice among the elements that no address takes up: at most so many runs of each segment."""

    def pick(segments):
        chosen, start = [], 0
        for segment in segments:
            name, offset = segment["param"], segment["offset"]
            if name is not None:
                runs = stamp.free(sizes[name], offset, offset + segment["len"])
                runs = runs[:: -(-len(runs) // most)] if len(runs) > most else runs
                for first, end in runs:
                    chosen.append((start + first - offset, dict(param=name, offset=first, len=end - first)))
            start += segment["len"]
        return chosen

    return pick


def _index(chosen):
    runs = [torch.arange(start, start + piece["len"]) for start, piece in chosen]
    return torch.cat(runs) if runs else torch.zeros(0, dtype=torch.int64)
