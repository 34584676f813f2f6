"""A hand-written training loop with torch's fully_shard (FSDP2).

    torchrun --nproc-per-node 2 fsdp2.py --accumulate 4 --dtype bf16

Parameters and their gradients are kept in fp32; layers compute in --dtype, and gradients are reduced in
--reduce-dtype. Weights: FSDP2 averages over the ranks, and the loop adds up the microbatches, so a loss that is a
sum over tokens is multiplied by the number of ranks and divided by the number of tokens that all ranks have in the
step. Every token of the step has the same weight.
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, DistributedSampler

import common


def parse():
    parser = common.flags(__doc__)
    parser.add_argument("--reduce-dtype", choices=common.DTYPES, default="fp32")
    parser.add_argument("--loss-scale", type=float, help="static loss scale [default: 1024 for fp16, else 1]")
    parser.add_argument("--replicate", type=int, default=1, help="number of model replicas, each sharded (HSDP)")
    parser.add_argument("--keep-parameters", action="store_true", help="do not reshard after forward")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("start this script with torchrun")
    if args.loss_scale is None:
        args.loss_scale = 1024.0 if args.dtype == "fp16" else 1.0
    return args


def build(args, device, world):
    torch.manual_seed(args.seed)
    model = common.Model(args.width, args.layers, args.checkpoint).to(device)
    if args.replicate > 1:
        shape, names = (args.replicate, world // args.replicate), ("replicate", "shard")
    else:
        shape, names = (world,), ("shard",)
    settings = {
        "mesh": init_device_mesh(device.type, shape, mesh_dim_names=names),
        "mp_policy": MixedPrecisionPolicy(common.DTYPES[args.dtype], common.DTYPES[args.reduce_dtype]),
        "reshard_after_forward": not args.keep_parameters,
    }
    for block in model.blocks:
        if args.compile:
            block.compile(backend="aot_eager")
        fully_shard(block, **settings)
    fully_shard(model, **settings)
    return model


def unscale(parameters, scale):
    """Divides the gradients by the loss scale; returns True if all gradients are finite on all ranks."""
    finite = torch.ones((), device=parameters[0].device)
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.div_(scale)
            finite *= parameter.grad.to_local().isfinite().all()
    dist.all_reduce(finite, dist.ReduceOp.MIN)
    return bool(finite)


def train(args, rank, world, device):
    model = build(args, device, world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    data = common.Sentences(4096, args.seed)
    sampler = DistributedSampler(data, world, rank, seed=args.seed)
    loader = DataLoader(data, args.micro_batch, sampler=sampler, collate_fn=common.collate, drop_last=True)

    windows = common.windows(loader, args.accumulate)
    for step, window in zip(range(args.steps), windows):
        tokens = sum(common.targets(microbatch["labels"]) for microbatch in window).to(device)
        dist.all_reduce(tokens)
        total = torch.zeros((), device=device)
        for index, microbatch in enumerate(window):
            model.set_requires_gradient_sync(index == len(window) - 1)
            logits = model(microbatch["input_ids"].to(device))
            loss = common.summed_loss(logits, microbatch["labels"].to(device))
            loss = loss * world / tokens
            (loss * args.loss_scale).backward()
            total += loss.detach()
        finite = unscale(list(model.parameters()), args.loss_scale)
        if args.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        if finite:
            optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step}: loss {total.item() / world:.4f}", flush=True)

    if args.out:
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = get_model_state_dict(model, options=options)
        if rank == 0:
            os.makedirs(args.out, exist_ok=True)
            torch.save(state, os.path.join(args.out, "model.pt"))


def main():
    args = parse()
    device = common.accelerator(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(dist.get_default_backend_for_device(device))
    train(args, dist.get_rank(), dist.get_world_size(), device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
