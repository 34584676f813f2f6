"""Watches which modules run their forward, and finds blocks of modules that no backward reaches."""

import functools

import torch
from torch.utils.checkpoint import CheckpointFunction

from zprobe_exec import names, places
from zprobe_exec.loss import ENGINE_FUNCTIONS

# The functions that read facts about a tensor, and not its content. A getter has the name of its attribute.
_FACTS = {
    "shape", "dtype", "device", "layout", "ndim", "requires_grad", "grad_fn", "is_leaf", "is_sparse", "is_quantized",
    "is_meta", "is_nested", "names", "output_nr", "_version", "_base", "size", "dim", "numel", "stride", "is_floating_point",
    "is_complex", "is_contiguous", "element_size", "register_hook", "__len__", "__hash__",
}  # fmt: skip


class _Unused(torch.Tensor):
    """An output of a block, or a tensor that was computed from such outputs by functions with gradients. A function
    without a gradient, such as `detach`, uses the block."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        name = getattr(func.__self__, "__name__", "") if name == "__get__" else name
        if name not in _FACTS:
            _hand_on((args, kwargs), result)
        return result


def _hand_on(inputs, result=None):
    """Watches the result of a function that has taken outputs of blocks; the function uses the blocks if its result has
    no gradient, or is a scalar, such as a loss."""
    blocks = {block for it in _tensors(inputs) for block in getattr(it, "zprobe_blocks", ())}
    results = _tensors(result)
    is_loss = any(isinstance(it, torch.Tensor) and it.ndim == 0 for it in results)
    if blocks and (is_loss or not _watch(results, blocks)):
        for block in blocks:
            block.is_used = True


def _watch(tensors, blocks):
    """Watches tensors that were computed by `blocks`. False if there are none, or some have no gradient or are of a
    class whose functions cannot be seen."""
    has_gradients = all(type(it) in (torch.Tensor, _Unused) and it.grad_fn is not None for it in tensors)
    if not (tensors and has_gradients):
        return False
    for it in tensors:
        it.__class__, it.zprobe_blocks = _Unused, blocks
    return True


class _Output:
    """Watches whether the script uses the output of a block that no backward reaches."""

    def __init__(self, module):
        self.module, self.ran, self.is_used = module, False, False
        self.handle = module.register_forward_hook(self._see)

    def _see(self, module, inputs, output):
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        self.ran = True
        self.is_used |= not _watch(_tensors(output), {self})

    def is_unused(self):
        """True if the block has run since the last call, and its outputs were used neither without a gradient nor by a
        custom function of autograd."""
        unused = self.ran and not self.is_used
        self.ran = self.is_used = False
        return unused


class _Seen:
    """The modules that have run, and the reads of parameters without a gradient, both by the `id` of the object."""

    def __init__(self):
        self.ran, self.read = {}, {}

    def take(self, other):
        self.ran.update(other.ran)
        self.read.update(other.read)


class Modules:
    """Watches the modules of the script, from `install` to `release`."""

    def __init__(self):
        self.handle, self.plain = None, {}  # The replaced attributes of `torch.nn.Parameter`.
        # The modules and reads since the last backward, and those of the previous step.
        self.now, self.step = _Seen(), _Seen()
        self.input = None  # The first input tensor of a module since the last backward.
        self.checkpoints = 0  # The number of running reentrant checkpoints with gradients enabled outside.
        self.apply = None  # The replaced `torch.autograd.Function.apply`; `None` before a block is watched.
        self.outputs = {}  # The outputs of the blocks that earlier steps have not reached, by the `id` of the module.

    def install(self):
        """Begins to watch the forward of every module, and reads of parameters by `data` and `detach`."""
        self.handle = torch.nn.modules.module.register_module_forward_pre_hook(self._see)
        kind = torch.nn.Parameter
        self.plain = {name: kind.__dict__.get(name) for name in ("data", "detach")}
        data, detach = kind.data, kind.detach
        kind.data = property(lambda it: self._note(it, data.__get__(it)), data.__set__)
        kind.detach = functools.wraps(detach)(lambda it: self._note(it, detach(it)))
        CheckpointFunction.apply = self._checkpoint

    def release(self):
        """Removes all hooks and wrappers."""
        if self.handle is not None:
            self.handle.remove()
            self.handle = None
            del CheckpointFunction.apply
            for name, plain in self.plain.items():
                if plain is None:
                    delattr(torch.nn.Parameter, name)
                else:
                    setattr(torch.nn.Parameter, name, plain)
        for output in self.outputs.values():
            output.handle.remove()
        if self.apply is not None:
            torch.autograd.Function.apply, self.apply = self.apply, None
        self.now, self.step, self.input, self.outputs = _Seen(), _Seen(), None, {}

    def _watch_functions(self):
        """Lets custom functions of autograd use blocks: these functions take tensors without `__torch_function__`. The
        functions of engines hand their inputs on."""
        if self.apply is not None:
            return
        self.apply = torch.autograd.Function.__dict__["apply"]
        apply = self.apply.__func__

        def applied(kind, *args, **kwargs):
            if kind.__name__.startswith(ENGINE_FUNCTIONS):
                # The forward of a custom function runs without gradients.
                with torch._C.DisableTorchFunctionSubclass():
                    result = apply(kind, *args, **kwargs)
                _hand_on((args, kwargs), result)
                return result
            _hand_on((args, kwargs))
            return apply(kind, *args, **kwargs)

        torch.autograd.Function.apply = classmethod(applied)

    def _note(self, param, content):
        """Records that a forward of the script reads a parameter by `data` or `detach`, which yields no gradient.
        Returns `content`."""
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            frame = places.caller(2)
            if places.is_in_forward(frame):
                self.now.read[id(param)] = (param, places.own_line(frame))
        return content

    def _checkpoint(self, *args):
        """Applies a reentrant checkpoint, which disables gradients inside. Its parameters get gradients only if an
        input of the checkpoint requires a gradient."""
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
            # The module is kept alive, so that its `id` is not reused for another module.
            self.now.ran[id(module)] = module
            if self.input is None:
                self.input = _first(inputs)
        except Exception:
            self.input = None
        return None

    def see_backward(self):
        """Adds the modules that have run since the last call to the current step; called at the begin and the end of a
        backward."""
        self.step.take(self.now)
        self.now = _Seen()

    def take_input(self):
        """The length of the first input of the forward before a backward, and a digest of that input; both are `None`
        if no input was seen."""
        tensor, self.input = self.input, None
        if tensor is None:
            return None, None
        return tensor.shape[0] or None, names.digest_of(tensor, tensor.numel())

    def unreached(self, roots, names, reached, held):
        """The blocks that ran in the finished step although no backward has reached some of their parameters: all
        parameters of a module, any parameter of a torch layer, or parameters that a forward reads without a gradient.
        Each block is a tuple (path, class, names of the parameters, place of the read or `None`, whether nothing used
        its outputs). The outputs of a block are watched from the step after the first one that did not reach it.

        `names` has the names of parameters by `id`, and `reached` the names that a backward has reached. `held` is a
        function that is true for a parameter of an optimizer.
        """
        blocks, seen = [], set()
        # Largest roots first: a slice of a Sequential, made in a forward, has modules of the model under other paths.
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
                    output = self.outputs.get(id(module))
                    if output is None:
                        self.outputs[id(module)] = _Output(module)
                        self._watch_functions()
                    unused = output is not None and output.is_unused()
                    blocks.append((path, type(module).__name__, lost, None, unused))
                    continue
                own = [it for it in module.parameters(recurse=False) if names.get(id(it)) in lost]
                read = {names[id(it)]: self.step.read[id(it)][1] for it in own if id(it) in self.step.read}
                read = {name: place for name, place in read.items() if place is not None}
                if read:
                    blocks.append((path, type(module).__name__, sorted(read), next(iter(read.values())), False))
                pending.extend((path + "." * bool(path) + name, child) for name, child in module.named_children())
        self.step = _Seen()
        # A block without a path, such as the slice, is left out if other blocks have its parameters.
        named = {name for path, _, lost, *_ in blocks if path for name in lost}
        return [block for block in blocks if block[0] or not named.issuperset(block[2])]


def _uses_all(module):
    """True for a layer of torch without submodules: the forward of such a layer uses all its parameters."""
    is_torch = type(module).__module__.startswith("torch.nn.modules.")
    return is_torch and not any(True for _ in module.children())


def _tensors(held, depth=8):
    """The tensors in a tensor, a list, a tuple or a dict, up to a depth, because a list may contain itself; other
    objects are left out."""
    if isinstance(held, torch.Tensor):
        return [held]
    if isinstance(held, dict):
        held = held.values()
    elif not isinstance(held, (list, tuple)):
        return []
    return [it for part in held for it in _tensors(part, depth - 1)] if depth > 0 else []


def _first(inputs):
    """The first tensor with at least one dimension among the inputs of a module; `None` without such an input."""
    for it in inputs:
        if isinstance(it, torch.Tensor) and it.dim():
            return it
        if isinstance(it, (list, tuple)) and it:
            return _first(it)
        if isinstance(it, dict) and it:
            return _first(it.values())
    return None
