"""Modules whose forward has run, and blocks of them that no backward reaches."""

import functools

import torch
from torch.utils.checkpoint import CheckpointFunction

from zprobe_exec import names, places


class _Seen:
    """Modules that have run, and reads of parameters without a gradient, by identity."""

    def __init__(self):
        self.ran, self.read = {}, {}

    def take(self, other):
        self.ran.update(other.ran)
        self.read.update(other.read)


class Modules:
    """The modules of the script, from `install` to `release`."""

    def __init__(self):
        self.handle, self.plain = None, {}  # What was in the class of parameters.
        self.now, self.step = _Seen(), _Seen()  # Since the last backward; in the step, until that.
        self.input = None  # The first tensor that a module was given since the last backward.
        self.checkpoints = 0  # Reentrant checkpoints that run now, with gradients enabled around them.

    def install(self):
        """Watches the forward of every module."""
        self.handle = torch.nn.modules.module.register_module_forward_pre_hook(self._see)
        kind = torch.nn.Parameter
        self.plain = {name: kind.__dict__.get(name) for name in ("data", "detach")}
        data, detach = kind.data, kind.detach
        kind.data = property(lambda it: self._note(it, data.__get__(it)), data.__set__)
        kind.detach = functools.wraps(detach)(lambda it: self._note(it, detach(it)))
        CheckpointFunction.apply = self._checkpoint

    def release(self):
        """Watches no longer."""
        if self.handle is not None:
            self.handle.remove()
            self.handle = None
            del CheckpointFunction.apply
            for name, plain in self.plain.items():
                if plain is None:
                    delattr(torch.nn.Parameter, name)
                else:
                    setattr(torch.nn.Parameter, name, plain)
        self.now, self.step, self.input = _Seen(), _Seen(), None

    def _note(self, param, content):
        """Notes that the script's forward reads a parameter without a gradient. Returns `content`."""
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            frame = places.caller(2)
            if places.is_in_forward(frame):
                self.now.read[id(param)] = (param, places.own_line(frame))
        return content

    def _checkpoint(self, *args):
        """Applies a reentrant checkpoint, which disables gradients within. If none of its inputs has one, none of its
        parameters gets one."""
        is_training = torch.is_grad_enabled()
        self.checkpoints += is_training
        try:
            return super(CheckpointFunction, CheckpointFunction).apply(*args)
        finally:
            self.checkpoints -= is_training

    def _see(self, module, inputs):
        if torch.compiler.is_compiling() or not (torch.is_grad_enabled() or self.checkpoints):
            return None
        try:
            # Kept alive, so that no other module gets its identity.
            self.now.ran[id(module)] = module
            if self.input is None:
                self.input = _first(inputs)
        except Exception:
            self.input = None
        return None

    def see_backward(self):
        """Counts what has run since the last call for the step of a backward, which begins or ends now."""
        self.step.take(self.now)
        self.now = _Seen()

    def take_input(self):
        """Length of the first input of the forward before a backward, and a number that equal inputs have in common;
        None where it was not seen."""
        tensor, self.input = self.input, None
        if tensor is None:
            return None, None
        return tensor.shape[0] or None, names.digest_of(tensor, tensor.numel())

    def unreached(self, roots, names, reached, held):
        """Blocks that have run in the step, which is over, and have parameters that were not reached: all of them, one of
        a layer of torch, or those that forward reads without a gradient. Each is (path, class, names of the parameters,
        place of such a read or None).

        `names`: names of the parameters by identity; `reached`: names that a backward has reached; `held` is true
        of a parameter that an optimizer has.
        """
        blocks, seen = [], set()
        # A slice of a Sequential that forward makes has modules of the model under other paths.
        for root in sorted(roots, key=lambda it: -sum(1 for _ in it.modules())):
            pending = [("", root)]
            while pending:
                path, module = pending.pop()
                if id(module) in seen:
                    continue
                seen.add(id(module))
                own = [it for it in module.parameters() if it.requires_grad and id(it) in names and held(it)]
                lost = sorted({names[id(it)] for it in own} - reached)
                is_whole = lost and len(lost) == len({names[id(it)] for it in own})
                if id(module) in self.step.ran and lost and (is_whole or _uses_all(module)):
                    blocks.append((path, type(module).__name__, lost, None))
                    continue
                own = [it for it in module.parameters(recurse=False) if names.get(id(it)) in lost]
                read = {names[id(it)]: self.step.read[id(it)][1] for it in own if id(it) in self.step.read}
                read = {name: place for name, place in read.items() if place is not None}
                if read:
                    blocks.append((path, type(module).__name__, sorted(read), next(iter(read.values()))))
                pending.extend((path + "." * bool(path) + name, child) for name, child in module.named_children())
        self.step = _Seen()
        # The slice itself has no path.
        named = {name for path, _, lost, _ in blocks if path for name in lost}
        return [block for block in blocks if block[0] or not named.issuperset(block[2])]


def _uses_all(module):
    """True for a layer of torch, whose forward uses all of its parameters."""
    is_torch = type(module).__module__.startswith("torch.nn.modules.")
    return is_torch and not any(True for _ in module.children())


def _first(inputs):
    """The first tensor with a dimension among some inputs; None if there is none."""
    for it in inputs:
        if isinstance(it, torch.Tensor) and it.dim():
            return it
        if isinstance(it, (list, tuple)) and it:
            return _first(it)
        if isinstance(it, dict) and it:
            return _first(it.values())
    return None
