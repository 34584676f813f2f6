"""Names of parameters, found without a hook on any module."""

import re

import torch

from zprobe_exec import fragments, meshes, objects

# Parts of names that wrappers put in, and that the user's own model has not.
WRAPPERS = re.compile(r"(^|\.)(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(?=\.|$)")


# Digests are remainders of this prime, the largest whose remainders a double holds. A power of two would leave out the
# high bits of words: signs and exponents.
DIGESTS = (1 << 53) - 111

# Factor that keeps the halves of a digest from taking from each other what one bit adds: odd, with bits all over.
MIX = 0x9E3779B97F4A7C15


class Named:
    """A parameter of the user's model."""

    def __init__(self, name, shape, trainable):
        self.name, self.shape, self.trainable = name, list(shape), trainable
        self.numel = 1
        for side in self.shape:
            self.numel *= side
        self.ranks = []  # Ranks that have it, of a part on which the ranks have agreed.
        self.part = None  # Its place in a device mesh, where tensor parallelism has cut it.
        self.start = None  # Its first element in FSDP2's shard of a part; None elsewhere.
        self.tensor = None  # The parameter itself, where this rank has it.

    def digest(self):
        """A number that replicas have in common, and the number of the shard that it is of, 0 for a whole parameter;
        None and 0 for a shard of which there is one alone."""
        if self.tensor is None:
            return None, 0
        shard = meshes.shard_number(self.tensor)
        if shard is not None:
            local = self.tensor.detach().to_local()
            return digest_of(local, local.numel()), shard
        return digest_of(self.tensor, self.numel), 0


def roots():
    """All modules of this process that are in no other one."""
    modules = objects.of(torch.nn.Module)
    inner = {id(child) for module in modules for child in module._modules.values() if child is not None}
    return [module for module in modules if id(module) not in inner]


def find():
    """The parameters of all models of this process in their order, and the name of each tensor that
    stands for one, by its identity. These are the parameter, and what FSDP2 puts in its place."""
    trees = [tree for tree in (list(root.named_parameters()) for root in roots()) if tree]
    trees.sort(key=lambda tree: -sum(param.numel() for _, param in tree))
    params, names, sharded = {}, {}, meshes.sharded_params()
    for number, tree in enumerate(trees):
        prefix = _common_prefix(tree)
        for name, param in tree:
            if id(param) in names:
                continue
            if 0 in _whole_shape(param):
                continue
            cut = sharded.get(id(param))
            part = meshes.part_of(param, cut)
            name = _plain(name[len(prefix) :]) + (part.suffix() if part else "")
            while name in params:
                name = "(%d).%s" % (number, name)
            params[name] = Named(name, part.shape if part else _whole_shape(param), param.requires_grad)
            params[name].part = part
            params[name].start = meshes.shard_start(cut) if part and cut else None
            params[name].tensor = param
            names[id(param)] = name
    for cut in sharded.values():
        both = [it for it in (cut.sharded_param, getattr(cut, "_unsharded_param", None)) if it is not None]
        name = next((names[id(it)] for it in both if id(it) in names), None)
        if name is None:
            continue
        for tensor in both:
            names[id(tensor)] = name
        if params[name].part is None:
            params[name] = Named(name, cut._orig_size, both[-1].requires_grad)
            params[name].tensor = cut.sharded_param
    return params, names


def untied():
    """Pairs of parameters that a model's configuration ties, or that began as one, and that are two: an embedding
    and the output layer, as pairs of names."""
    pairs = []
    for root in roots():
        for path, module in root.named_modules():
            config = getattr(module, "config", None)
            is_tied = getattr(config, "tie_word_embeddings", False) is True
            if is_tied and hasattr(module, "get_input_embeddings") and hasattr(module, "get_output_embeddings"):
                pair = (module.get_input_embeddings(), module.get_output_embeddings())
                weights = [getattr(it, "weight", None) for it in pair]
                if None not in weights and weights[0] is not weights[1] and weights[0].shape == weights[1].shape:
                    known = {id(param): name for name, param in module.named_parameters(prefix=path)}
                    pairs.append([known.get(id(it), "an embedding") for it in weights])
    unlike = {tuple(pair) for pair in pairs}
    return [[WRAPPERS.sub("", name).lstrip(".").removeprefix("module.") for name in pair] for pair in sorted(unlike)]


def of_optimizers(params, names, leaf):
    """Names a leaf that is in no module, if an optimizer holds it: by its place there."""
    if id(leaf) in names:
        return
    for optimizer in objects.of(torch.optim.Optimizer):
        for number, group in enumerate(getattr(optimizer, "param_groups", [])):
            for place, it in enumerate(group["params"]):
                if it is leaf:
                    name = "param_groups[%d][%d]" % (number, place)
                    while name in params:
                        name += "'"
                    params[name] = Named(name, leaf.shape, leaf.requires_grad)
                    names[id(leaf)] = name
                    return


def _common_prefix(tree):
    """What DDP, DeepSpeed and their like put before every name."""
    prefix = ""
    while all(name.startswith(prefix + "module.") for name, _ in tree):
        prefix += "module."
    return prefix


def digest_of(param, numel):
    """A number that replicas of a tensor have in common; None for one with another number of elements."""
    is_plain = type(param.data) is torch.Tensor and not param.is_meta and param.layout == torch.strided
    if not is_plain or param.is_complex() or param.numel() != numel or not numel:
        return None
    if fragments.is_freed(param):
        return None
    flat = param.detach().reshape(-1)
    some = flat[:: max(1, numel // 64)][:64].to("cpu", torch.float64)
    weighted = int((some * torch.arange(1, len(some) + 1)).sum().view(torch.int64))
    return float((weighted * MIX + _sum_of_bits(flat)) % DIGESTS) if fragments.is_finite(flat) else None


def _sum_of_bits(flat):
    """The sum of a tensor's words of 64 bits, and of the bytes behind the last whole word: the same in any order."""
    held = flat.contiguous().view(torch.uint8)
    if held.storage_offset() % 8:
        held = held.clone()
    whole = len(held) - len(held) % 8
    return int(held[:whole].view(torch.int64).sum()) + int(held[whole:].sum())


def _whole_shape(param):
    """The shape of a parameter that this rank may hold a shard of."""
    if getattr(param, "_is_flat_param", False):
        # The parameters of a unit of FullyShardedDataParallel, one after the other, and padding.
        return getattr(param, "_padded_unsharded_size", None) or param.shape
    return getattr(param, "ds_shape", param.shape)


def _plain(name):
    return WRAPPERS.sub("", name).lstrip(".")
