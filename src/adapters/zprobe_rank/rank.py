"""One rank, from joining the others to its last event."""

import functools
import importlib
import json
import os
import platform
import traceback

import torch
import torch.distributed as dist

from zprobe_rank import collectives, device, graph, model, rendezvous
from zprobe_rank.channel import DTYPES, Channel, finite
from zprobe_rank.forward import ForwardWatch, differences
from zprobe_rank.host import load
from zprobe_rank.optimizer_tap import OptimizerTap
from zprobe_rank.placement import Placement
from zprobe_rank.sampler import Pieces, Sampler, ends
from zprobe_rank.selection import Selection
from zprobe_rank.step import take_step
from zprobe_rank.workload import Workload


def main(spec, records, listener):
    """Runs the rank whose records these are, and returns the exit code of its process."""
    channel = Channel(records.run, records.rank, records.fd, records.seq)
    try:
        run(spec, channel.rank, channel, listener)
        return 0
    except BaseException as error:
        settle_after_failure(channel)
        # The error goes to the trace as an event, and to the log through standard error.
        channel.emit("failed", message=account(error))
        traceback.print_exc()
        return 1


def settle_after_failure(channel):
    """Emits what was recorded before a failure; a device that has failed may not give it."""
    try:
        channel.settle()
    except Exception:
        traceback.print_exc()


def run(spec, rank, channel, listener):
    """Runs all steps of one rank."""
    # One thread per rank: ranks share the machine, and sums do not depend on a thread count.
    torch.set_num_threads(1)
    if spec["poison_memory"]:
        poison_memory(channel)
    engine_class = load(spec["engine"], spec["device"], channel.importing).Engine
    own_device = device.take()
    channel.emit("rank-ready", versions=versions(engine_class), device=device.name(own_device))
    group = rendezvous.join(spec, rank, listener)
    # Before the engine's collectives are watched: the probe's own are not among them.
    all_gather = functools.partial(dist.all_gather, group=group)

    params = json.loads(os.environ["ZPROBE_PARAMS"])
    dtype = engine_class.model_dtype or DTYPES[spec["dtype"]]
    workload = Workload(json.loads(os.environ["ZPROBE_WORKLOAD"]))
    probe = model.build(spec, params, workload, rank, dtype, own_device)
    parameters = dict(zip(probe.held, probe.model.parameters()))
    channel.emit("model", params=[described(param) for param in params])
    segments = [dict(param=i, offset=0, len=p.numel()) for i, p in parameters.items()]
    channel.emit("layout", layout="full", segments=segments)
    trainable = {i: p for i, p in parameters.items() if p.requires_grad}
    placement = Placement(trainable, rank, spec["world_size"])
    if workload.starts_differently and rank > 0:
        for parameter in probe.model.parameters():
            parameter.data.zero_()
    make_optimizer = functools.partial(inner_optimizer, spec["optimizer"], spec["parameter_groups"])
    sampler = Sampler(spec["recording"]["sampled"], probe.code_length, spec["seed"])
    channel.selection = Selection(spec, rank)
    full = spec["observe"] == "full"
    if full:
        collectives.watch(channel)
    engine = engine_class(spec, workload, probe.model, make_optimizer, channel)
    engine.set_up()
    wrapper, facts = engine.describe()
    channel.emit("optimizer-chosen", **{"class": wrapper, "inner": type(engine.optimizer).__name__})
    channel.emit("engine-described", facts=facts)
    tap = None
    if full:
        engine.observe()
        if engine.schedules_microbatches:
            why = "one call of the engine takes them all forward and backward"
            channel.emit("not-observed", what="each microbatch by itself: accumulators, graphs, hooks", why=why)
        hint = functools.partial(hint_in_plan, engine, probe.held)
        tap = OptimizerTap(engine.optimizer, placement, hint, sampler, channel)
        tap.activate()
    # Samples of the whole are cut at the places at which the optimizers divide the model.
    cuts = gathered_ends(spec, tap, group) if sampler.active and full else None
    sampler.announce(channel, "full", segments, cuts)
    observer = Observer(spec, channel, engine, probe, tap, sampler)
    observer.parameters(None)
    for step in range(spec["steps"]):
        take_step(spec, step, engine, probe, observer, channel)
        channel.emit("phase-entered", step=step, microbatch=spec["gradient_accumulation_steps"] - 1, phase="digests")
        # Where only the outcome is observed, nobody waits for a device between the steps.
        if full or own_device.type == "cpu" or step + 1 == spec["steps"]:
            channel.settle()
            exchange_digests(spec, step, channel, all_gather)
    facts = engine.describe_afterwards()
    if facts:
        channel.emit("engine-described", facts=facts)
    dist.barrier(group=group)
    channel.emit("finished")


def poison_memory(channel):
    """Makes torch fill the memory that it hands out with NaN, or the largest integer."""
    try:
        deterministic = importlib.import_module("torch.utils.deterministic")
    except ImportError:
        why = "torch %s cannot fill it; torch 2.2 can" % torch.__version__
        channel.emit("not-observed", what="memory that is read before it is written", why=why)
        return
    # torch fills memory only where it is asked for deterministic algorithms too.
    torch.use_deterministic_algorithms(True, warn_only=True)
    deterministic.fill_uninitialized_memory = True


class Observer:
    """Emits events about everything that can be observed of the engine."""

    def __init__(self, spec, channel, engine, probe, tap, sampler):
        self.spec, self.channel, self.engine, self.probe, self.tap = spec, channel, engine, probe, tap
        self.sampler = sampler
        self.at = {}
        if tap is not None and engine.eyes is not None:
            engine.eyes.on_reduced = lambda: self._record("reduced", "full", engine.summed(), **self.at)
        self.held, self.forward = None, None
        if tap is not None and engine.gathers_for_forward():
            self._watch_forward()

    def _watch_forward(self):
        if self.sampler.active:
            self.channel.emit("not-observed", what="parameters that forward uses", why="the model is large")
        else:
            self.forward = ForwardWatch(self.engine.model)

    def before_backward(self, step, microbatch, loss, data):
        """Records the loss, its graph, and for dense data the local gradient."""
        if self.tap is None:
            return
        at = self.at = dict(step=step, microbatch=microbatch)
        self.tap.microbatch = microbatch
        self.channel.later(lambda: self.channel.emit("loss", value=finite(loss.item()), **at), loss)
        held = self.probe.held
        if self.forward is not None:
            self.channel.later(functools.partial(self._forward_used, self.forward.take(), at), loss)
        indices = {tensor: held[index] for tensor, index in self.engine.graph_index().items()}
        nodes, reached = graph.walk(loss, indices)
        self.channel.emit("graph-walked", accumulate_grad_nodes=nodes, params=reached, **at)
        if isinstance(self.probe, model.DenseProbe):
            gradient = self.probe.local_gradient(self.held, data)
            self._record("local-gradient", "full", gradient, **at)

    def _forward_used(self, compared, at):
        differing = [dict(it, param=self.probe.held[it["param"]]) for it in differences(compared)]
        self.channel.emit("forward-used", differing=differing, **at)

    def after_backward(self, step, microbatch, last):
        """Records hooks and accumulators; also when backward failed."""
        if self.tap is None:
            return
        at = dict(step=step, microbatch=microbatch)
        hooks = self.engine.fired()
        if hooks is not None:
            fired, arrived = hooks
            self.channel.emit("hooks-fired", fired=fired, arrived=arrived, **at)
        if not last:
            return
        accumulated = self.engine.accumulated(microbatch)
        if accumulated is not None:
            self._record("accumulator", "full", accumulated, **at)

    def before_step(self, step, microbatch):
        """Records gradient buffers as the step finds them."""
        gradient = None
        if self.tap is not None:
            self.tap.microbatch = microbatch
            gradient = self.engine.before_step()
        if gradient is not None:
            layout = self.engine.before_step_layout
            self._record("before-step", layout, gradient, step=step, microbatch=microbatch)

    def failed_step(self, step):
        """Records the gradients that the optimizer consumed before the engine's step failed, if any."""
        if self.tap is not None:
            self.tap.record(step)

    def after_step(self, step):
        """Records the gradients that the optimizer consumed, scale and norm, and the parameters."""
        if self.tap is not None:
            self.tap.record(step)
            scaling = self.engine.scaling()
            if scaling is not None:
                scale, overflow = scaling
                self.channel.emit("loss-scaled", step=step, scale=scale, overflow=overflow)
            norm = self.engine.gradient_norm()
            if norm is not None:
                norm, limit = norm
                self.channel.emit("gradient-norm", step=step, norm=finite(norm), limit=limit)
        self.parameters(step)

    def parameters(self, step):
        """Records the model's parameters on this rank."""
        parameters = self.engine.parameters()
        if isinstance(self.probe, model.DenseProbe) or self.forward is not None:
            self.held = [parameter.clone() for parameter in parameters]
        if self.forward is not None:
            self.forward.left = self.held
        self._record("parameters", "full", Pieces(parameters), step=step)

    def _record(self, point, layout, pieces, **at):
        self.sampler.record(self.channel, point, layout, pieces, **at)


def described(param):
    """A parameter of the plan, as the trace describes the model's."""
    return {key: param[key] for key in ("name", "shape", "trainable", "ranks") if key in param}


def hint_in_plan(engine, held, fragment):
    """The engine's hint at the place of a fragment, with the plan's numbers of parameters."""
    hint = engine.hint(fragment)
    if hint is None:
        return None
    index, offset, behind = hint
    return held[index], offset, behind if behind is None else [held[other] for other in behind]


def inner_optimizer(settings, groups, parameters):
    """torch's own optimizer, with the settings of the spec, for parameters in one group or in two: those that are
    usually decayed, and those of one dimension."""
    if groups == 2:
        parameters = list(parameters)
        decayed = [parameter for parameter in parameters if parameter.dim() > 1]
        others = [parameter for parameter in parameters if parameter.dim() <= 1]
        parameters = [dict(params=params) for params in (decayed, others) if params]
    settings = dict(settings)
    kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[settings.pop("type")]
    return kind(parameters, **settings)


def gathered_ends(spec, tap, group):
    """The places at which the parts of parameters held by the optimizers of all ranks begin and end."""
    partitions = [None] * spec["world_size"]
    dist.all_gather_object(partitions, tap.segments, group=group)
    return ends(partitions)


def exchange_digests(spec, step, channel, all_gather):
    """All-gathers the digests of everything recorded since the last exchange."""
    own = torch.tensor([channel.take_digest()], dtype=torch.int64)
    gathered = [torch.zeros_like(own) for _ in range(spec["world_size"])]
    all_gather(gathered, own)
    digests = ["%016x" % (digest.item() & (1 << 64) - 1) for digest in gathered]
    channel.emit("digests-gathered", step=step, digests=digests)


def versions(engine_class):
    """Versions of Python, torch and the engine's packages."""
    found = dict(python=platform.python_version(), torch=torch.__version__)
    for package in engine_class.packages:
        found[package] = importlib.import_module(package).__version__
    return found


def account(error):
    """The message of an error, and the innermost place of the engine that it comes from."""
    text = "%s: %s" % (type(error).__name__, error)
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if "site-packages" in frame.filename:
            place = frame.filename.split("site-packages" + os.sep, 1)[1]
            return "%s (%s:%d, in %s)" % (text, place, frame.lineno, frame.name)
    return text
