"""Wraps the functions of torch that zprobe watches, and registers its hooks."""

import functools
import os
import sys

import torch
from torch.optim import optimizer as optimizers

from zprobe_exec import engine, places, process, stacks, wrapped
from zprobe_exec.arithmetic import Arithmetic
from zprobe_exec.clipping import skips_step
from zprobe_exec.modules import Modules
from zprobe_exec.training import Training
from zprobe_rank.channel import finite

# The functions of engines that clip gradients to a norm that the engine has computed, as pairs of a module and a name.
CLIPPING = [("megatron.core.optimizer.optimizer", "clip_grad_by_total_norm_fp32")]

_settings = None
_arithmetic, _modules = Arithmetic(), Modules()
_training = None
_is_off = False
_depth = 0
_asked = 0


def install(settings):
    """Wraps functions of torch, and registers hooks. All other work begins at the first backward."""
    global _settings
    _settings = settings
    variable = torch.autograd.Variable
    variable._execution_engine = engine.watched(variable._execution_engine, _backward, _grad)
    _arithmetic.install()
    _modules.install()
    for module in (torch.nn.utils, torch.nn.utils.clip_grad):
        module.clip_grad_value_ = _watched_value_clipping(module.clip_grad_value_)
        module.clip_grad_norm_ = _watched_clipping(module.clip_grad_norm_)
        if hasattr(module, "clip_grads_with_norm_"):
            module.clip_grads_with_norm_ = _watched_clipping(module.clip_grads_with_norm_)
    if torch.distributed.is_available():
        torch.distributed.all_reduce = _watched_reduction(torch.distributed.all_reduce)
        torch.distributed.broadcast = _watched_broadcast(torch.distributed.broadcast)
        wrapped.install()
        torch.distributed.init_process_group = _watched_joining(torch.distributed.init_process_group)
    optimizers.register_optimizer_step_pre_hook(_before_step)
    optimizers.register_optimizer_step_post_hook(_after_step)
    os.register_at_fork(after_in_child=_forget)


def is_on():
    """False inside of `torch.autograd.grad`, which accumulates no gradients."""
    return not _asked


def _forget():
    """Resets the watch in a forked process, which may become another rank."""
    global _training, _is_off
    if _training is not None:
        _training.over = True  # The inherited channel belongs to the parent process.
    _training, _is_off = None, False


def _backward(run, roots):
    """Runs a backward that accumulates gradients."""
    global _depth
    if _asked or _is_off or (_training is not None and _training.is_aside()):
        return run()
    if _training is None and not _begin(roots):
        return run()
    if not _depth and _guarded(_training.takes_part, roots) is False:
        return run()
    _guarded(_training.before_nested if _depth else _training.before_backward, roots)
    _depth += 1
    try:
        return run()
    finally:
        _depth -= 1
        if not _depth:
            _guarded(_training.after_backward)


def _grad(run):
    """Runs a backward that only returns gradients, as `torch.autograd.grad` does."""
    global _asked
    _asked += 1
    try:
        return run()
    finally:
        _asked -= 1


def _begin(roots):
    """Begins to watch the training of this process; returns false if the process cannot be watched."""
    global _training, _is_off
    try:
        _training = Training(_settings, is_on, str(roots[0].device), _modules, _arithmetic)
    except Exception as error:
        _is_off = True
        sys.stderr.write("zprobe: cannot watch this rank: %s: %s\n" % (type(error).__name__, error))
        return False
    _guarded(_training.begin)
    for module, name in CLIPPING:
        clip = getattr(sys.modules.get(module), name, None)
        if callable(clip):
            setattr(sys.modules[module], name, _watched_clipping(clip))
    return not _training.over


def _guarded(watch, *args):
    """The result of `watch`. If `watch` fails, zprobe gives up, and the error does not reach the script."""
    try:
        return watch(*args)
    except Exception as error:
        try:
            _training.give_up(error)
        except Exception as worse:
            stacks.slipped("give_up", worse)
        return None


def _watched_joining(join):
    @functools.wraps(join)
    def watched(*args, **kwargs):
        stacks.see_joining()
        result = join(*args, **kwargs)
        stacks.see_place(process.place)
        return result

    return watched


def _watched_clipping(clip):
    @functools.wraps(clip)
    def watched(parameters, max_norm, *args, **kwargs):
        if _training is None or _training.over:
            return clip(parameters, max_norm, *args, **kwargs)
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        frame, kind = places.caller(1), kwargs.get("norm_type", args[0] if args else 2.0)
        begun = _training.softly("clipping", _training.clipping.begin, parameters)
        try:
            norm = clip(parameters, max_norm, *args, **kwargs)
        except BaseException:
            _training.clipping.abandon()
            raise
        known = norm if norm is not None else args[0] if args else kwargs.get("total_norm")
        end = (begun, known, max_norm, kind if norm is not None else 2.0, frame)
        _training.softly("clipping", _training.clipping.end, *end)
        return norm

    return watched


def _watched_value_clipping(clip):
    @functools.wraps(clip)
    def watched(parameters, clip_value, *args, **kwargs):
        if _training is None or _training.over:
            return clip(parameters, clip_value, *args, **kwargs)
        _training.remarks.clipped_by_value = finite(float(clip_value))
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        begun = _training.softly("clipping", _training.clipping.begin_by_value, parameters)
        result = clip(parameters, clip_value, *args, **kwargs)
        _training.softly("clipping", _training.clipping.end_by_value, begun)
        return result

    return watched


def _watched_reduction(reduce):
    @functools.wraps(reduce)
    def watched(tensor, *args, **kwargs):
        if _training is not None and not _training.over and not _depth:
            _training.softly("reductions", _training.see_reduction, tensor)
        return reduce(tensor, *args, **kwargs)

    return watched


def _watched_broadcast(broadcast):
    @functools.wraps(broadcast)
    def watched(tensor, src=None, *args, **kwargs):
        if _training is not None and not _training.is_aside() and not _depth:
            _training.softly("broadcasts", _training.see_broadcast, tensor, src)
        return broadcast(tensor, src, *args, **kwargs)

    return watched


def _before_step(optimizer, args, kwargs):
    if _training is None and not _has_closure(args, kwargs):
        return None
    closure = _closure(args, kwargs)
    if closure is None:
        if not _guarded(skips_step, optimizer):
            _guarded(_training.before_step, optimizer)
        return None

    calls = []

    @functools.wraps(closure)
    def watched(*inner, **named):
        result = closure(*inner, **named)
        # Optimizers with a line search call the closure several times; only the first call counts.
        if _training is not None and not calls:
            calls.append(True)
            _guarded(_training.before_step, optimizer)
        return result

    if kwargs.get("closure") is closure:
        return args, dict(kwargs, closure=watched)
    return (args[0], watched) + tuple(args[2:]), kwargs


def _after_step(optimizer, args, kwargs):
    if _training is not None and not _guarded(skips_step, optimizer):
        _guarded(_training.after_step, optimizer)


def _closure(args, kwargs):
    """The closure among the arguments of an optimizer's step; `None` without one."""
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    return closure if callable(closure) else None


def _has_closure(args, kwargs):
    return _closure(args, kwargs) is not None
