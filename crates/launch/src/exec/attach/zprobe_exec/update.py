"""The update: what the optimizers of this rank are set to, when they step, and what becomes of the parameters."""

import math
import sys

import torch

from zprobe_exec import fragments, objects
from zprobe_exec.rounding import Rounding
from zprobe_exec.undone import Undone
from zprobe_rank.tensors import flat

# Settings of an optimizer's groups that are told.
SETTINGS = ("lr", "initial_lr", "betas", "eps", "weight_decay", "momentum")

# Elements of each tensor that are compared.
SEEN = 64

# Tensors of each optimizer whose state is looked at.
MOST_STATES = 8

# Units in the last place by which a copy in another dtype may differ: it may be rounded by chance.
ROUNDING = 2


class Update:
    """What this rank sees of its updates."""

    def __init__(self, training):
        self.training, self.rounding, self.undone = training, Rounding(training), Undone()
        self.numbers, self.kept = {}, []  # Numbers of the optimizers by identity; the optimizers, kept alive.
        self.backwards = {}  # Number of backwards before the last step with a tensor, by its identity.
        self.marks = {}  # Sequence number of autograd at the last step with a tensor, by its identity.
        self.first = []  # Segments of which an optimizer began with another copy than the first forward.

    def before_step(self, optimizer, tensors, factor):
        """An optimizer is about to step with the gradients of some tensors, all of which were multiplied with
        `factor` in the first step; None where that is not known."""
        number = self.numbers.setdefault(id(optimizer), len(self.numbers))
        if number == len(self.kept):
            self.kept.append(optimizer)
            self.training.softly("settings of optimizers", self.training.remarks.see_groups, optimizer)
        # An optimizer that hands its step on to another one has stepped once.
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
        """True if no backward came since the last step with these tensors, and they have gradients still."""
        total = self.training.backwards
        held = [it for it in tensors if fragments.gradient(it) is not None]
        again = bool(held) and all(self.backwards.get(id(it)) == total for it in held)
        self.backwards.update((id(it), total) for it in held)
        return again and any(bool(fragments.gradient(it).any()) for it in held)

    def has_stepped(self, tensor):
        """True if an optimizer has stepped with this tensor since the last backward; None if none ever has."""
        backwards = self.backwards.get(id(tensor))
        return None if backwards is None else backwards == self.training.backwards

    def after_step(self, optimizer):
        """An optimizer has stepped."""
        self.rounding.after_step(optimizer, self.numbers[id(optimizer)])
        self.undone.after_step(optimizer)
        with torch.enable_grad():
            mark = torch.zeros((), requires_grad=True).clone().grad_fn._sequence_nr()
        for group in optimizer.param_groups:
            for it in group["params"]:
                self.marks[id(it)] = mark

    def see_node(self, node):
        """True if a node that reads a parameter was made before the parameter's last update."""
        for behind, _ in node.next_functions:
            mark = self.marks.get(id(getattr(behind, "variable", None)))
            if mark is not None and node._sequence_nr() < mark:
                return behind.variable
        return None

    # Parameters.

    def digest(self, step):
        """Emits a number for each parameter that replicas have in common."""
        self.emit_digests(step, self.training.digests())

    def emit_digests(self, step, found):
        """Emits numbers of parameters, and of their shards, by name."""
        told = [found.get(name, (None, 0)) for name in self.training.indices]
        digests, shards = [digest for digest, _ in told], [shard for _, shard in told]
        self.training.channel.emit("parameters-digested", step=step, digests=digests, shards=shards)

    def see_first(self, found):
        """An optimizer is about to step for the first time, with these fragments."""
        self.first += self._differing(found, lambda name: name)

    def first_stale(self):
        """Parameters of which optimizers began with another copy than the first forward, as `stale` has them."""
        indices = self.training.indices
        return [(indices[name], elements, first) for name, elements, first in self.first if name in indices]

    def stale(self):
        """Parameters whose copy in the optimizer is not what forward has used, or is not what its step left, as
        (index, elements, first)."""
        order = list(self.training.indices)
        held = self.training.held
        differing = self._differing(held.all, lambda index: None if index is None else order[index])
        undone = [held.of[id(it)] for it in self.undone.tensors() if id(it) in held.of]
        segments = [segment for fragment in undone for segment in fragment.segments if segment["param"] is not None]
        return differing + [(it["param"], it["len"], it["offset"]) for it in segments]

    def _differing(self, held_by, name_of):
        """Segments of fragments that are not what forward has used, as (parameter, elements, first)."""
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
    """The first element of a segment that is not what forward has used; None if there is none, or if the parameter
    cannot be read."""
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
    """The settings of a group, each as a list of numbers."""
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
    """The settings that a trainer was asked for, where it made this optimizer; empty if none did."""
    for it in objects.named("DeepSpeedEngine"):
        if getattr(it, "client_optimizer", True) is None and getattr(it, "basic_optimizer", None) is optimizer:
            return _settings(it.optimizer_params() or {})
    trainers = sys.modules.get("transformers.trainer")
    for it in objects.of(trainers.Trainer) if trainers is not None else []:
        if "adamw" in str(it.args.optim).lower():
            made = getattr(it.optimizer, "optimizer", it.optimizer)
            if made is optimizer:
                return _settings(_beside_defaults(it.args))
    return {}


def _beside_defaults(args):
    """Settings in the arguments of Hugging Face's Trainer that are not their defaults: a script may make its optimizer
    itself and leave the others alone."""
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
    """The least and the largest number of steps that an optimizer says it has taken, and true if it has nothing
    from any: None and true where it has no state."""
    states = list(optimizer.state.values())[:MOST_STATES]
    counters = [float(state["step"]) for state in states if isinstance(state, dict) and "step" in state]
    averages = [it for state in states if isinstance(state, dict) for it in [state.get("exp_avg")] if it is not None]
    fresh = not any(bool(flat(it).any()) for it in averages)
    return [min(counters), max(counters)] if counters else None, fresh
