"""Follows optimizers that take turns, as in a GAN: which optimizers step after which backwards."""

import torch

from zprobe_exec import objects


class Unreadable(Exception):
    """Raised for a training that zprobe cannot diagnose; the message has the reason."""


class Turn:
    """A turn: some backwards, and the optimizer steps that follow them."""

    def __init__(self):
        self.names = set()  # The names of the parameters of the turn's optimizers.
        self.microbatches = 0  # The number of the step's microbatches up to the end of the turn.


class Turns:
    """The turns of a step, which the first step determines for all later steps."""

    def __init__(self):
        self.at = 0  # The number of the present turn within its step.
        self.seen = []  # The turns of the first step so far; the present turn is the last.
        self.owned = []  # For each turn the names of the parameters whose optimizers step; set after the first step.
        self.stepped, self.tensors = [], set()
        self.now = set()  # The names of the parameters that optimizers have updated in the present turn.

    def step(self, optimizer, names):
        """Called when an optimizer with the parameters `names` steps in the first step."""
        self.step_elsewhere()
        self.seen[self.at].names.update(names)
        # The optimizer is kept alive, so that its `id` is not reused for another optimizer.
        self.stepped.append(optimizer)
        self.tensors.update(id(tensor) for group in optimizer.param_groups for tensor in group["params"])

    def step_elsewhere(self):
        """Called when an optimizer steps in the first step, on this rank or on another rank that sends the update."""
        if len(self.seen) == self.at:
            self.seen.append(Turn())

    def end(self):
        """Ends a turn of a later step, and raises `Unreadable` if the turn differs from that of the first step."""
        now, self.now = self.now, set()
        if len(self.owned) > 1 and not now <= self.owned[self.at]:
            raise Unreadable("optimizers step in another order than in the first step")

    def idle(self, names):
        """The optimizers that have not stepped yet and hold a trainable parameter with which no optimizer has stepped.
        `names` has the names of the parameters by `id`."""
        known = {id(optimizer) for optimizer in self.stepped}
        is_left = lambda it: it.requires_grad and id(it) in names and id(it) not in self.tensors
        return [
            optimizer
            for optimizer in objects.of(torch.optim.Optimizer)
            if id(optimizer) not in known
            and any(is_left(it) for group in getattr(optimizer, "param_groups", []) for it in group["params"])
        ]

    def agree(self, of_ranks):
        """Fixes the turns of all later steps, and returns the number of microbatches of a step. `of_ranks` has, for
        each rank, a pair for each turn: names of parameters, and number of microbatches."""
        most = max(len(turns) for turns in of_ranks)
        names = [set().union(*(turns[at][0] for turns in of_ranks if at < len(turns))) for at in range(most)]
        everything = set().union(*names)
        # A step ends with the turn after which all optimizers have stepped.
        count = next(count for count in range(1, most + 1) if set().union(*names[:count]) == everything)
        self.owned = names[:count]
        return max(turns[min(count, len(turns)) - 1][1] for turns in of_ranks)

    def due(self, reached):
        """The parameters in `reached` whose optimizers step at the end of the present turn, or that no optimizer
        holds. `reached` are the parameters that got a gradient in a backward."""
        if len(self.owned) < 2 or self.at >= len(self.owned):
            return reached
        elsewhere = set().union(*self.owned) - self.owned[self.at]
        return reached - elsewhere
