"""Observes an engine between a backward and the optimizer, in zprobe's own scripts and in the scripts of users."""

import functools
import math
import traceback

from zprobe_rank.tensors import dense, own_part, shard_runs


class BaseEyes:
    """Observes the objects of an engine and wraps their methods. `BaseEyes` never change the engine's results, and
    report their own errors without raising them into the engine.

    `BaseEyes` suit an engine that leaves gradients where autograd accumulates them. Each engine derives its own class
    `Eyes` from `BaseEyes`, and overrides the methods that do not apply.

    Parameters are identified by numbers. Gradients are flat tensors of whole parameters, in the dtype in which the
    engine adds them up. They are not divided by the number of ranks, and include the loss scale.
    """

    #: The name of the engine, as in the specification of a run; `None` without a special engine.
    engine = None

    #: The name of the class of the engine's objects, such as `DeepSpeedEngine`.
    kind = None

    #: The largest number of engine objects in a process that these eyes can observe together.
    most = math.inf

    def __init__(self, objects):
        """`objects` are the instances of the class `kind` that train in this process, at least one."""
        self.objects = objects
        #: torch's `GradScaler`, if the script scales its loss with one.
        self.scaler = None
        self.scale = None  # The loss scale of the present microbatch; `None` without a loss scale.
        #: Called right after the reduction at a gradient accumulation boundary, if the eyes can see the reduction.
        self.on_reduced = lambda: None
        self.index = {}  # The number of a parameter, by the `id` of each tensor that stands for the parameter.
        self.step, self.microbatch, self.flushes = None, None, 0
        self.emit = None
        self.undo = []
        self.failed = set()  # Names of the observing functions that have raised an error.

    def follow_scale(self, scaler):
        """Reads the loss scale of torch's `GradScaler` from now on, if it is given and enabled."""
        self.scaler = scaler if scaler is not None and scaler.is_enabled() else None

    @staticmethod
    def leaves(it):
        """The tensors of an engine object into which autograd accumulates gradients."""
        return it.parameters()

    def arm(self):
        """Begins to follow when the engine runs a forward or a backward; called before parameters have numbers."""

    def open(self, index, emit):
        """Begins to observe the engine. `index` has the number of a parameter, by the `id` of each tensor that stands
        for the parameter; `emit`, a function of a type and fields, receives the events."""
        self.index, self.emit = index, emit

    def close(self):
        """Removes all hooks and wrappers from the engine."""
        while self.undo:
            self.guarded(self.undo.pop())

    def begin(self, step, microbatch):
        """Called when a microbatch begins."""
        if step != self.step:
            self.flushes = 0
        if self.scaler is not None:
            self.scale = self.scaler.get_scale()
        self.step, self.microbatch = step, microbatch

    def when_over(self, look):
        """Calls `look` once the engine has finished its work for the backward that autograd has just ended."""
        look()

    def describe(self):
        """The name of the class that wraps the inner optimizer, and a dict of facts about the engine, both as texts."""
        return type(self.objects[0]).__name__, {}

    def describe_afterwards(self):
        """A dict of facts, as texts, that are available only after the training steps. These facts replace the facts
        of `describe` with the same names."""
        return {}

    def graph_index(self):
        """The number of each parameter, by the `id` of the tensor into which autograd accumulates its gradient."""
        return self.index

    def pieces(self, fragment):
        """The pieces of parameters that make up a tensor of the optimizer, as the engine has laid them out; `None` if
        the layout is unknown. Each piece is a tuple of the parameter, the first element, the number of elements, and
        the number of elements with padding."""
        return None

    def hint(self, parameters, fragment):
        """The hint for `Placement.locate` about a tensor of the optimizer: a parameter, its runs of elements in the
        tensor or the first of them, and the parameters that follow. `None` if the place is unknown. `parameters` has
        the model's parameters by number."""
        pieces = self.pieces(fragment)
        if pieces:
            numbers = [self.index[id(parameter)] for parameter, *_ in pieces]
            return numbers[0], [pieces[0][1:3]], numbers[1:]
        for number, parameter in parameters.items():
            if parameter is fragment:
                return (number, shard_runs(fragment), []) if hasattr(fragment, "to_local") else (number, [], None)
        return None

    def parameters(self, model):
        """The content of every parameter in the order of the model: tensors of the parameters' whole shapes."""
        return [own_part(parameter.detach()) for parameter in model.parameters()]

    def is_sharded(self, model):
        """True if a rank has only the gradients of its own shards right before the step."""
        return any(hasattr(parameter, "to_local") for parameter in model.parameters())

    def gathers_for_forward(self):
        """True if the engine gathers parameters for each forward, so that the gathered values may differ from the
        result of `parameters`."""
        return False

    def has_reduced(self):
        """True if the last backward has reduced gradients over the ranks; `None` if the reduction cannot be observed.
        """
        return None

    def gradients(self):
        """The sums of this rank's gradients so far, by the number of the parameter; parameters without a gradient are
        left out. `None` if the rank does not hold whole gradients."""
        leaves = [it for holder in self.objects for it in self.leaves(holder) if id(it) in self.index]
        if any(hasattr(leaf, "to_local") for leaf in leaves):
            return None
        held = ((self.index[id(it)], dense(it.grad)) for it in leaves)
        return {number: gradient for number, gradient in held if gradient is not None}

    def unscaled(self, gradient):
        """A part of a gradient, divided by the loss scale. The division is exact, because loss scales are powers of two."""
        return gradient if self.scale is None else gradient.float() / self.scale

    def reduced(self):
        """The reduced gradients right before the optimizer's step, in the form of `gradients`. `None` if a rank holds
        only its own part of the gradients."""
        return self.gradients()

    def scaling(self, has_stepped):
        """The loss scale of the last step as a float, and true if that step overflowed; `None` without a loss scale.
        `has_stepped` is true if the inner optimizer has stepped, which `GradScaler` prevents after an overflow."""
        return None if self.scaler is None else (self.scale, not has_stepped)

    def fragments(self):
        """The tensors on which the optimizer steps, in the order of its steps, if its parameter groups hold them only
        during the step."""
        return []

    def numbers(self):
        """The numbers of the engine, by name, on which later steps depend and that a checkpoint has to keep."""
        return {} if self.scaler is None else {"loss scale": self.scaler.get_scale()}

    def fired(self):
        """For each number of a trained parameter a pair of counts since the last call: the firings of the parameter's
        gradient hook, and the gradients that autograd delivered. `None` if hooks are not observed."""
        return None

    def not_observed(self, what, why):
        """Emits that `what` cannot be observed in this release of the engine, with the reason."""
        if self.emit is not None:
            self.emit("not-observed", what=what, why=why)

    def guarded(self, see, *args, **kwargs):
        """Calls `see`, and reports its error instead of raising the error into the engine."""
        try:
            see(*args, **kwargs)
        except Exception as error:
            name = traceback.extract_tb(error.__traceback__)[-1].name
            if name not in self.failed:
                self.failed.add(name)
                self.not_observed("%s: %s" % (self.engine, name), type(error).__name__)

    def flushed(self, reason, elements, capacity, params):
        """Emits that a bucket is about to be reduced. `params` has the numbers of the bucket's parameters."""
        at = dict(step=self.step, microbatch=self.microbatch, flush=self.flushes)
        self.flushes += 1
        self.emit("bucket-flushed", reason=reason, elements=elements, capacity=capacity, params=params, **at)

    def wrap(self, holder, name, before=None, after=None):
        """Wraps a method of an object: `before` and `after` are called around the method, with the same arguments."""
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
            # The method stays wrapped if other code has wrapped it again since.
            if vars(holder).get(name) is wrapped:
                setattr(holder, name, method) if is_own else delattr(holder, name)

        setattr(holder, name, wrapped)
        self.undo.append(unwrap)
