"""What is known of an optimizer's step while it is going on."""


class Stepping:
    """The step of an optimizer while it is going on."""

    def __init__(self):
        self.found = []  # Fragments that are new.
        self.again = []  # Fragments that another optimizer holds, or this one in another place.
        self.parts = []  # Fragments with the recorded elements of their gradients.
        self.spared = []  # Tensors with gradients that the optimizer is not to see.

    def hand_on(self, tensors, params):
        """Another optimizer steps within this step, with these tensors, which hold these parameters. What this one has
        of them, or has no gradient of, is only handed on."""
        inner = {id(tensor) for tensor in tensors}

        def is_own(fragment):
            return id(fragment.tensor) not in inner and params.isdisjoint(fragment.params())

        self.parts = [(it, part) for it, part in self.parts if part is not None and is_own(it)]
        own = {id(it) for it, _ in self.parts}
        self.found = [it for it in self.found if id(it) in own]
        self.again = [it for it in self.again if id(it) in own]
