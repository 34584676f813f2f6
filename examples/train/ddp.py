"""A hand-written training loop with torch's DistributedDataParallel.

    torchrun --nproc-per-node 2 ddp.py --accumulate 4
    python ddp.py --accumulate 4            # one process, without torch.distributed
    python ddp.py --spawn 2                 # two processes of torch.multiprocessing

Weights: DDP averages over the ranks and the loop adds up the microbatches, so a loss that is a sum over tokens is
multiplied by the number of ranks and divided by the number of tokens that all ranks have in the step. Every token
of the step has the same weight.
"""

import contextlib
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import common


def parse():
    parser = common.flags(__doc__)
    parser.add_argument("--amp", action="store_true", help="fp32 parameters, autocast to --dtype")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--zero", action="store_true", help="shard the optimizer's state")
    parser.add_argument("--bucket-view", action="store_true", help="gradients are views of buckets")
    parser.add_argument("--tie", action="store_true", help="one weight for embedding and head")
    parser.add_argument("--spawn", type=int, help="number of processes to start")
    args = parser.parse_args()
    if args.zero and not (args.spawn or "RANK" in os.environ):
        parser.error("--zero needs torchrun or --spawn")
    return args


def build(args, device, world):
    torch.manual_seed(args.seed)
    dtype = common.DTYPES[args.dtype]
    model = common.Model(args.width, args.layers, args.checkpoint, args.tie)
    model.to(device, torch.float32 if args.amp else dtype)
    wrapped = torch.compile(model, backend="aot_eager") if args.compile else model
    if dist.is_initialized():
        wrapped = DistributedDataParallel(wrapped, gradient_as_bucket_view=args.bucket_view)
    # The default of 1e-8 is 0 in fp16.
    settings = {"lr": args.lr, "eps": 1e-4 if args.dtype == "fp16" and not args.amp else 1e-8}
    if args.zero:
        kind = torch.optim.AdamW
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=kind, **settings)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), **settings)
    return model, wrapped, optimizer


def train(args, rank, world, local_rank):
    device = common.accelerator(local_rank)
    model, wrapped, optimizer = build(args, device, world)
    scaler = torch.amp.GradScaler(device.type, enabled=args.amp and args.dtype == "fp16")
    data = common.Sentences(4096, args.seed)
    sampler = DistributedSampler(data, world, rank, seed=args.seed)
    loader = DataLoader(data, args.micro_batch, sampler=sampler, collate_fn=common.collate, drop_last=True)

    windows = common.windows(loader, args.accumulate)
    for step, window in zip(range(args.steps), windows):
        tokens = sum(common.targets(microbatch["labels"]) for microbatch in window).to(device)
        if world > 1:
            dist.all_reduce(tokens)
        total = torch.zeros((), device=device)
        for index, microbatch in enumerate(window):
            last = index == len(window) - 1
            quiet = not last and isinstance(wrapped, DistributedDataParallel)
            with wrapped.no_sync() if quiet else contextlib.nullcontext():
                with torch.autocast(device.type, common.DTYPES[args.dtype], enabled=args.amp):
                    logits = wrapped(microbatch["input_ids"].to(device))
                loss = common.summed_loss(logits, microbatch["labels"].to(device))
                loss = loss * world / tokens
                scaler.scale(loss).backward()
            total += loss.detach()
        scaler.unscale_(optimizer)
        if args.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if world > 1:
            dist.all_reduce(total)
        if rank == 0:
            print(f"step {step}: loss {total.item() / world:.4f}", flush=True)

    if args.out and rank == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save(model.state_dict(), os.path.join(args.out, "model.pt"))


def worker(rank, args, world):
    """The main function of each process of --spawn."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    main(args)


def main(args):
    if "RANK" not in os.environ:
        return train(args, rank=0, world=1, local_rank=0)
    local_rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group(dist.get_default_backend_for_device(common.accelerator(local_rank)))
    train(args, dist.get_rank(), dist.get_world_size(), local_rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    args = parse()
    if args.spawn:
        with socket.create_server(("localhost", 0)) as free:
            os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(free.getsockname()[1]))
        mp.spawn(worker, (args, args.spawn), nprocs=args.spawn)
    else:
        main(args)
