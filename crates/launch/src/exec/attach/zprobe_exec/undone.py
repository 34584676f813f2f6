"""Finds parameters that lack their update: the script moves them back towards their old values or multiplies them after
the optimizer's step, or the optimizer leaves them as they are."""

import torch

from zprobe_exec import fragments
from zprobe_rank.tensors import flat

# The number of elements of each tensor that are compared.
SEEN = 64

# LEFT is the largest share of an update that remains after the script has undone the update. SLACK is the largest
# deviation of an element from that share, relative to the largest update of the tensor.
LEFT, SLACK = 0.95, 0.02

# The least change of a factor that is reported, and the largest deviation of multiplied parameters from the multiple,
# relative to the norm of the parameters: the sum of replicas that were trained apart is no exact multiple.
LEAST, SPREAD = 0.3, 0.1

# A parameter has to move if its update, as large as those of other parameters, is this many times its rounding error.
VISIBLE = 64


class Undone:
    """Samples of this rank's parameters before and after the last step of each optimizer."""

    def __init__(self):
        self.before = {}  # By the `id` of the optimizer: tuples of a tensor, indices, and the values at these indices.
        self.updated = {}  # The same tuples, followed by the values after the step.
        self.groups = {}  # By the `id` of the optimizer: for each group, pairs of a tensor and its largest gradient.

    def before_step(self, optimizer):
        """Called before an optimizer steps: copies samples of its tensors."""
        groups = [[it for it in group["params"] if _is_read(it)] for group in optimizer.param_groups]
        read = [(it, _some(it)) for tensors in groups for it in tensors]
        self.before[id(optimizer)] = [(it, at, _values(it, at)) for it, at in read]
        self.groups[id(optimizer)] = [[(it, _largest(it)) for it in tensors] for tensors in groups]

    def after_step(self, optimizer):
        """Called after an optimizer has stepped: copies the same samples again."""
        held = self.before.pop(id(optimizer), [])
        self.updated[id(optimizer)] = [(it, at, old, _values(it, at)) for it, at, old in held]

    def tensors(self):
        """All tensors of each optimizer whose tensors have lost the same share of their update. The script has replaced
        these parameters by older values, or by an average with older values."""
        found = []
        for held in self.updated.values():
            pairs = [(it, new - old, _values(it, at) - old, old) for it, at, old, new in held]
            pairs = [(it, update, left, old) for it, update, left, old in pairs if bool(update.any())]
            square = sum(float(update @ update) for _, update, _, _ in pairs)
            part = sum(float(update @ left) for _, update, left, _ in pairs) / square if square else 1.0
            if part <= LEFT and all(_is_part(part, *it) for it in pairs):
                found += [it for it, _, _, _ in pairs]
        return found

    def unmoved(self):
        """All tensors that have not changed since before the last step, although they have gradients and other tensors
        of the same group have changed by more than rounding hides."""
        found = []
        for key, groups in self.groups.items():
            samples = {id(it): (old, _values(it, at)) for it, at, old, _ in self.updated.get(key, [])}
            for group in groups:
                peaks = [(it, float(peak)) for it, peak in group if id(it) in samples]
                known = [(it, peak, *samples[id(it)]) for it, peak in peaks if peak > 0]
                rates = [float((now - old).abs().max()) / peak for _, peak, old, now in known]
                least = min((it for it in rates if it > 0), default=0.0)
                for (tensor, peak, old, _), rate in zip(known, rates):
                    hidden = VISIBLE * torch.finfo(tensor.dtype).eps * float(old.abs().max())
                    found += [tensor] if rate == 0 and least * peak > hidden else []
        return found

    def factor(self):
        """The factor by which the script has multiplied all parameters since the last step of each optimizer; `None` if
        the script has not multiplied them."""
        pairs = [(new, _values(it, at)) for held in self.updated.values() for it, at, _, new in held]
        square = sum(float(new @ new) for new, _ in pairs)
        factor = sum(float(new @ now) for new, now in pairs) / square if square else 1.0
        rest = sum(float((now - factor * new).square().sum()) for new, now in pairs)
        is_multiple = abs(factor - 1) >= LEAST and rest <= (SPREAD * factor) ** 2 * square
        return factor if is_multiple else None


def _is_part(part, tensor, update, left, old):
    """True if `left` is the share `part` of a tensor's `update`, up to rounding."""
    rounding = 4 * torch.finfo(tensor.dtype).eps * float(old.abs().max())
    return float((left - part * update).abs().max()) <= SLACK * float(update.abs().max()) + rounding


def _is_read(tensor):
    return tensor.grad is not None and not fragments.is_freed(flat(tensor))


def _largest(tensor):
    """The largest sampled element of a gradient, on the gradient's device, so that the step does not wait for the device;
    0 for a gradient that cannot be read."""
    held = fragments.gradient(tensor)
    return 0.0 if held is None or not len(held) else held[_some(tensor)].abs().max()


def _some(tensor):
    return slice(None, None, fragments.stride(flat(tensor).numel(), SEEN))


def _values(tensor, at):
    return flat(tensor)[at].double().clone()
