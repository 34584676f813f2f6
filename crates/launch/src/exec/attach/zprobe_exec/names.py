"""Finds the names of parameters, without a hook on any module."""

import re

import torch

from zprobe_exec import fragments, meshes, objects

# The parts of parameter names that wrappers insert, and that the user's own model does not have.
WRAPPERS = re.compile(r"(^|\.)(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(?=\.|$)")


# Digests are remainders modulo this prime, the largest prime whose remainders a double represents exactly. A power of
# two would ignore the high bits of words: signs and exponents.
DIGESTS = (1 << 53) - 111

# The factor of one half of a digest, which keeps the changes of both halves from cancelling out. The factor is odd,
# with bits spread over the whole word.
MIX = 0x9E3779B97F4A7C15


class Named:
    """A parameter of the user's model, or this rank's part of one under tensor parallelism."""

    def __init__(self, name, shape, trainable):
        self.name, self.shape, self.trainable = name, list(shape), trainable
        self.numel = 1
        for side in self.shape:
            self.numel *= side
        self.ranks = []  # The ranks that hold this part under tensor parallelism; empty for other parameters.
        self.part = None  # The `Part` in a device mesh under tensor parallelism; `None` otherwise.
        self.start = None  # The first element of FSDP2's shard of the part; `None` otherwise.
        self.tensor = None  # The parameter of this rank; `None` if the rank has none.

    def digest(self):
        """A digest that equal replicas have in common, and the number of the digested shard, 0 for a whole parameter.
        The digest is `None` without a parameter, for a shard that no other rank holds, and if `digest_of` returns
        `None`."""
        if self.tensor is None:
            return None, 0
        shard = meshes.shard_number(self.tensor)
        if shard is not None:
            local = self.tensor.detach().to_local()
            return digest_of(local, local.numel()), shard
        return digest_of(self.tensor, self.numel), 0


def roots():
    """All root modules of this process: modules that are no child of another module."""
    modules = objects.of(torch.nn.Module)
    inner = {id(child) for module in modules for child in module._modules.values() if child is not None}
    return [module for module in modules if id(module) not in inner]


def find():
    """The parameters of all models of this process, by name and in order; and the name of each tensor that stands for a
    parameter, by the tensor's `id`. Such tensors are the parameter, its FSDP2 shard, its gathered form and its master
    weights."""
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
            # Megatron-LM's master weights; a shard has fewer elements.
            master = getattr(param, "main_param", None)
            if isinstance(master, torch.Tensor) and master.numel() == params[name].numel:
                names[id(master)] = name
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
    """The names of embeddings and output layers that a model's configuration ties, but whose weights are two
    parameters; a list of pairs."""
    pairs = []
    for root in roots():
        for path, module in root.named_modules():
            config = getattr(module, "config", None)
            is_tied = getattr(config, "tie_word_embeddings", False) is True
            if is_tied and hasattr(module, "get_input_embeddings") and hasattr(module, "get_output_embeddings"):
                pair = (module.get_input_embeddings(), module.get_output_embeddings())
                weights = [getattr(it, "weight", None) for it in pair]
                # A frozen weight gets no part of the gradient, for example if PEFT trains a copy of the head.
                is_pair = None not in weights and weights[0] is not weights[1] and weights[0].shape == weights[1].shape
                if is_pair and all(it.requires_grad for it in weights):
                    known = {id(param): name for name, param in module.named_parameters(prefix=path)}
                    pairs.append([known.get(id(it), "an embedding") for it in weights])
    unlike = {tuple(pair) for pair in pairs}
    return [[WRAPPERS.sub("", name).lstrip(".").removeprefix("module.") for name in pair] for pair in sorted(unlike)]


def of_optimizers(params, names, leaf):
    """Names a leaf that belongs to no module by its place in an optimizer, if an optimizer holds the leaf."""
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
    """The prefix that DDP, DeepSpeed and similar wrappers put before every name: `module.`, perhaps repeated."""
    prefix = ""
    while all(name.startswith(prefix + "module.") for name, _ in tree):
        prefix += "module."
    return prefix


def digest_of(param, numel):
    """A digest that equal replicas of a tensor have in common; `None` if the tensor is not dense, not real, freed or
    not finite, or has not `numel` elements."""
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
    """The sum of a tensor's 64-bit words and of the bytes after the last whole word. The order of the words does not
    matter."""
    held = flat.contiguous().view(torch.uint8)
    if held.storage_offset() % 8:
        held = held.clone()
    whole = len(held) - len(held) % 8
    return int(held[:whole].view(torch.int64).sum()) + int(held[whole:].sum())


def _whole_shape(param):
    """The shape of the whole parameter, also if this rank holds only a shard."""
    if getattr(param, "_is_flat_param", False):
        # A flat parameter of FullyShardedDataParallel has all parameters of a unit one after the other, and padding.
        return getattr(param, "_padded_unsharded_size", None) or param.shape
    return getattr(param, "ds_shape", param.shape)


def _plain(name):
    return WRAPPERS.sub("", name).lstrip(".")
