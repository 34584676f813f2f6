"""Watches the clipping of gradients: calls that clip by norm, with the factor of each call, and calls that clip by
value.

Both kinds of clipping are undone in the recorded gradients, so that the weights are those of the gradients before
clipping. The loss scale that a fused optimizer removes within its step is divided out, too.
"""

import math

import torch

from zprobe_exec import fragments, objects, places
from zprobe_exec.in_vain import InVain

# The number of elements of each gradient from which the clipping factor is computed.
SEEN = 64

# The constant that torch's `clip_grad_norm_` and DeepSpeed's optimizers add to the norm in the divisor of the limit.
EPSILON = 1e-6


class Clipping:
    """The clipping of this rank's gradients since each optimizer's last step."""

    def __init__(self, training):
        self.training, self.in_vain = training, InVain(training)
        self.factors = {}  # The factor by which the gradient of a tensor was multiplied, by the tensor's `id`.
        self.clamped = {}  # By the tensor's `id`: a mask of the elements clipped by value, and their old values.
        self.wrappers = {}  # DeepSpeed's wrapper of an optimizer, by the `id` of the wrapped optimizer.
        self.depth = 0

    # Clipping by norm with torch's functions.

    def begin(self, tensors):
        """Called before the gradients of these tensors are clipped by norm. Returns the first argument of `end`."""
        self.depth += 1
        if self.depth > 1:
            return None
        some = [_some(it) for it in tensors]
        held = [it for it, values in zip(tensors, some) if values is not None]
        return tensors, held, [it for it in some if it is not None]

    def end(self, begun, norm, limit, kind, frame):
        """Called after clipping by norm. `norm` is the result of the call, `kind` is the order of the norm, and `frame`
        is the caller's frame."""
        self.depth -= 1
        if begun is None:
            return
        given, tensors, before = begun
        about = dict(at=places.own_line(frame), by=places.package(frame))
        after = [_some(it) for it in tensors]
        if given and math.isfinite(float(limit)):
            self.in_vain.see(given, list(zip(tensors, after)), about)
        if not tensors:
            return
        products = [torch.stack([(a * b).sum(), (b * b).sum()]) for a, b in zip(after, before)]
        product, square = torch.stack([it.to("cpu") for it in products]).sum(0).tolist()
        factor = product / square if square > 0 else 1.0
        if not math.isfinite(factor) or factor <= 0:
            factor = 1.0
        for it in tensors:
            self.factors[id(it)] = self.factors.get(id(it), 1.0) * factor
        # The norm of a DTensor needs a collective, which only the script may call.
        norm = None if hasattr(norm, "to_local") or norm is None else float(norm)
        share = _square(tensors) / factor**2 if float(kind) == 2.0 else None
        late = self._is_late(tensors)
        self._emit(limit, norm, share, _elements(tensors), factor, about, self._scale(tensors), late)

    def _is_late(self, tensors):
        """True if the optimizers of these tensors have already stepped since the last backward."""
        training = self.training
        if not training.stepped or training.stepping:
            return False
        idle = [group for optimizer in training.turns.idle(training.names) for group in optimizer.param_groups]
        waiting = {id(it) for group in idle for it in group["params"]}
        held = [it for it in tensors if fragments.gradient(it) is not None and id(it) not in waiting]
        return bool(held) and all(training.update.has_stepped(it) is not False for it in held)

    def abandon(self):
        """Called instead of `end` if the clipping call has raised an error."""
        self.depth -= 1

    def is_scaled(self):
        """True if an enabled GradScaler may skip optimizer steps."""
        return any(it.is_enabled() for it in objects.named("GradScaler"))

    def _scale(self, tensors):
        """The loss scale that the gradients still include; `None` without a loss scale, or after `unscale_`."""
        held = {id(it) for it in tensors}
        for scaler in objects.named("GradScaler"):
            for state in getattr(scaler, "_per_optimizer_states", {}).values():
                if getattr(state.get("stage"), "name", "") == "UNSCALED":
                    return None
            scale = getattr(scaler, "_scale", None)
            if scale is not None and held and scaler.is_enabled():
                return float(scale)
        return None

    def before_step(self, optimizer, tensors):
        """Called before an optimizer consumes the gradients of these tensors."""
        self.in_vain.before_step(optimizer, tensors, _some)
        self._see_wrapper(optimizer, tensors)
        scale = loss_scale(optimizer)
        for it in tensors if scale != 1.0 else []:
            self.factors[id(it)] = self.factors.get(id(it), 1.0) * scale

    # Clipping by value with torch's `clip_grad_value_`.

    def begin_by_value(self, tensors):
        """Called before the gradients of these tensors are clipped by value. Returns the argument of `end_by_value`."""
        held = [self.training.held.of.get(id(it)) for it in tensors]
        return [(it, it.pick()) for it in held if it is not None and it.chosen is not None]

    def end_by_value(self, begun):
        """Called after clipping by value: remembers the clipped elements with their old values."""
        for fragment, before in begun or []:
            if before is not None:
                self.clamped[id(fragment.tensor)] = (fragment.pick() != before, before)

    # Clipping by DeepSpeed, which happens within the step of its optimizer.

    def _see_wrapper(self, optimizer, tensors):
        """Computes and emits the clipping by DeepSpeed's wrapper of `optimizer`, if the optimizer has a wrapper."""
        if id(optimizer) not in self.wrappers:
            self.wrappers[id(optimizer)] = _wrapper_of(optimizer)
        wrapper = self.wrappers[id(optimizer)]
        if wrapper is None:
            return
        norm, limit = getattr(wrapper, "_global_grad_norm", None), getattr(wrapper, "clip_grad", 0.0)
        norm = None if norm is None else float(norm)
        if not limit or norm is None or not math.isfinite(norm) or norm < 0:
            return
        factor = min(1.0, float(limit) / (norm + EPSILON))
        held = [it for it in tensors if it.grad is not None]
        for it in held:
            self.factors[id(it)] = factor
        # Gradients that an engine has orthogonalised have another norm than the clipped gradients had.
        share = None if self.training.transformed else _square(held) / factor**2
        self._emit(limit, norm, share, _elements(held), factor, dict(at=None, by="deepspeed"))

    def _emit(self, limit, norm, share, elements, factor, about, scale=None, late=False):
        training = self.training
        self.training.channel.emit(
            "gradients-clipped",
            step=training.step,
            backwards=training.microbatch,
            late=late,
            limit=_finite(float(limit)),
            norm=_finite(norm),
            share=_finite(share),
            elements=elements,
            factor=factor,
            scale=scale,
            **about,
        )

    # Undoing the clipping in recorded gradients.

    def take_out(self, tensor, values):
        """The values of recorded elements of a tensor's gradient before clipping; `values` are those after clipping."""
        factor = self.factor(tensor)
        if values is not None and factor != 1.0:
            values = (values.double() / factor).to(values.dtype)
        if values is not None and id(tensor) in self.clamped:
            values = torch.where(*self.clamped[id(tensor)], values)
        return values

    def factor(self, tensor):
        """The factor by which a tensor's gradient was clipped since the last step; 1 without clipping."""
        return self.factors.get(id(tensor), 1.0)

    def forget(self, tensors):
        """Forgets the clipping of these tensors, whose gradients an optimizer has consumed."""
        for it in tensors:
            self.factors.pop(id(it), None)
            self.clamped.pop(id(it), None)


def loss_scale(optimizer):
    """The loss scale that an optimizer will remove within its step; 1 without a loss scale. torch's GradScaler leaves
    the unscaling to fused optimizers (`_step_supports_amp_scaling` in torch/amp/grad_scaler.py)."""
    scale = getattr(optimizer, "grad_scale", None)
    return 1.0 if scale is None else float(scale)


def skips_step(optimizer):
    """True if a fused optimizer will skip its update, because GradScaler has found an infinite gradient."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)


def _some(tensor):
    held = fragments.gradient(tensor)
    if held is None or not len(held):
        return None
    return held[:: fragments.stride(len(held), SEEN)].to(torch.float64, copy=True)


def _square(tensors):
    """The sum of the squares of this rank's part of the tensors' gradients."""
    held = [it.float() for it in (fragments.gradient(tensor) for tensor in tensors) if it is not None]
    return sum(float(it @ it) for it in held)


def _finite(number):
    """The number, or `None` if the number is `None` or not finite: a limit may be infinite."""
    return number if number is not None and math.isfinite(number) else None


def _elements(tensors):
    """The number of elements in this rank's part of the tensors' gradients."""
    held = [it for it in (fragments.gradient(tensor) for tensor in tensors) if it is not None]
    return sum(it.numel() for it in held)


def _wrapper_of(optimizer):
    for it in objects.of_package("deepspeed"):
        if hasattr(it, "clip_grad") and getattr(it, "optimizer", None) is optimizer:
            return it
    return None
