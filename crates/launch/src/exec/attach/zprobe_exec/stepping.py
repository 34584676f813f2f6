"""The record of an optimizer's step that is in progress."""


class Stepping:
    """The fragments and gradients of an optimizer's step that is in progress."""

    def __init__(self):
        self.found = []  # The fragments that no optimizer has stepped with before.
        self.again = []  # The fragments that an optimizer holds for the second time.
        self.parts = []  # Pairs of a fragment and the recorded elements of its gradient.
        self.spared = []  # Pairs of a tensor and its gradient, which the optimizer must not see.

    def hand_on(self, tensors, params):
        """Called when another optimizer steps inside of this step, with `tensors`, which hold `params`. This step then
        drops fragments of these tensors and parameters, and fragments without a gradient: they belong to the inner
        step."""
        inner = {id(tensor) for tensor in tensors}

        def is_own(fragment):
            return id(fragment.tensor) not in inner and params.isdisjoint(fragment.params())

        self.parts = [(it, part) for it, part in self.parts if part is not None and is_own(it)]
        own = {id(it) for it, _ in self.parts}
        self.found = [it for it in self.found if id(it) in own]
        self.again = [it for it in self.again if id(it) in own]
