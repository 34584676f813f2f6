"""Clipping: the calls that do it by norm, with the factor that each has multiplied gradients with, and by value.

Both are taken out of what is recorded, so that weights are those of the gradients before clipping. So is the loss
scale that a fused optimizer takes out within its step.
"""

import math

import torch

from zprobe_exec import fragments, objects, places
from zprobe_exec.in_vain import InVain

# Elements of each gradient from which the factor is read.
SEEN = 64

# What torch's `clip_grad_norm_` and DeepSpeed's optimizers add to a norm before a limit is divided by it.
EPSILON = 1e-6


class Clipping:
    """The clipping of this rank's gradients since the last step of their optimizers."""

    def __init__(self, training):
        self.training, self.in_vain = training, InVain(training)
        self.factors = {}  # What the gradient of a tensor was multiplied with, by the tensor's identity.
        self.clamped = {}  # Which recorded elements were clipped by value, and what they were, by the tensor's identity.
        self.wrappers = {}  # DeepSpeed's optimizer around another one, by the identity of that.
        self.depth = 0

    # Calls of torch's functions.

    def begin(self, tensors):
        """A call is about to clip the gradients of these tensors. Returns what `end` needs."""
        self.depth += 1
        if self.depth > 1:
            return None
        some = [_some(it) for it in tensors]
        held = [it for it, values in zip(tensors, some) if values is not None]
        return tensors, held, [it for it in some if it is not None]

    def end(self, begun, norm, limit, kind, frame):
        """The call is over. `norm` is what it returned, `kind` the number of the norm, `frame` the caller's."""
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
        # The norm of a DTensor is known after a collective, which is the script's to call.
        norm = None if hasattr(norm, "to_local") or norm is None else float(norm)
        share = _square(tensors) / factor**2 if float(kind) == 2.0 else None
        late = self._is_late(tensors)
        self._emit(limit, norm, share, _elements(tensors), factor, about, self._scale(tensors), late)

    def _is_late(self, tensors):
        """True if the optimizers that have these tensors have stepped since the last backward."""
        training = self.training
        if not training.stepped or training.stepping:
            return False
        idle = [group for optimizer in training.turns.idle(training.names) for group in optimizer.param_groups]
        waiting = {id(it) for group in idle for it in group["params"]}
        held = [it for it in tensors if fragments.gradient(it) is not None and id(it) not in waiting]
        return bool(held) and all(training.update.has_stepped(it) is not False for it in held)

    def abandon(self):
        """The call has failed."""
        self.depth -= 1

    def is_scaled(self):
        """True if a loss scaler may skip steps."""
        return any(it.is_enabled() for it in objects.named("GradScaler"))

    def _scale(self, tensors):
        """The loss scale that is still in the gradients; None if there is none."""
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
        """An optimizer is about to consume the gradients of these tensors."""
        self.in_vain.before_step(optimizer, tensors, _some)
        self._see_wrapper(optimizer, tensors)
        scale = loss_scale(optimizer)
        for it in tensors if scale != 1.0 else []:
            self.factors[id(it)] = self.factors.get(id(it), 1.0) * scale

    # Calls of torch's `clip_grad_value_`.

    def begin_by_value(self, tensors):
        """A call is about to clip the gradients of these tensors by value. Returns what `end_by_value` needs."""
        held = [self.training.held.of.get(id(it)) for it in tensors]
        return [(it, it.pick()) for it in held if it is not None and it.chosen is not None]

    def end_by_value(self, begun):
        """The call is over."""
        for fragment, before in begun or []:
            if before is not None:
                self.clamped[id(fragment.tensor)] = (fragment.pick() != before, before)

    # DeepSpeed, which clips within its own step.

    def _see_wrapper(self, optimizer, tensors):
        """DeepSpeed's optimizer may have clipped what `optimizer` is about to consume."""
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
        # What an engine has orthogonalised has another norm than what it clipped.
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

    # What is recorded.

    def take_out(self, tensor, values):
        """Elements of a tensor's gradient as they were before clipping."""
        factor = self.factor(tensor)
        if values is not None and factor != 1.0:
            values = (values.double() / factor).to(values.dtype)
        if values is not None and id(tensor) in self.clamped:
            values = torch.where(*self.clamped[id(tensor)], values)
        return values

    def factor(self, tensor):
        """The factor by which a tensor's gradient was clipped."""
        return self.factors.get(id(tensor), 1.0)

    def forget(self, tensors):
        """An optimizer has consumed the gradients of these tensors."""
        for it in tensors:
            self.factors.pop(id(it), None)
            self.clamped.pop(id(it), None)


def loss_scale(optimizer):
    """The loss scale that an optimizer is about to take out within its step, as torch's GradScaler asks it of fused
    ones (`_step_supports_amp_scaling` in torch/amp/grad_scaler.py); 1 if there is none."""
    scale = getattr(optimizer, "grad_scale", None)
    return 1.0 if scale is None else float(scale)


def skips_step(optimizer):
    """True if a fused optimizer is about to change nothing, because GradScaler has found an infinity."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)


def _some(tensor):
    held = fragments.gradient(tensor)
    if held is None or not len(held):
        return None
    return held[:: fragments.stride(len(held), SEEN)].to(torch.float64, copy=True)


def _square(tensors):
    """The sum of the squares of this rank's part of some gradients."""
    held = [it.float() for it in (fragments.gradient(tensor) for tensor in tensors) if it is not None]
    return sum(float(it @ it) for it in held)


def _finite(number):
    """A number, or None where there is none or it is not finite: a limit may be infinite."""
    return number if number is not None and math.isfinite(number) else None


def _elements(tensors):
    """Number of elements of this rank's part of some gradients."""
    held = [it for it in (fragments.gradient(tensor) for tensor in tensors) if it is not None]
    return sum(it.numel() for it in held)


def _wrapper_of(optimizer):
    for it in objects.of_package("deepspeed"):
        if hasattr(it, "clip_grad") and getattr(it, "optimizer", None) is optimizer:
            return it
    return None
