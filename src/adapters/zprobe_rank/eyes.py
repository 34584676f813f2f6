"""What can be seen of an engine between a backward and the optimizer, whoever drives the engine."""

import math


class BaseEyes:
    """The eyes of an engine. They look at its objects and wrap their methods, and never change what it computes.

    Parameters are known by numbers. Gradients are flat tensors of whole parameters, in the dtype in which the engine adds
    them up, neither divided by the ranks nor freed from a loss scale.
    """

    #: Name of the engine.
    engine = None

    #: Name of the class of the engine's objects.
    kind = None

    #: Largest number of such objects in a process that the eyes can look at together.
    most = math.inf

    def __init__(self, objects, index):
        """`objects` are those of the class `kind` in this process, at least one, and `index` has the numbers of
        parameters by the identities of all tensors that stand for them."""
        self.objects, self.index = objects, index
        #: Called right after the reduction at a gradient accumulation boundary, where that can be seen.
        self.on_reduced = None
        self.step, self.microbatch, self.flushes = None, None, 0
        self.emit = None
        self.undo = []

    def open(self, emit):
        """Begins to watch what passes by. Events go to `emit`, a function of a type and fields."""
        self.emit = emit

    def close(self):
        """Takes away all that `open` has put into the engine."""
        while self.undo:
            self.undo.pop()()

    def begin(self, step, microbatch):
        """A microbatch begins."""
        if step != self.step:
            self.flushes = 0
        self.step, self.microbatch = step, microbatch

    def when_over(self, look):
        """Calls `look` once the engine is done with the backward that autograd has just ended; not at all if that cannot
        be seen."""
        look()

    def describe(self):
        """Class that wraps the inner optimizer, and facts in the engine's own words: a text, and a dict of texts."""
        raise NotImplementedError

    def describe_afterwards(self):
        """Facts that the engine can tell only after steps were taken, a dict of texts; they take the place of the
        first."""
        return {}

    def has_reduced(self):
        """True if the last backward has reduced gradients over the ranks; None where that is not seen."""
        return None

    def gradients(self):
        """The sum of this rank's gradients so far, by the numbers of parameters; parameters without a gradient may be
        left out. None where the rank has no whole gradients."""
        return None

    def fired(self):
        """Numbers of times that a parameter's gradient hook fired since the last call, and of gradients that autograd
        delivered to it, as pairs by the numbers of the parameters that the engine trains. None where hooks are not
        observed."""
        return None

    def not_observed(self, what, why):
        """Says that something cannot be seen in this release of the engine."""
        self.emit("not-observed", what=what, why=why)

    def flushed(self, reason, elements, capacity, params):
        """Says that a bucket is about to be reduced, with the numbers of its parameters."""
        at = dict(step=self.step, microbatch=self.microbatch, flush=self.flushes)
        self.flushes += 1
        self.emit("bucket-flushed", reason=reason, elements=elements, capacity=capacity, params=params, **at)

    def wrap(self, holder, name, around):
        """Puts `around` in the place of a method of an object; it is given the method and its arguments."""
        method, is_own = getattr(holder, name), name in vars(holder)

        def wrapped(*args, **kwargs):
            return around(method, *args, **kwargs)

        setattr(holder, name, wrapped)
        self.undo.append(lambda: setattr(holder, name, method) if is_own else delattr(holder, name))
