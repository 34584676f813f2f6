"""Finds calls that clip gradients without the intended effect: too early in the step, gradients that no optimizer
uses, only a part of the gradients, or no gradients at all."""

import torch

from zprobe_exec import fragments

# The largest relative change of gradients that rounding explains.
SAME = 1e-2


class Call:
    """A call that has clipped gradients with which no optimizer has stepped yet."""

    def __init__(self, training, tensors, clipped, about):
        self.clipped = clipped  # Pairs of a tensor and some elements of its gradient after the call.
        # Master weights may have gradients without requiring them.
        self.tensors = [it for it in tensors if it.requires_grad or it.grad is not None]
        self.gradient = next((it for it in self.tensors if fragments.gradient(it) is not None), None)
        self.backwards, self.step, self.microbatch = training.backwards, training.step, training.microbatch
        self.about = about
        self.is_passed = self.is_reduced = False

    def is_cleared(self):
        """True if the clipped gradients were cleared, or if no tensor had a gradient."""
        held = None if self.gradient is None else fragments.gradient(self.gradient)
        return held is None or not bool(held.any())

    def change(self, some):
        """The factor by which the gradients were multiplied since the call, and the relative size of all other changes;
        `None` without gradients. `some` picks elements of a tensor's gradient."""
        pairs = [(some(tensor), old) for tensor, old in self.clipped]
        pairs = [(new, old) for new, old in pairs if new is not None]
        if not pairs:
            return None
        squares = [torch.stack([(new * old).sum(), (old * old).sum(), (new * new).sum()]) for new, old in pairs]
        product, before, now = torch.stack([it.to("cpu") for it in squares]).sum(0).tolist()
        if not before or not now:
            return None
        return product / before, max(0.0, 1 - product**2 / (before * now)) ** 0.5


class InVain:
    """The clipping calls that wait for an optimizer step, and the events about calls without the intended effect."""

    def __init__(self, training):
        self.training = training
        self.calls = []
        self.held = set()  # The `id` of each tensor with which any optimizer has stepped.

    def see(self, tensors, clipped, about):
        """Called after the gradients of these tensors were clipped. `clipped` has pairs of a tensor and elements of its
        clipped gradient, and `about` has the place of the call."""
        if self.training.microbatch > 0 and not self.training.stepping:
            self.calls.append(Call(self.training, tensors, clipped, about))

    def see_reduction(self):
        """Called when the script itself reduces a tensor over the ranks."""
        for call in self.calls:
            call.is_reduced = True

    def before_step(self, optimizer, tensors, some):
        """Called before an optimizer steps with these tensors; `some` picks elements of a tensor's gradient."""
        own = {id(it) for it in tensors}
        self._see_left_out(optimizer, own)
        self.held |= own
        waiting = []
        for call in self.calls:
            if not any(id(it) in own for it in call.tensors):
                call.is_passed = True
                waiting.append(call)
            elif call.backwards < self.training.backwards:
                self._emit(call, "early")
            else:
                self._see_change(call, some)
        self.calls = waiting

    def _see_left_out(self, optimizer, own):
        """Emits the parameters that no call has clipped although other parameters of the same optimizer group were
        clipped. A whole group may be left out on purpose."""
        now = [call for call in self.calls if call.backwards == self.training.backwards]
        calls = [call for call in now if any(id(it) in own for it in call.tensors)]
        clipped, left = {id(it) for call in calls for it in call.tensors}, []
        for group in optimizer.param_groups if calls else []:
            held = [it for it in group["params"] if it.grad is not None]
            if any(id(it) in clipped for it in held):
                left += [it for it in held if id(it) not in clipped]
        names = [self.training.names.get(id(it)) for it in left]
        if names and None not in names:
            self._emit(calls[0], "in-part", left=names)

    def before_backward(self):
        """Called before a backward and at the end of a step: judges the clipping calls before an optimizer step that
        did not use their gradients."""
        for call in self.calls:
            if call.is_passed and call.gradient is None:
                self._emit(call, "no-gradient")
            elif call.is_passed and self._is_held(call):
                self._emit(call, "elsewhere")
        self.calls = [call for call in self.calls if not call.is_passed and not call.is_cleared()]

    def _is_held(self, call):
        """True if optimizers hold all clipped tensors, and no loss scaler may skip steps. The clipping of other tensors
        may have an effect: their gradients may be copied to an optimizer's tensors."""
        is_scaled = self.training.clipping.is_scaled()
        return not is_scaled and all(id(it) in self.held for it in call.tensors)

    def _see_change(self, call, some):
        factor, rest = call.change(some) or (1.0, 0.0)
        if rest > SAME:
            if call.is_reduced:
                self._emit(call, "before-reduction")
        elif abs(factor - 1) > SAME:
            self._emit(call, "before-scaling", factor)

    def _emit(self, call, how, factor=None, left=()):
        fields = dict(step=call.step, how=how, backwards=call.microbatch, factor=factor, left=list(left))
        self.training.channel.emit("clipped-in-vain", **fields, **call.about)
