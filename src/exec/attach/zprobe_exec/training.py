"""The training of this process: its steps and microbatches, from the first backward to the last step.

The number of microbatches is not known before the first step is over. So codes for a fixed number are
reserved in it, with address stamps between them. The other steps have as many codes as there are
microbatches. After the last one the process leaves.
"""

import atexit
import math
import os
import platform
import sys

import torch
import torch.distributed as dist

from zprobe_exec import fragments, leaves, names, stamps, tokens
from zprobe_exec.mailbox import Mailbox
from zprobe_rank.channel import DTYPE_NAMES, Channel
from zprobe_rank.codes import Code
from zprobe_rank.sampler import INNER_WINDOWS, Sampler

# Steps of a run: the first, and two with codes of their own.
STEPS = 3

# Microbatches of the first step that have a code each.
RESERVED = 16


class Stepping:
    """The step of an optimizer while it is going on."""

    def __init__(self):
        self.found = []  # Fragments that are new.
        self.again = []  # Fragments that another optimizer holds, or this one in another place.
        self.parts = []  # Fragments with the recorded elements of their gradients.
        self.spared = []  # Tensors with gradients that the optimizer is not to see.


class Training:
    """What this rank does, and what is done about it."""

    def __init__(self, settings, is_on, device):
        """`is_on` is false while gradients are computed that nobody accumulates; `device` is that of
        the first loss."""
        self.settings, self.is_on = settings, is_on
        self.rank, self.world_size = place()
        path = os.path.join(settings["directory"], "rank-%d.jsonl" % self.rank)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self.channel = Channel(settings["run"], self.rank, fd)
        self.mailbox = Mailbox(os.path.join(settings["directory"], "mail"), self.rank, self.world_size)
        self.step = self.microbatch = self.code = 0
        self.roots = {}
        self.columns = RESERVED
        self.stepped = self.over = False
        self.stepping = []
        self.fired, self.dtypes = {}, set()
        self.leaves = leaves.Leaves(self._name, self._gradient)
        self.held = fragments.Fragments()
        self.params, self.names = names.find()
        self.sizes = {name: param.numel for name, param in self.params.items()}
        code = Code(self.world_size * RESERVED, settings["seed"])
        self.stamp = stamps.Stamp(code.length, self.world_size)
        self.source = leaves.Coded(code, starts_of(self.params.values()), self.stamp)
        self.channel.emit(
            "script-joined",
            pid=os.getpid(),
            world_size=self.world_size,
            versions=versions(),
            device=device,
            kind=device.split(":")[0],
            backend=backend(),
        )
        atexit.register(self.end_of_script)
        self.excepthook, sys.excepthook = sys.excepthook, self._failed
        # What the script exits with is not known afterwards.
        self.exit, self.exit_code, sys.exit = sys.exit, None, self._exit

    # Backwards.

    def before_backward(self, tensors):
        """A backward begins."""
        if self.stepped:
            self._end_step()
            if self.step == 1:
                self._change_codes()
            elif self.step == STEPS:
                self.leave()
        self.fired = {}
        self.walked = (0, set())
        self.weigher = tokens.Weigher()
        self.before_nested(tensors)
        # A loss that goes backward again has the code that it had.
        roots = [tensor.grad_fn for tensor in tensors]
        key = tuple(id(root) for root in roots)
        # The nodes are kept, so that no others get their identities.
        self.code, _ = self.roots.setdefault(key, (len(self.roots), roots))
        if self._has_code():
            self.channel.emit("phase-entered", phase="backward", step=self.step, microbatch=self.code)

    def before_nested(self, tensors):
        """A backward within a backward begins: a reentrant checkpoint's, which belongs to it."""
        nodes, reached = self.leaves.watch(tensors, self.weigher.watch)
        self.walked = (self.walked[0] + nodes, self.walked[1] | set(reached))

    def after_backward(self):
        """The outermost backward is over."""
        weighed = self.weigher.take()
        if weighed is not None and self._has_code() and all(map(math.isfinite, weighed.values())):
            self.channel.emit("tokens-weighed", step=self.step, microbatch=self.code, **weighed)
        if self._has_code():
            nodes, reached = self.walked
            self.channel.emit(
                "backward-ended",
                step=self.step,
                microbatch=self.code,
                nodes=nodes,
                reached=sorted(reached),
                fired=self.fired,
            )
        self.microbatch = len(self.roots)
        if self.step > 0:
            self.held.after_backward()

    def _has_code(self):
        """True if there is a code for the present microbatch."""
        return self.code < self.columns

    def _name(self, leaf):
        name = self.names.get(id(leaf))
        if name is None:
            # A model that was made, or cut into shards, since names were looked for.
            params, self.names = names.find()
            for name, param in params.items():
                self.params.setdefault(name, param)
            name = self.names.get(id(leaf))
        return name

    def _gradient(self, name, gradient):
        """What takes the place of a leaf's gradient; None where it stays."""
        if self.over or not self.is_on() or name not in self.source.starts:
            return None
        self.dtypes.add(gradient.dtype)
        count = self.fired[name] = self.fired.get(name, 0) + 1
        if count > 1 or not self._has_code():
            return torch.zeros_like(gradient)
        # Two steps have codes of their own; the first has the only ones of another length.
        step = self.step % 2 if self.step else 0
        column = (step * self.world_size + self.rank) * self.columns + self.code
        return self.source.gradient(name, gradient, column)

    # Steps.

    def before_step(self, optimizer):
        """An optimizer is about to consume gradients."""
        last = max(min(self.microbatch, self.columns) - 1, 0)
        self.channel.emit("phase-entered", phase="optimizer-step", step=self.step, microbatch=last)
        for around in self.stepping:
            # It only hands its step on to this one, which holds the same tensors.
            around.found, around.again, around.parts = [], [], []
        over = Stepping()
        self.stepping.append(over)
        tensors = [it for group in optimizer.param_groups for it in group["params"]]
        reader, found = self.step == 0 and stamps.Reader(self.stamp, self.params), {}
        for tensor in tensors:
            fragment = found.get(id(tensor)) or self.held.of.get(id(tensor))
            if self.step == 0 and fragment is None:
                segments = fragments.located(reader, tensor, self.names.get(id(tensor)), self.sizes)
                fragment = found[id(tensor)] = fragments.Fragment(tensor, segments, optimizer)
                fragment.choose(self._free_runs())
                over.found.append(fragment)
            elif self.step == 0 and (id(tensor) in found or fragment.optimizer is not optimizer):
                over.again.append(fragment)
            if fragment is not None:
                over.parts.append((fragment, None if tensor.grad is None else fragment.pick()))
        if self.settings["dry"]:
            over.spared = [(it, it.grad) for it in tensors]
            for tensor in tensors:
                tensor.grad = None
        self.stepped = True
        self.optimizer = type(optimizer).__name__

    def after_step(self):
        """An optimizer has stepped."""
        if not self.stepping:
            return
        over = self.stepping.pop()
        for tensor, gradient in over.spared:
            tensor.grad = gradient
        self.held.adopt(over.found, over.again)
        self.held.consume(over.parts)
        if self.step + 1 == STEPS and not self.stepping and not self.held.waits():
            self._end_step()
            self.leave()

    def _free_runs(self):
        return fragments.free_runs(self.stamp, self.sizes, INNER_WINDOWS + 2)

    def _end_step(self):
        """The first moment at which the step is known to be over."""
        if self.step == 0:
            self._agree()
        else:
            self._record()
        self.channel.emit("step-ended", step=self.step, microbatches=self.microbatch)
        self.step += 1
        self.microbatch, self.stepped, self.roots = 0, False, {}

    def _record(self):
        last = max(min(self.microbatch, self.columns) - 1, 0)
        self.held.record(self.channel, self.step, last)

    def _agree(self):
        """Numbers parameters and microbatches alike on all ranks, for the steps that follow."""
        self.mailbox.post(
            "first-step",
            dict(
                microbatches=self.microbatch,
                params=[[it.name, it.shape, it.trainable] for it in self.params.values()],
            ),
        )
        letters = self.mailbox.collect("first-step", self.settings["patience"])
        params = {}
        for rank in sorted(letters):
            for name, shape, trainable in letters[rank]["params"]:
                params.setdefault(name, names.Named(name, shape, trainable))
        self.indices = {name: index for index, name in enumerate(params)}
        microbatches = max(letter["microbatches"] for letter in letters.values())
        dtype = max(self.dtypes, key=lambda dtype: torch.finfo(dtype).eps)
        self.channel.emit(
            "ranks-agreed", microbatches=microbatches, reserved=RESERVED, dtype=DTYPE_NAMES.get(dtype, "fp32")
        )
        self.channel.emit(
            "model",
            params=[dict(name=it.name, shape=it.shape or [1], trainable=it.trainable) for it in params.values()],
        )
        self.channel.emit("optimizer-chosen", **{"class": self.optimizer, "inner": self.optimizer})
        self.held.name_by_index(self.indices)
        self.channel.emit("layout", layout="partition", segments=self.held.segments())
        self.after_agreement = (params, microbatches)

    def _change_codes(self):
        """Gives the steps behind the first codes that are as short as they can be."""
        params, self.columns = self.after_agreement
        code = Code(2 * self.world_size * self.columns, self.settings["seed"])
        self.source = leaves.Coded(code, starts_of(params.values()))
        samples = Sampler(True, code.length, self.settings["seed"])
        self.held.forget()
        for fragment in self.held.all:
            fragment.choose(samples.choose)
            # Addresses that the script does not clear would stay among the codes.
            if fragment.tensor.grad is not None:
                fragment.tensor.grad.zero_()
        self._announce(self.held.pieces())

    def _announce(self, pieces):
        """Emits which elements are recorded."""
        self.channel.emit("layout", layout="partition", segments=pieces, sampled=True)

    # The end.

    def end_of_script(self):
        """The script is over before the last step: what there is has to do."""
        if self.over:
            return
        self.over = True
        if self.stepped:
            self._end_step()
        if self.exit_code:
            message = "sys.exit(%r) in step %d, after %d microbatches" % (self.exit_code, self.step, self.microbatch)
            self.channel.emit("failed", message=message)
            return
        if self.step == 1 and not self.microbatch:
            pieces = self.held.pieces()
            for piece in pieces:
                piece["param"] = self.indices.get(piece["param"])
            self._announce(pieces)
            self.step -= 1
            self._record()
        self.channel.emit("finished")

    def _failed(self, kind, error, trace):
        """The script ends with an exception."""
        if not self.over:
            self.over = True
            self.channel.emit("failed", message="%s: %s" % (kind.__name__, error))
        self.excepthook(kind, error, trace)

    def _exit(self, code=None):
        self.exit_code = code
        self.exit(code)

    def leave(self):
        """Ends this process before the script does anything with what it trained."""
        self.over = True
        self.channel.emit("finished")
        self.mailbox.post("finished", {})
        self.mailbox.collect("finished", self.settings["patience"])
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
        os._exit(0)


def starts_of(params):
    """Place of each parameter in the flat order, by name."""
    starts, start = {}, 0
    for param in params:
        starts[param.name] = start
        start += param.numel
    return starts


def place():
    """Rank of this process, and the number of ranks."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def backend():
    """Backend of the default process group; Gloo where there is none."""
    if dist.is_available() and dist.is_initialized():
        return "nccl" if "nccl" in dist.get_backend() else "gloo"
    return "gloo"


def versions():
    """Versions of what trains."""
    found = dict(python=platform.python_version(), torch=torch.__version__)
    for name in ("deepspeed", "transformers", "accelerate", "lightning", "pytorch_lightning"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            found[name] = str(version)
    return found
