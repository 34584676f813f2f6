"""The agreement of the ranks, at the end of the first step, on the parameters and microbatches of the later steps."""

import torch

from zprobe_exec import meshes, names, refusals, turns
from zprobe_exec.coded import RESERVED
from zprobe_rank.channel import DTYPE_NAMES


def agree(training):
    """Numbers the parameters and microbatches in the same way on all ranks. Returns the parameters by name, and the
    number of microbatches of a step. Raises `Unreadable` if the later steps cannot be diagnosed."""
    refusals.refuse_compression()
    if not training.dtypes:
        raise turns.Unreadable(
            "zprobe saw no gradient of a parameter of any module or optimizer (FullyShardedDataParallel with "
            "use_orig_params=True hides gradients; its successor fully_shard does not)"
        )
    training.mode.before_agreement()
    training.mailbox.post(
        "first-step",
        dict(
            turns=[[sorted(turn.names), turn.microbatches] for turn in training.turns.seen],
            params=[[it.name, it.shape, it.trainable, it.part is not None] for it in training.params.values()],
        ),
    )
    letters = training.mailbox.collect("first-step", training.settings["patience"])
    strangers = sorted(set(range(training.world_size)).difference(training.mailbox.collect("joined", 0)))
    if strangers:
        raise turns.Unreadable(
            "rank %d of %d has called no backward that zprobe saw: if it runs on another machine, start zprobe exec "
            "there, too, and give both --nnodes, --node-rank and --rdzv-endpoint" % (strangers[0], training.world_size)
        )
    training.remarks.see_trainers()
    training.softly("settings of engines", training.remarks.see_configurations)
    training.remarks.strays = training.held.strays(training.names)
    training.remarks.untied = training.softly("tied weights", names.untied) or []
    params = {}
    for rank in sorted(letters):
        for name, shape, trainable, is_cut in letters[rank]["params"]:
            named = params.setdefault(name, names.Named(name, shape, trainable))
            named.ranks += [rank] if is_cut else []
    meshes.refuse_mixed([(it.name, bool(it.ranks)) for it in params.values() if it.trainable])
    training.indices = {name: index for index, name in enumerate(params)}
    microbatches = training.turns.agree([letter["turns"] for letter in letters.values()])
    dtype = max(training.dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)
    training.channel.emit(
        "ranks-agreed", microbatches=microbatches, reserved=RESERVED, dtype=DTYPE_NAMES.get(dtype, "fp32")
    )
    training.channel.emit(
        "model",
        params=[
            dict(name=it.name, shape=it.shape or [1], trainable=it.trainable, ranks=it.ranks) for it in params.values()
        ],
    )
    training.emit_walks()
    wrapper = training.between.open() or training.optimizer
    if wrapper is not None:
        training.channel.emit("optimizer-chosen", **{"class": wrapper, "inner": training.optimizer})
    training.held.name_by_index(training.indices)
    training.channel.emit("layout", layout="partition", segments=training.held.segments())
    return params, microbatches
