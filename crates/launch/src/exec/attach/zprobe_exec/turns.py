"""Optimizers that take turns, such as a GAN's: which of them step after which backwards."""

import torch

from zprobe_exec import objects


class Unreadable(Exception):
    """A training of which nothing can be said, and why."""


class Turn:
    """The backwards before some optimizers step, and those steps."""

    def __init__(self):
        self.names = set()  # Names of the parameters of these optimizers.
        self.microbatches = 0  # Microbatches of the step at the end of the turn.


class Turns:
    """The turns of a step, as the first step showed them."""

    def __init__(self):
        self.at = 0  # Number of the present turn in its step.
        self.seen = []  # Turns of the first step, the present one last.
        self.owned = []  # Parameters whose optimizers step in each turn; known after the first step.
        self.stepped, self.tensors = [], set()
        self.now = set()  # Parameters that were stepped with in the present turn.

    def step(self, optimizer, names):
        """An optimizer with these parameters steps in the first step."""
        if len(self.seen) == self.at:
            self.seen.append(Turn())
        self.seen[self.at].names.update(names)
        # Kept alive, so that no other optimizer gets its identity.
        self.stepped.append(optimizer)
        self.tensors.update(id(tensor) for group in optimizer.param_groups for tensor in group["params"])

    def end(self):
        """A turn of a later step is over: it has to be like that of the first step."""
        now, self.now = self.now, set()
        if len(self.owned) > 1 and not now <= self.owned[self.at]:
            raise Unreadable("optimizers do not take turns as they did in the first step")

    def idle(self, names):
        """The optimizers that have not stepped yet and hold a trainable parameter which no other one does. `names` has
        those of the parameters, by identity."""
        known = {id(optimizer) for optimizer in self.stepped}
        is_left = lambda it: it.requires_grad and id(it) in names and id(it) not in self.tensors
        return [
            optimizer
            for optimizer in objects.of(torch.optim.Optimizer)
            if id(optimizer) not in known
            and any(is_left(it) for group in getattr(optimizer, "param_groups", []) for it in group["params"])
        ]

    def agree(self, of_ranks):
        """Fixes the turns of all later steps: `of_ranks` has, for each rank, pairs of names and
        microbatches, one for each turn. Returns the number of microbatches of a step."""
        most = max(len(turns) for turns in of_ranks)
        names = [set().union(*(turns[at][0] for turns in of_ranks if at < len(turns))) for at in range(most)]
        everything = set().union(*names)
        # Turns begin anew when all optimizers have stepped.
        count = next(count for count in range(1, most + 1) if set().union(*names[:count]) == everything)
        self.owned = names[:count]
        return max(turns[min(count, len(turns)) - 1][1] for turns in of_ranks)

    def due(self, reached):
        """The parameters that a backward has gradients for and that are stepped with at the end of its
        turn, or by no optimizer at all."""
        if len(self.owned) < 2 or self.at >= len(self.owned):
            return reached
        elsewhere = set().union(*self.owned) - self.owned[self.at]
        return reached - elsewhere
