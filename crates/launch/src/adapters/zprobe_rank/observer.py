"""Observes an engine while its script trains, and emits the observations as events."""

import functools

import torch
import torch.distributed as dist

from zprobe_rank import checkpoint, graph, model
from zprobe_rank.channel import DTYPES, finite
from zprobe_rank.forward import ForwardWatch, differences
from zprobe_rank.optimizer_tap import OptimizerTap
from zprobe_rank.sampler import Pieces, ends
from zprobe_rank.tensors import flat


class Observer:
    """Emits events about everything that can be observed of an engine, or only about the parameters after each step."""

    def __init__(self, run, sampler, optimizer, loss_factor, accumulates):
        self.channel, self.probe, self.model, self.spec = run.channel, run.probe, run.model, run.spec
        self.run, self.sampler, self.optimizer = run, sampler, optimizer
        self.loss_factor, self.accumulates = loss_factor, accumulates
        held = zip(self.probe.held, self.model.parameters())
        self.parameters_held = dict(held)
        self.index = {id(parameter): number for number, parameter in self.parameters_held.items()}
        self.sizes = {segment["param"]: segment["len"] for segment in run.segments()}
        self.eyes = self.tap = self.forward = self.values = None
        self.at = {}

    def open(self, kind, objects, wrapper, scaler, facts):
        """Begins to observe the engine's `objects` with the class `kind` (`Eyes`), and emits a description of the
        engine."""
        self.eyes = kind(objects)
        self.eyes.follow_scale(scaler)
        described, told = self.eyes.describe()
        inner = type(self.optimizer).__name__
        self.channel.emit("optimizer-chosen", **{"class": wrapper or described, "inner": inner})
        self.channel.emit("engine-described", facts=dict(told, **facts))
        self._arm()
        if self.tap is not None:
            self.tap.activate()

    def successor(self, kind, objects, optimizer, scaler):
        """The observer of a new engine that goes on from a checkpoint of this observer's engine. `loaded` has to be
        called once the new engine has loaded the checkpoint."""
        self.eyes.close()
        new = Observer(self.run, self.sampler, optimizer, self.loss_factor, self.accumulates)
        new.eyes = kind(objects)
        new.eyes.follow_scale(scaler)
        new._arm()
        if new.tap is not None:
            new.tap.follow(self.tap)
        return new

    def training_state(self):
        """A copy of the state that a checkpoint has to keep, in the form of the module `checkpoint`."""
        whole = zip(([segment] for segment in self.run.segments()), self.eyes.parameters(self.model))
        fragments = [] if self.tap is None else list(zip(self.tap.places, self.tap.fragments))
        masters = [part for part in fragments if id(part[1]) not in self.index]
        return checkpoint.training_state(list(whole), masters, fragments, self.optimizer, self.eyes.numbers())

    def loaded(self, step, saved):
        """Compares the state with the state `saved` before the checkpoint, and observes the engine from now on."""
        if self.tap is not None:
            self.tap.activate(self.eyes.fragments())
        compared = checkpoint.comparison(saved, self.training_state(), DTYPES[self.spec["dtype"]])
        self.channel.emit("checkpoint-loaded", step=step, states=compared)
        self._keep(self.eyes.parameters(self.model))

    def _arm(self):
        """Begins to watch the engine's buffers, unless only the outcome is observed."""
        if self.run.is_full:
            self.eyes.on_reduced = self._reduced
            self.eyes.arm()
            self.eyes.open(self.index, self.channel.emit)
            hint = functools.partial(self.eyes.hint, self.parameters_held)
            self.tap = OptimizerTap(self.optimizer, self.run.placement, hint, self.sampler, self.channel)
            if self.eyes.gathers_for_forward():
                self._watch_forward()

    def gathered_ends(self):
        """The places at which the optimizers of all ranks cut parameters: the begins and ends of their parts."""
        partitions = [None] * self.spec["world_size"]
        dist.all_gather_object(partitions, self.tap.segments, group=self.run.group)
        return ends(partitions)

    def begin(self, step, microbatch):
        """Called when a microbatch begins."""
        if self.tap is not None:
            self.eyes.begin(step, microbatch)

    def before_backward(self, step, microbatch, loss, data):
        """Records the loss and its autograd graph, and for the dense model also the local gradient."""
        if self.tap is None:
            return
        at = self.at = dict(step=step, microbatch=microbatch)
        self.tap.microbatch = microbatch
        self.channel.later(lambda: self.channel.emit("loss", value=finite(loss.item()), **at), loss)
        if self.forward is not None:
            used = functools.partial(self._used, "forward-used", self.forward.take(), at)
            self.channel.later(used, loss)
        nodes, reached = graph.walk(loss, self.eyes.graph_index())
        self.channel.emit("graph-walked", accumulate_grad_nodes=nodes, params=reached, **at)
        if isinstance(self.probe, model.DenseProbe):
            self._record("local-gradient", "full", self.probe.local_gradient(self.values, data), **at)

    def after_backward(self, step, microbatch, ends_microbatch):
        """Records the firings of hooks and the accumulated gradients, also after a failed backward."""
        if self.tap is None:
            return
        at, counts = dict(step=step, microbatch=microbatch), self.eyes.fired()
        if counts is not None:
            pairs = [counts.get(number, (0, 0)) for number in self.parameters_held]
            fired, arrived = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
            self.channel.emit("hooks-fired", fired=fired, arrived=arrived, **at)
        if self.forward is not None:
            compared = self.forward.take_backward()
            if compared:
                used = functools.partial(self._used, "backward-used", compared, at)
                self.channel.later(used, self.values[0])
        is_boundary = microbatch + 1 == self.spec["gradient_accumulation_steps"]
        # A gradient that was reduced too early is recorded, too, and shows as a wrong accumulator.
        if ends_microbatch and not is_boundary and self.accumulates:
            # The division is exact: `loss_factor` is a power of two.
            finish = lambda flat: self.eyes.unscaled(flat) / self.loss_factor
            self._record_gradients("accumulator", self.eyes.gradients(), finish, **at)

    def before_step(self, step, microbatch):
        """Records the gradient buffers right before the optimizer's step."""
        if self.tap is None:
            return
        self.tap.microbatch = microbatch
        at = dict(step=step, microbatch=microbatch)
        if self.eyes.is_sharded(self.model):
            pieces = [gradient_of(fragment) for fragment in self.tap.fragments]
            self._record("before-step", "partition", Pieces(pieces, self.eyes.unscaled), **at)
        else:
            self._record_gradients("before-step", self.eyes.reduced(), self.eyes.unscaled, **at)

    def failed_step(self, step):
        """Records the gradients that the optimizer has consumed, if any, after the engine's step failed."""
        if self.tap is not None:
            self.tap.record(step)

    def after_step(self, step, update):
        """Records the consumed gradients, the loss scale, the gradient norm and the parameters after a step."""
        if self.tap is not None:
            has_stepped = bool(self.tap.called)
            self.tap.record(step)
            scaling = self.eyes.scaling(has_stepped)
            if scaling is not None:
                scale, overflow = scaling
                self.channel.emit("loss-scaled", step=step, scale=scale, overflow=overflow)
            if update.norm is not None:
                norm, limit = finite(float(update.norm)), float(update.limit)
                self.channel.emit("gradient-norm", step=step, norm=norm, limit=limit)
        self.parameters(step)

    def parameters(self, step):
        """Records the parameters of this rank after `step`; `None` stands for the time before the first step."""
        parameters = self.eyes.parameters(self.model)
        self._keep(parameters)
        self._record("parameters", "full", Pieces(parameters), step=step)

    def _keep(self, parameters):
        """Keeps copies of the parameters for the comparisons in the next step."""
        if isinstance(self.probe, model.DenseProbe) or self.forward is not None:
            self.values = [parameter.clone() for parameter in parameters]
        if self.forward is not None:
            self.forward.left = self.values

    def describe_afterwards(self):
        """Emits the facts about the engine that are available only after the training steps."""
        facts = self.eyes.describe_afterwards()
        if facts:
            self.channel.emit("engine-described", facts=facts)

    def _watch_forward(self):
        if self.sampler.active:
            self.channel.emit("not-observed", what="parameters that forward uses", why="large models are only sampled")
        else:
            nodes = [module for module in self.model.modules() if isinstance(module, model.Node)]
            self.forward = ForwardWatch(self.run.places, nodes)

    def _used(self, event, compared, at):
        differing = [dict(it, param=self.probe.held[it["param"]]) for it in differences(compared)]
        # A trace has no events for backwards in which nothing differs.
        if differing or event == "forward-used":
            self.channel.emit(event, differing=differing, **at)

    def _reduced(self):
        self._record_gradients("reduced", self.eyes.gradients(), self.eyes.unscaled, **self.at)

    def _record_gradients(self, point, gradients, finish, **at):
        """Records whole gradients, which are given by parameter number; a missing gradient is recorded as zeros.
        Records no buffer if `gradients` is `None`."""
        if gradients is not None:
            pieces = [gradients[number] if number in gradients else self._zeros(number) for number in self.sizes]
            self._record(point, "full", Pieces(pieces, finish), **at)

    def _zeros(self, number):
        parameter = self.parameters_held[number]
        return torch.zeros(1, dtype=parameter.dtype, device=parameter.device).expand(self.sizes[number])

    def _record(self, point, layout, pieces, **at):
        self.sampler.record(self.channel, point, layout, pieces, **at)


def gradient_of(parameter):
    """The flat gradient of this rank's shard of a parameter; zeros if the parameter has no gradient."""
    return flat(parameter.grad if parameter.grad is not None else torch.zeros_like(parameter))
