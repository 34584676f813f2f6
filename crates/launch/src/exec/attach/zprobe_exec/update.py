"""Watches updates: the settings of this rank's optimizers, their steps, and the parameters after the steps."""

import math
import sys

import torch

from zprobe_exec import fragments, objects
from zprobe_exec.rounding import Rounding
from zprobe_exec.undone import Undone
from zprobe_rank.tensors import flat

# The settings of an optimizer's groups that are reported.
SETTINGS = ("lr", "initial_lr", "betas", "eps", "weight_decay", "momentum")

# The number of elements of each tensor that are compared.
SEEN = 64

# The number of tensors of each optimizer whose state is read.
MOST_STATES = 8

# The names of an optimizer's averages of gradients, or of their squares: Adam, RMSprop and Adadelta, Adagrad.
AVERAGES = ("exp_avg", "square_avg", "sum")

# The units in the last place by which a copy in another dtype may differ: rounding may be stochastic.
ROUNDING = 2


class Update:
    """Watches the updates of this rank's parameters."""

    def __init__(self, training):
        self.training, self.rounding, self.undone = training, Rounding(training), Undone()
        self.numbers, self.kept = {}, []  # The number of each optimizer by its `id`; the optimizers, kept alive.
        self.backwards = {}  # The number of backwards before the last step with a tensor, by its `id`.
        self.marks = {}  # Autograd's sequence number at the last step with a tensor, by its `id`.
        self.first = []  # Segments that differed from the first forward's parameters before the first step.

    def before_step(self, optimizer, tensors, factor):
        """Called before an optimizer steps with the gradients of `tensors`. `factor` is the factor of all gradients in
        the first step, `None` if unknown."""
        number = self.numbers.setdefault(id(optimizer), len(self.numbers))
        if number == len(self.kept):
            self.kept.append(optimizer)
            self.training.softly("settings of optimizers", self.training.remarks.see_groups, optimizer)
        # If an optimizer calls the step of an inner optimizer, the two steps count as one.
        is_inner = len(self.training.stepping) > 1
        again = not is_inner and self._is_again(tensors)
        counter, fresh = _state(optimizer)
        self.training.channel.emit(
            "optimizer-stepped",
            step=self.training.step,
            optimizer=number,
            name=type(optimizer).__name__,
            again=again,
            groups=[_settings(group) for group in optimizer.param_groups],
            asked=_asked(optimizer),
            counter=counter,
            fresh=fresh,
            factor=factor,
        )
        self.rounding.before_step(optimizer)
        self.undone.before_step(optimizer)

    def _is_again(self, tensors):
        """True if an optimizer has stepped with these tensors since the last backward, and gradients are left."""
        total = self.training.backwards
        held = [it for it in tensors if fragments.gradient(it) is not None]
        again = bool(held) and all(self.backwards.get(id(it)) == total for it in held)
        self.backwards.update((id(it), total) for it in held)
        return again and any(bool(fragments.gradient(it).any()) for it in held)

    def has_stepped(self, tensor):
        """True if an optimizer has stepped with this tensor since the last backward; `None` if no optimizer has ever
        stepped with it."""
        backwards = self.backwards.get(id(tensor))
        return None if backwards is None else backwards == self.training.backwards

    def after_step(self, optimizer):
        """Called after an optimizer has stepped: checks the updates, and marks the point in autograd's sequence."""
        self.rounding.after_step(optimizer, self.numbers[id(optimizer)])
        self.undone.after_step(optimizer)
        with torch.enable_grad():
            mark = torch.zeros((), requires_grad=True).clone().grad_fn._sequence_nr()
        for group in optimizer.param_groups:
            for it in group["params"]:
                self.marks[id(it)] = mark

    def see_node(self, node):
        """The parameter that an autograd node reads, if the node was made before the parameter's last update; else
        `None`."""
        for behind, _ in node.next_functions:
            mark = self.marks.get(id(getattr(behind, "variable", None)))
            if mark is not None and node._sequence_nr() < mark:
                return behind.variable
        return None

    # Comparison of parameters with their replicas and copies.

    def digest(self, step):
        """Emits the digests of all parameters after `step`, which replicas must have in common."""
        self.emit_digests(step, self.training.digests())

    def emit_digests(self, step, found):
        """Emits the digests and shard numbers in `found`, which has them by the name of the parameter."""
        told = [found.get(name, (None, 0)) for name in self.training.indices]
        digests, shards = [digest for digest, _ in told], [shard for _, shard in told]
        self.training.channel.emit("parameters-digested", step=step, digests=digests, shards=shards)

    def see_first(self, found):
        """Called before the first step with the fragments `found`: remembers segments that differ from the parameters
        of the first forward."""
        self.first += self._differing(found, lambda name: name)

    def first_stale(self):
        """The parameters of which optimizers began with other values than the first forward, in the form of `stale`."""
        indices = self.training.indices
        return [(indices[name], elements, first) for name, elements, first in self.first if name in indices]

    def stale(self):
        """The parameters whose copy in an optimizer differs from the values that the forward has used, or whose update
        was taken back, as (index, number of elements, first element)."""
        order = list(self.training.indices)
        held = self.training.held
        differing = self._differing(held.all, lambda index: None if index is None else order[index])
        return differing + [(it["param"], it["len"], it["offset"]) for it in self._segments(self.undone.tensors())]

    def unmoved(self):
        """The indices of the parameters that an optimizer has left as they were."""
        return sorted({it["param"] for it in self._segments(self.undone.unmoved())})

    def _segments(self, tensors):
        """The segments of parameters in tensors of optimizers."""
        held = self.training.held.of
        found = [held[id(it)] for it in tensors if id(it) in held]
        return [segment for fragment in found for segment in fragment.segments if segment["param"] is not None]

    def _differing(self, held_by, name_of):
        """The segments of fragments that differ from the values that the forward has used, as (parameter, number of
        elements, first differing element)."""
        differing = []
        leaves = {name: leaf for name, leaf in self.training.leaves.hooked.values() if name is not None}
        for fragment in held_by:
            held, start = flat(fragment.tensor), 0
            for segment in fragment.segments:
                leaf = leaves.get(name_of(segment["param"]))
                if leaf is not None and leaf is not fragment.tensor:
                    size = self.training.sizes.get(name_of(segment["param"]))
                    first = _first_difference(leaf, held, start, segment, size)
                    if first is not None:
                        differing.append((segment["param"], segment["len"], first))
                start += segment["len"]
        return differing


def _first_difference(leaf, held, start, segment, size):
    """The first sampled element of a segment that differs from the value that the forward has used; `None` if no
    element differs, or if the parameter cannot be read."""
    used = flat(leaf)
    if used.numel() != size or fragments.is_freed(used) or fragments.is_freed(held) or not held.is_floating_point():
        return None
    stride = fragments.stride(segment["len"], SEEN)
    of_optimizer = held[start : start + segment["len"] : stride]
    of_forward = used[segment["offset"] : segment["offset"] + segment["len"] : stride]
    wanted = of_optimizer.to(of_forward.device, of_forward.dtype).double()
    slack = 0.0 if held.dtype == used.dtype else ROUNDING * torch.finfo(used.dtype).eps
    differs = (wanted - of_forward.double()).abs() > slack * wanted.abs()
    return segment["offset"] + int(differs.nonzero()[0]) * stride if bool(differs.any()) else None


def _settings(group):
    """The finite numeric settings of a parameter group, each as a list of numbers."""
    told = {}
    for name in SETTINGS:
        value = group.get(name)
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        try:
            numbers = [float(it) for it in values]
        except (TypeError, ValueError):
            continue
        if all(math.isfinite(it) for it in numbers):
            told[name] = numbers
    return told


def _asked(optimizer):
    """The settings that the script asked of a trainer, if the trainer made this optimizer; else empty."""
    for it in objects.named("DeepSpeedEngine"):
        if getattr(it, "client_optimizer", True) is None and getattr(it, "basic_optimizer", None) is optimizer:
            asked = _settings(it.optimizer_params() or {})
            if getattr(it, "lr_scheduler", None) is not None:
                # The schedulers of DeepSpeed do not write `initial_lr` into the groups.
                asked.pop("lr", None)
            return asked
    trainers = sys.modules.get("transformers.trainer")
    for it in objects.of(trainers.Trainer) if trainers is not None else []:
        if "adamw" in str(it.args.optim).lower():
            made = getattr(it.optimizer, "optimizer", it.optimizer)
            if made is optimizer:
                return _settings(_beside_defaults(it.args))
    return {}


def _beside_defaults(args):
    """The optimizer settings among the arguments of Hugging Face's Trainer that differ from the defaults. A script that
    makes its optimizer itself may leave the arguments at their defaults."""
    fields = type(args).__dataclass_fields__
    changed = {name for name in fields if getattr(args, name) != fields[name].default}
    asked = {}
    if changed & {"adam_beta1", "adam_beta2"}:
        asked["betas"] = [args.adam_beta1, args.adam_beta2]
    if "adam_epsilon" in changed:
        asked["eps"] = args.adam_epsilon
    if "learning_rate" in changed:
        asked["initial_lr"] = args.learning_rate
    return asked


def _state(optimizer):
    """The least and the largest step count in an optimizer's state, `None` without counts; and true if the state's
    averages of earlier gradients are 0, as before the first step."""
    states = [state for state in list(optimizer.state.values())[:MOST_STATES] if isinstance(state, dict)]
    counters = [float(state["step"]) for state in states if "step" in state]
    averages = [state[name] for state in states for name in AVERAGES if state.get(name) is not None]
    fresh = bool(averages) and not any(bool(flat(it).any()) for it in averages)
    return [min(counters), max(counters)] if counters else None, fresh
