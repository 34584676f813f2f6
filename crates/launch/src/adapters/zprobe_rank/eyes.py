"""What can be seen of an engine between a backward and the optimizer, whoever drives the engine."""

import functools
import math
import traceback

from zprobe_rank.tensors import dense, own_part, shard_start


class BaseEyes:
    """The eyes of an engine. They look at its objects and wrap their methods, and never change what it computes: an
    error in them is told, and ends there.

    These see what is alike in all engines that leave gradients where autograd accumulates them. Those of an engine
    derive from them, and say what is otherwise.

    Parameters are known by numbers. Gradients are flat tensors of whole parameters, in the dtype in which the engine adds
    them up, neither divided by the ranks nor freed from a loss scale.
    """

    #: Name of the engine.
    engine = None

    #: Name of the class of the engine's objects.
    kind = None

    #: Largest number of such objects in a process that the eyes can look at together.
    most = math.inf

    def __init__(self, objects):
        """`objects` are those of the class `kind` that train in this process, at least one."""
        self.objects = objects
        #: Called right after the reduction at a gradient accumulation boundary, where that can be seen.
        self.on_reduced = lambda: None
        self.index = {}  # Numbers of parameters by the identities of all tensors that stand for them.
        self.step, self.microbatch, self.flushes = None, None, 0
        self.emit = None
        self.undo = []
        self.failed = set()  # Names of the functions that have failed to see.

    @staticmethod
    def leaves(it):
        """Tensors of one of the engine's objects that autograd accumulates gradients into."""
        return it.parameters()

    def arm(self):
        """Begins to follow when the engine is at work, before parameters have numbers."""

    def open(self, index, emit):
        """Begins to watch what passes by. `index` has the numbers of parameters by the identities of all tensors that
        stand for them, and events go to `emit`, a function of a type and fields."""
        self.index, self.emit = index, emit

    def close(self):
        """Takes away all that was put into the engine."""
        while self.undo:
            self.guarded(self.undo.pop())

    def begin(self, step, microbatch):
        """A microbatch begins."""
        if step != self.step:
            self.flushes = 0
        self.step, self.microbatch = step, microbatch

    def when_over(self, look):
        """Calls `look` once the engine is done with the backward that autograd has just ended."""
        look()

    def describe(self):
        """Class that wraps the inner optimizer, and facts in the engine's own words: a text, and a dict of texts."""
        return type(self.objects[0]).__name__, {}

    def describe_afterwards(self):
        """Facts that the engine can tell only after steps were taken, a dict of texts; they take the place of the
        first."""
        return {}

    def graph_index(self):
        """Numbers of parameters by the identities of the tensors that autograd accumulates into."""
        return self.index

    def pieces(self, fragment):
        """The pieces of parameters that make up a tensor of the optimizer's, as the engine has laid them out: tuples of
        the parameter, the first element, the number of elements, and the room that they take with their padding. None
        where the engine does not say."""
        return None

    def hint(self, parameters, fragment):
        """The place in the model of a tensor of the optimizer's, with the parameters behind it, for `Placement.locate`;
        None where it is not known. `parameters` are the model's by number."""
        pieces = self.pieces(fragment)
        if pieces:
            numbers = [self.index[id(parameter)] for parameter, *_ in pieces]
            return numbers[0], pieces[0][1], numbers[1:]
        for number, parameter in parameters.items():
            if parameter is fragment:
                return (number, shard_start(fragment), []) if hasattr(fragment, "to_local") else (number, 0, None)
        return None

    def parameters(self, model):
        """The content of every parameter of a model, in its order: tensors of the whole shape."""
        return [own_part(parameter.detach()) for parameter in model.parameters()]

    def gathers_for_forward(self):
        """True if the parameters that forward uses are gathered for it, so that they may differ from those that
        `parameters` gives."""
        return False

    def has_reduced(self):
        """True if the last backward has reduced gradients over the ranks; None where that is not seen."""
        return None

    def gradients(self):
        """The sum of this rank's gradients so far, by the numbers of the parameters that have one. None where the rank
        has no whole gradients."""
        leaves = [it for holder in self.objects for it in self.leaves(holder) if id(it) in self.index]
        if any(hasattr(leaf, "to_local") for leaf in leaves):
            return None
        held = ((self.index[id(it)], dense(it.grad)) for it in leaves)
        return {number: gradient for number, gradient in held if gradient is not None}

    def unscaled(self, gradient):
        """A part of a gradient without the loss scale."""
        return gradient

    def reduced(self):
        """The gradients that a step of the optimizer finds, as in `gradients`. None where a rank has its own part of
        them alone."""
        return self.gradients()

    def scaling(self):
        """Loss scale of the last step, a float, and whether it overflowed; None without a scale."""
        return None

    def fired(self):
        """Numbers of times that a parameter's gradient hook fired since the last call, and of gradients that autograd
        delivered to it, as pairs by the numbers of the parameters that the engine trains. None where hooks are not
        observed."""
        return None

    def not_observed(self, what, why):
        """Says that something cannot be seen in this release of the engine."""
        if self.emit is not None:
            self.emit("not-observed", what=what, why=why)

    def guarded(self, see, *args, **kwargs):
        """Calls `see`; what goes wrong in it is told, and must not become the engine's."""
        try:
            see(*args, **kwargs)
        except Exception as error:
            name = traceback.extract_tb(error.__traceback__)[-1].name
            if name not in self.failed:
                self.failed.add(name)
                self.not_observed("%s: %s" % (self.engine, name), "%s: %s" % (type(error).__name__, error))

    def flushed(self, reason, elements, capacity, params):
        """Says that a bucket is about to be reduced, with the numbers of its parameters."""
        at = dict(step=self.step, microbatch=self.microbatch, flush=self.flushes)
        self.flushes += 1
        self.emit("bucket-flushed", reason=reason, elements=elements, capacity=capacity, params=params, **at)

    def wrap(self, holder, name, before=None, after=None):
        """Has `before` and `after` called around a method of an object, with its arguments."""
        method, is_own = getattr(holder, name), name in vars(holder)

        @functools.wraps(method)
        def wrapped(*args, **kwargs):
            if before is not None:
                self.guarded(before, *args, **kwargs)
            try:
                return method(*args, **kwargs)
            finally:
                if after is not None:
                    self.guarded(after, *args, **kwargs)

        def unwrap():
            # Somebody else may have put something around it.
            if vars(holder).get(name) is wrapped:
                setattr(holder, name, method) if is_own else delattr(holder, name)

        setattr(holder, name, wrapped)
        self.undo.append(unwrap)
