"""Calls that clip gradients with which no optimizer steps: too early, those of other parameters, a part alone, or none
at all."""

import torch

from zprobe_exec import fragments

# Largest change of gradients, as a share of them, that is rounding.
SAME = 1e-2


class Call:
    """A call that clips gradients, until an optimizer steps with them."""

    def __init__(self, training, tensors, clipped, about):
        self.clipped = clipped  # Pairs of a tensor and elements of its gradient as the call left them.
        self.tensors = [it for it in tensors if it.requires_grad]
        self.gradient = next((it for it in self.tensors if fragments.gradient(it) is not None), None)
        self.backwards, self.step, self.microbatch = training.backwards, training.step, training.microbatch
        self.about = about
        self.is_passed = self.is_reduced = False

    def is_cleared(self):
        """True if the gradients are there no more."""
        held = None if self.gradient is None else fragments.gradient(self.gradient)
        return held is None or not bool(held.any())

    def change(self, some):
        """What gradients were multiplied with since the call, and how much else was done to them, as a share of them;
        None if there are none. `some` picks elements of a tensor's gradient."""
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
    """The calls that wait for a step."""

    def __init__(self, training):
        self.training = training
        self.calls = []
        self.held = set()  # Identities of what any optimizer has stepped with.

    def see(self, tensors, clipped, about):
        """A call has clipped the gradients of these tensors, and left `clipped`: pairs of a tensor and elements of its
        gradient. `about` tells of the call's place."""
        if self.training.microbatch > 0 and not self.training.stepping:
            self.calls.append(Call(self.training, tensors, clipped, about))

    def see_reduction(self):
        """The script reduces a tensor over the ranks by itself."""
        for call in self.calls:
            call.is_reduced = True

    def before_step(self, optimizer, tensors, some):
        """An optimizer is about to step with these tensors; `some` picks elements of a tensor's gradient."""
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
        """Sees parameters that no call has clipped, beside clipped ones in a group of the optimizer. The parameters of
        another group may be left alone on purpose."""
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
        """A backward begins, or the last step is over."""
        for call in self.calls:
            if call.is_passed and call.gradient is None:
                self._emit(call, "no-gradient")
            elif call.is_passed and self._is_held(call):
                self._emit(call, "elsewhere")
        self.calls = [call for call in self.calls if not call.is_passed and not call.is_cleared()]

    def _is_held(self, call):
        """True if some optimizer holds all that was clipped. Else the gradients may be copied to where one does; and
        one that a loss scaler skips has stepped in its way."""
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
