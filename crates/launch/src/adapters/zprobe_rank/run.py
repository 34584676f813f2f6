"""The `Run` that an engine's script gets: the model, the data, and the moments at which the rank is observed."""

import contextlib
import functools
import json
import os
import shutil
import tempfile
import time

import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import ConstantLR

from zprobe_rank import collectives, model
from zprobe_rank.channel import DTYPES
from zprobe_rank.observer import Observer
from zprobe_rank.placement import Placement
from zprobe_rank.sampler import Sampler
from zprobe_rank.selection import Selection
from zprobe_rank.tensors import whole
from zprobe_rank.workload import Workload


class Run:
    """The argument of the function `train` in an engine's script.

    The script hands the model to the engine, calls `watch` with the engine's objects, and trains as a user would::

        def train(run):
            engine = Engine(run.build())
            optimizer = run.optimizer(run.trainable())
            run.watch(Eyes, [engine], optimizer)
            for _ in run.steps():
                for microbatch in run.microbatches():
                    for part in microbatch:
                        (part.loss(engine) / run.accumulation_steps).backward()
                with run.update():
                    optimizer.step()
                    optimizer.zero_grad()
    """

    def __init__(self, spec, rank, device, channel, group):
        """`spec` is the run's specification, decoded from JSON; `group` is zprobe's own process group over Gloo."""
        self.spec, self.rank, self.device, self.channel, self.group = spec, rank, device, channel, group
        channel.selection = Selection(spec, rank)
        self.accumulation_steps = spec["gradient_accumulation_steps"]
        self.params = json.loads(os.environ["ZPROBE_PARAMS"])
        self.workload = Workload(json.loads(os.environ["ZPROBE_WORKLOAD"]))
        self.is_full = spec["observe"] == "full"
        self.optimizer_settings = dict(spec["optimizer"])
        name = self.optimizer_settings.pop("type")
        self.optimizer_class = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}.get(name)
        self.probe = self.model = self.observer = None
        self.step, self.microbatch = 0, 0
        self.open_backward = None  # True during the last backward of a microbatch; `None` outside of a backward.
        self.clock = Stopwatch()
        # Bound before the collectives are watched, so that zprobe's own all-gathers are not recorded.
        self.all_gather = functools.partial(dist.all_gather, group=group)
        if self.is_full:
            collectives.watch(channel)

    def build(self, dtype=None):
        """Builds the synthetic model on the rank's device, in `dtype` or, if that is `None`, in the run's dtype. Each
        model after the first, which is built to load a checkpoint, starts from other values."""
        dtype = dtype or DTYPES[self.spec["dtype"]]
        is_first = self.probe is None
        self.probe = model.build(self.spec, self.params, self.workload, self.rank, dtype, self.device)
        self.model = self.probe.model
        numbers = {id(parameter): number for number, parameter in enumerate(self.model.parameters())}
        #: For each parameter of each module the module, the name, and the number of the parameter in the model's order.
        self.places = [
            (module, name, numbers[id(parameter)])
            for module in self.model.modules()
            for name, parameter in module.named_parameters(recurse=False)
        ]
        if is_first:
            self.channel.emit("model", params=[described(param) for param in self.params])
            held = zip(self.probe.held, self.model.parameters())
            trainable = {number: it for number, it in held if it.requires_grad}
            self.channel.emit("layout", layout="full", segments=self.segments())
            self.placement = Placement(trainable, self.rank, self.spec["world_size"])
        else:
            for parameter in self.model.parameters():
                parameter.data.neg_()
        if self.workload.starts_differently and self.rank > 0:
            for parameter in self.model.parameters():
                parameter.data.zero_()
        return self.model

    def trainable(self):
        """The parameters of the model that require a gradient."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def leaves_unused(self):
        """True if some microbatch leaves a parameter without a gradient; DDP needs to know that."""
        return self.workload.leaves_unused()

    def segments(self):
        """The segments of the layout `full`: all parameters that this rank holds, one after the other."""
        numbers = self.probe.held
        return [dict(param=number, offset=0, len=len(model.elements(self.params[number]))) for number in numbers]

    def optimizer(self, parameters):
        """torch's own optimizer with the settings of the run, for the given parameters or parameter groups."""
        return self.optimizer_class(self.groups(parameters), **self.optimizer_settings)

    def scheduler(self, optimizer):
        """torch's scheduler that lowers the learning rate of the first step with the shape `warm-up`, and leaves it as
        it is without the shape."""
        return ConstantLR(optimizer, model.first_share_of_lr(self.spec), total_iters=1)

    def scaler(self):
        """torch's `GradScaler` with the run's loss scale. Without a dynamic loss scale, the scaler changes nothing."""
        scale = self.spec["loss_scale"]
        is_dynamic = scale["type"] == "dynamic"
        kind = getattr(torch.amp, "GradScaler", None)
        if kind is None and is_dynamic:
            raise ImportError("torch %s has no GradScaler for every device; 2.3 has one" % torch.__version__)
        if kind is None:
            return torch.cuda.amp.GradScaler(enabled=False)
        initial = 2.0 ** scale["initial_power"] if is_dynamic else 1.0
        return kind(self.device.type, init_scale=initial, enabled=is_dynamic)

    def groups(self, parameters):
        """The parameters in the run's number of groups. Of two groups the first has the matrices, which usually get
        weight decay, and the second has the parameters of at most one dimension."""
        if self.spec["parameter_groups"] != 2:
            return parameters
        parameters = list(parameters)
        decayed = [parameter for parameter in parameters if parameter.dim() > 1]
        others = [parameter for parameter in parameters if parameter.dim() <= 1]
        return [dict(params=params) for params in (decayed, others) if params]

    def watch(self, eyes, objects, optimizer, loss_factor=1, accumulates=True, wrapper=None, scaler=None, **facts):
        """Begins to watch the engine; to be called after the engine has got the model and the optimizer.

        `eyes` is the engine's class `Eyes`, `objects` are the engine objects that `Eyes` observe, and `optimizer` is
        the inner optimizer. The script multiplies its loss by `loss_factor`, a power of two. `accumulates` is false if
        the script reduces the gradients of every microbatch. `wrapper` is the name of the class around the optimizer,
        `scaler` is the `GradScaler` that scales the loss, and `facts` are texts about the engine, where the eyes do not
        provide them.

        After `watch` is called again, zprobe observes the new engine in place of the engine of the last call.
        """
        if self.observer is not None:
            self.observer = self.observer.successor(eyes, objects, optimizer, scaler)
            return
        recording = self.spec["recording"]
        sampler = Sampler(recording["sampled"], self.probe.code_length, self.spec["seed"])
        self.observer = Observer(self, sampler, optimizer, loss_factor, accumulates)
        self.observer.open(eyes, objects, wrapper, scaler, facts)
        # Samples of the full buffers are cut at the places at which the optimizers partition the model.
        cuts = self.observer.gathered_ends() if sampler.active and self.is_full else None
        sampler.announce(self.channel, "full", self.segments(), cuts)
        self.observer.parameters(None)

    def steps(self):
        """Yields the numbers of the steps, and exchanges digests after each step."""
        last = self.spec["steps"] - 1
        for self.step in range(last + 1):
            self.clock = Stopwatch()
            yield self.step
            at = dict(step=self.step, microbatch=self.accumulation_steps - 1)
            self.channel.emit("phase-entered", phase="digests", **at)
            # If only the outcome is observed, the host does not wait for the device between steps.
            if self.is_full or self.device.type == "cpu" or self.step == last:
                self.channel.settle()
                self._exchange_digests()

    def _freeze(self):
        """Freezes the parameter that is frozen in every other step, or unfreezes it again, before a step."""
        if self.workload.frozen_alternating is not None:
            name = model.base_name(self.params[self.workload.frozen_alternating])
            self.model.get_parameter(name).requires_grad_(self.step % 2 == 1)

    def resumes(self):
        """True if the run saves a checkpoint before the present step, and goes on from this checkpoint."""
        return self.spec.get("resume_before") == self.step

    @contextlib.contextmanager
    def checkpoint(self):
        """A context in which the script saves a checkpoint, builds the model, the engine and the optimizer anew, calls
        `watch`, and loads the checkpoint. The context yields an empty folder that all ranks share."""
        with self.clock.stopped():
            saved = self.observer.training_state()
            folder = [tempfile.mkdtemp(prefix="zprobe-checkpoint-") if self.rank == 0 else None]
            dist.broadcast_object_list(folder, src=0, group=self.group)
            try:
                yield folder[0]
                dist.barrier(group=self.group)
            finally:
                if self.rank == 0:
                    shutil.rmtree(folder[0], ignore_errors=True)
            self.observer.loaded(self.step, saved)

    def microbatches(self):
        """Yields a `Microbatch` for each microbatch of the present step."""
        self._freeze()
        for self.microbatch in range(self.accumulation_steps):
            self.observer.begin(self.step, self.microbatch)
            yield Microbatch(self, self._parts())

    def batch(self):
        """The data of all microbatches of the present step, for an engine that takes them in one call: a list with the
        arguments of each forward."""
        if self.step == 0 and self.is_full:
            why = "one call of the engine runs the forward and the backward of all microbatches"
            self.channel.emit("not-observed", what="accumulators, graphs and hooks of each microbatch", why=why)
        data = []
        for self.microbatch in range(self.accumulation_steps):
            data += [part.forward for part in self._parts()]
        self.enter("backward")
        return data

    @contextlib.contextmanager
    def update(self):
        """A context for the optimizer's step at the gradient accumulation boundary; the context yields an `Update`. A
        script that calls the engine's step after every microbatch may enter the context each time."""
        self.end_backward()
        is_boundary, update = self.microbatch + 1 == self.accumulation_steps, Update(self.spec)
        if is_boundary:
            self.observer.before_step(self.step, self.microbatch)
            self.enter("optimizer-step")
        try:
            yield update
        except BaseException:
            self.observer.failed_step(self.step)
            raise
        if is_boundary:
            engine_ns = self.clock.elapsed_ns()
            self.observer.after_step(self.step, update)
            total_ns = self.clock.elapsed_ns()
            self.channel.emit("step-timed", step=self.step, engine_ns=engine_ns, total_ns=total_ns)

    def enter(self, phase):
        """Emits that a phase of the present microbatch begins."""
        self.channel.emit("phase-entered", step=self.step, microbatch=self.microbatch, phase=phase)

    def begin_backward(self, loss, data, is_last):
        """Called before the backward of a loss. `is_last` is true for the last backward of the microbatch."""
        self.observer.before_backward(self.step, self.microbatch, loss, data)
        self.enter("backward")
        self.open_backward = is_last

    def end_backward(self):
        """Called after the end of a backward, also if the backward has failed."""
        is_last, self.open_backward = self.open_backward, None
        if is_last is not None:
            self.observer.after_backward(self.step, self.microbatch, is_last)

    def _parts(self):
        with self.clock.stopped():
            # The data are made here, in the place of a data loader.
            return self.probe.parts(self.step, self.microbatch)

    def _exchange_digests(self):
        """All-gathers the ranks' digests of the buffers recorded since the last exchange, and emits them."""
        own = torch.tensor([self.channel.take_digest()], dtype=torch.int64)
        gathered = [torch.zeros_like(own) for _ in range(self.spec["world_size"])]
        self.all_gather(gathered, own)
        digests = ["%016x" % (digest.item() & (1 << 64) - 1) for digest in gathered]
        self.channel.emit("digests-gathered", step=self.step, digests=digests)


class Microbatch:
    """A microbatch. Each of its parts, usually only one, has a forward and a backward, one part after the other."""

    def __init__(self, run, parts):
        self.run, self.parts = run, parts
        #: True at the gradient accumulation boundary.
        self.is_last = run.microbatch + 1 == run.accumulation_steps

    def __iter__(self):
        for number, data in enumerate(self.parts):
            self.run.enter("forward")
            yield Part(self.run, data, number + 1 == len(self.parts), self.is_last)
            self.run.end_backward()


class Part:
    """One forward and one backward within a microbatch."""

    def __init__(self, run, data, ends_microbatch, is_boundary):
        self.run, self.data, self.ends_microbatch = run, data, ends_microbatch
        #: True for the last backward of the step.
        self.is_last = ends_microbatch and is_boundary

    def loss(self, forward):
        """The loss, a scalar that is not divided by the accumulation steps; `forward` is the engine's forward. For each
        use of a parameter the coded model gets an fp32 tensor of the parameter's whole shape, or `None`. The coded
        model returns fp32."""
        loss = self.run.probe.loss(forward, self.data)
        self.run.begin_backward(loss, self.data, self.ends_microbatch)
        return loss


class Update:
    """The clipping of an optimizer's step, as the script reports it."""

    def __init__(self, spec):
        #: The global norm of the gradient, `None` if it was not computed, and the norm to which the run clips.
        self.norm, self.limit = None, spec["gradient_clipping"]
        #: The argument `norm_type` of torch's `clip_grad_norm_`.
        self.norm_type = float(spec.get("norm_type", 2))

    def clip(self, parameters):
        """Clips the gradients of the parameters as a user's training loop does, if the run asks for clipping."""
        if self.limit > 0:
            # The norm stays on the device, and is copied to the host only for the record.
            self.norm = whole(torch.nn.utils.clip_grad_norm_(parameters, self.limit, self.norm_type))


class Stopwatch:
    """Measures the time since its creation, without the time inside of `stopped`."""

    def __init__(self):
        self.started = time.perf_counter_ns()

    @contextlib.contextmanager
    def stopped(self):
        """A context whose duration is not counted."""
        before = time.perf_counter_ns()
        yield
        self.started += time.perf_counter_ns() - before

    def elapsed_ns(self):
        """The measured time in nanoseconds."""
        return time.perf_counter_ns() - self.started


def described(param):
    """The fields of a parameter of the plan that describe it in the event `model`."""
    return {key: param[key] for key in ("name", "shape", "trainable", "ranks") if key in param}
