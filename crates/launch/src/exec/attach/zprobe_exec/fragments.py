"""What the optimizers of this rank hold and consume."""

import torch

from zprobe_rank.tensors import dense, flat


class Fragment:
    """A tensor that an optimizer updates, and the places of its elements in the model's parameters."""

    def __init__(self, tensor, segments, optimizer):
        # The tensor is kept alive, so that no other one gets its identity.
        self.tensor, self.segments, self.optimizer = tensor, segments, optimizer
        self.chosen = None  # Places of the recorded elements.
        self.pieces = []  # These elements as pieces of parameters.
        self.backward = None  # These elements of the gradient as the last backward left it.
        self.stepped = False  # True if an optimizer has stepped with the fragment since the last record.
        self.first = None  # What was consumed in the first step: later its recorded elements.
        self.factor = 1.0  # The factor by which it was clipped.
        self.kept = 1.0  # The factor by which it was clipped up to now, if nobody has cleared it.
        self.share = 1.0  # The part of the ranks that have not cleared it, up to now.
        self.addresses = None  # True for those of its recorded elements that were a part of an address.
        self.consumed = None  # These elements of what was consumed since the last record.

    def params(self):
        """The parameters of which it has elements."""
        return {segment["param"] for segment in self.segments} - {None}

    def choose(self, pick):
        """Fixes the elements that are recorded: `pick` has the chosen pieces of some segments, each with
        the place of its first element."""
        chosen = pick(self.segments)
        self.chosen = index(chosen)
        self.pieces = [piece for _, piece in chosen]

    def pick(self):
        """Copies the recorded elements of the gradient, if there is one; the copy stays on its device."""
        held = gradient(self.tensor)
        return None if held is None else held[self.chosen.to(held.device)]


class Fragments:
    """All fragments of this rank, in the order in which optimizers stepped with them."""

    def __init__(self):
        self.all, self.of = [], {}
        self.again = []  # Segments of what an optimizer holds a second time.

    def adopt(self, found, again):
        """Adds fragments, and the segments of those that are held again."""
        for fragment in found:
            self.of[id(fragment.tensor)] = fragment
            self.all.append(fragment)
        for fragment in again:
            self.again.extend(dict(segment) for segment in fragment.segments)

    def strays(self, names):
        """Number of tensors without a gradient that are in no place of the model, as `names` has its tensors by
        identity, or that an engine has replaced."""
        idle = [it for it in self.all if it.tensor.requires_grad and gradient(it.tensor) is None]
        is_placed = lambda it: any(segment["param"] is not None for segment in it.segments)
        return sum(not is_placed(it) or id(it.tensor) not in names for it in idle)

    def pieces(self):
        """The recorded pieces of all fragments, one after the other."""
        return [piece for fragment in self.all for piece in fragment.pieces]

    def name_by_index(self, indices):
        """Replaces names by indices; `indices` has that of each parameter, by name."""
        for segment in self.segments():
            segment["param"] = indices.get(segment["param"])

    def segments(self):
        """The segments of all fragments, one after the other, and those that are held again."""
        return [segment for fragment in self.all for segment in fragment.segments] + self.again

    def after_backward(self):
        """Remembers the gradients as a backward leaves them, where the optimizer's tensors have them."""
        for fragment in self.all:
            fragment.backward = fragment.pick()

    def consume(self, parts):
        """Remembers what an optimizer stepped with: pairs of a fragment and elements of its gradient, or
        None where there was no gradient."""
        for fragment, part in parts:
            fragment.stepped = True
            if fragment.consumed is not None and part is not None:
                # Stepped twice: for any optimizer that is two updates with one gradient each.
                part = fragment.consumed + part
            fragment.consumed = fragment.consumed if part is None else part

    def forget(self):
        """Drops what was seen since the last record."""
        for fragment in self.all:
            fragment.backward = fragment.consumed = None
            fragment.stepped = False

    def waits(self):
        """True if some fragment was not stepped with since the last record."""
        return not all(fragment.stepped for fragment in self.all)

    def record(self, channel, step, microbatch):
        """Emits what was seen since the last record."""
        if not any(fragment.stepped for fragment in self.all):
            self.forget()
            return
        left = [fragment.backward for fragment in self.all]
        if all(part is not None for part in left):
            channel.buffer("before-step", "partition", self._joined(left), step=step, microbatch=microbatch)
        consumed = [fragment.consumed for fragment in self.all]
        channel.buffer("optimizer-input", "partition", self._joined(consumed), step=step)
        self.forget()

    def _joined(self, parts):
        """The parts of all fragments in one tensor; zeros where there is none."""
        pairs = zip(parts, self.all)
        return joined([_zeros(it) if part is None else part for part, it in pairs])


def joined(parts):
    """Parts of tensors in one on the host, in their dtype if they have one in common that can be recorded."""
    parts = [part.to("cpu") for part in parts]
    dtypes = {part.dtype for part in parts}
    if len(dtypes) > 1 or not dtypes <= {torch.bfloat16, torch.float16, torch.float32}:
        parts = [part.to(torch.float32) for part in parts]
    return torch.cat(parts)


def _zeros(fragment):
    return torch.zeros(len(fragment.chosen), dtype=fragment.tensor.dtype)


def stride(length, count):
    """The distance between samples of which about `count` lie in a tensor of `length` elements. The distance is odd,
    because codes repeat after a power of two, and a sum of codes may be 0 in the same place of each repetition."""
    return max(1, length // count) | 1


def is_freed(content):
    """True if an engine has freed the storage of a tensor, as FSDP2 does with whole parameters."""
    return content.untyped_storage().nbytes() < content.numel() * content.element_size()


def gradient(tensor):
    """A tensor's gradient on this rank, flat; None where there is none, or one that is no dense row of
    real numbers."""
    return dense(tensor.grad)


def is_finite(content):
    """True if all elements of a tensor are finite. Their sum, which is read ten times as fast, tells it, unless it is
    too large itself."""
    dtype = torch.float32 if content.dtype in (torch.float16, torch.bfloat16) else None
    return bool(content.sum(dtype=dtype).isfinite()) or bool(content.isfinite().all())


def whole_or_shard(tensor, named):
    """The place, (name, offset), at which a parameter or this rank's shard of it lies; None where that
    cannot be said, or where `named`, the parameter, is None."""
    if named is None:
        return None
    name = named.name
    if named.part is not None:
        if named.start is not None:
            return (name, named.start)
        return (name, 0) if flat(tensor).numel() == named.numel else None
    mesh, placements = getattr(tensor, "device_mesh", None), getattr(tensor, "placements", None)
    if mesh is None:
        return (name, 0) if tensor.numel() == named.numel else None
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    row = 1
    for side in tensor.shape[1:]:
        row *= side
    if list(shape[1:]) != list(tensor.shape[1:]):
        return None
    return (name, offset[0] * row if offset else 0)


def index(chosen):
    """Places of the elements of some pieces, each of which comes with the place of its first element."""
    runs = [torch.arange(start, start + piece["len"]) for start, piece in chosen]
    return torch.cat(runs) if runs else torch.zeros(0, dtype=torch.int64)
