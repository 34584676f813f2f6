"""Finds parameters that DistributedDataParallel does not reduce, because they joined its module, or became trainable,
after the module had been wrapped."""

import functools
import weakref

# The parameters that each DDP module reduces, as weak references.
_reduced = weakref.WeakKeyDictionary()


def install():
    """Watches the construction of DDP modules."""
    from torch.nn.parallel import distributed

    build = getattr(distributed.DistributedDataParallel, "_build_params_for_reducer", None)
    if build is None:
        return

    @functools.wraps(build)
    def watched(ddp, *args, **kwargs):
        result = build(ddp, *args, **kwargs)
        _reduced[ddp] = [weakref.ref(it) for it in result[0]]
        return result

    distributed.DistributedDataParallel._build_params_for_reducer = watched


def late():
    """The trainable parameters of DDP modules that DDP does not reduce, without those that it was told to ignore."""
    found = []
    for ddp, references in list(_reduced.items()):
        known = {id(it) for it in (reference() for reference in references)}
        ignored = getattr(ddp, "parameters_to_ignore", ())
        for name, param in ddp.module.named_parameters():
            if param.requires_grad and id(param) not in known and name not in ignored:
                found.append(param)
    return found
