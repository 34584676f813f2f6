"""Names of parameters, found without a hook on any module."""

import gc
import re

import torch

# Parts of names that wrappers put in, and that the user's own model has not.
WRAPPERS = re.compile(r"(^|\.)(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(?=\.|$)")


class Named:
    """A parameter of the user's model."""

    def __init__(self, name, shape, trainable):
        self.name, self.shape, self.trainable = name, list(shape), trainable
        self.numel = 1
        for side in self.shape:
            self.numel *= side


def find():
    """The parameters of all models of this process in their order, and the name of each tensor that
    stands for one, by its identity. These are the parameter, and what FSDP2 puts in its place."""
    modules = [it for it in gc.get_objects() if issubclass(type(it), torch.nn.Module)]
    inner = {id(child) for module in modules for child in module._modules.values() if child is not None}
    roots = [module for module in modules if id(module) not in inner]
    trees = [tree for tree in (list(root.named_parameters()) for root in roots) if tree]
    trees.sort(key=lambda tree: -sum(param.numel() for _, param in tree))
    params, names = {}, {}
    for number, tree in enumerate(trees):
        prefix = _common_prefix(tree)
        for name, param in tree:
            if id(param) in names:
                continue
            name = _plain(name[len(prefix) :])
            while name in params:
                name = "(%d).%s" % (number, name)
            params[name] = Named(name, getattr(param, "ds_shape", param.shape), param.requires_grad)
            names[id(param)] = name
    for sharded in (it for it in gc.get_objects() if type(it).__name__ == "FSDPParam"):
        name = names.get(id(getattr(sharded, "sharded_param", None)))
        whole = getattr(sharded, "_unsharded_param", None)
        if name is not None and whole is not None:
            names[id(whole)] = name
            params[name] = Named(name, whole.shape, whole.requires_grad)
    return params, names


def _common_prefix(tree):
    """What DDP, DeepSpeed and their like put before every name."""
    prefix = ""
    while all(name.startswith(prefix + "module.") for name, _ in tree):
        prefix += "module."
    return prefix


def _plain(name):
    return WRAPPERS.sub("", name).lstrip(".")
