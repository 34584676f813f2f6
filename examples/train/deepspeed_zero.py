"""A training loop with DeepSpeed's engine, in any stage of ZeRO.

    deepspeed --num_gpus 2 deepspeed_zero.py --stage 2 --accumulate 4 --dtype bf16
    torchrun --nproc-per-node 2 deepspeed_zero.py --stage 3 --offload

Weights: DeepSpeed divides each loss by the number of microbatches and averages over the ranks, so a loss that is a
sum over tokens is multiplied by both and divided by the number of tokens that all ranks have in the step. Every
token of the step has the same weight.
"""

import os

import deepspeed
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

import common


def parse():
    parser = common.flags(__doc__)
    parser.add_argument("--stage", type=int, choices=[0, 1, 2, 3], default=1)
    parser.add_argument("--offload", action="store_true", help="keep the optimizer's state on the CPU")
    parser.add_argument("--accumulate-dtype", choices=common.DTYPES, help="dtype of gradient accumulation")
    parser.add_argument("--local_rank", type=int, default=-1, help="passed by the deepspeed launcher")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("start this script with the deepspeed launcher or torchrun")
    return args


def configuration(args):
    zero = {"stage": args.stage}
    if args.offload:
        zero["offload_optimizer"] = {"device": "cpu"}
    config = {
        "train_micro_batch_size_per_gpu": args.micro_batch,
        "gradient_accumulation_steps": args.accumulate,
        "gradient_clipping": args.clip,
        "zero_optimization": zero,
        # Use torch's AdamW even with offload.
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": args.dtype == "bf16"},
        "fp16": {"enabled": args.dtype == "fp16", "initial_scale_power": 10},
        "steps_per_print": 1000000,
    }
    if args.accumulate_dtype:
        config["data_types"] = {"grad_accum_dtype": args.accumulate_dtype}
    return config


def build(args):
    torch.manual_seed(args.seed)
    config = configuration(args)
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=args.stage == 3):
        model = common.Model(args.width, args.layers, args.checkpoint)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    return engine


def main():
    args = parse()
    deepspeed.init_distributed()
    engine = build(args)
    rank, world, device = dist.get_rank(), dist.get_world_size(), engine.device
    data = common.Sentences(4096, args.seed)
    sampler = DistributedSampler(data, world, rank, seed=args.seed)
    loader = DataLoader(data, args.micro_batch, sampler=sampler, collate_fn=common.collate, drop_last=True)

    windows = common.windows(loader, args.accumulate)
    for step, window in zip(range(args.steps), windows):
        tokens = sum(common.targets(microbatch["labels"]) for microbatch in window).to(device)
        dist.all_reduce(tokens)
        total = torch.zeros((), device=device)
        for microbatch in window:
            logits = engine(microbatch["input_ids"].to(device))
            loss = common.summed_loss(logits, microbatch["labels"].to(device))
            loss = loss * world * args.accumulate / tokens
            engine.backward(loss)
            engine.step()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step}: loss {total.item() / world / args.accumulate:.4f}", flush=True)

    if args.out:
        engine.save_checkpoint(args.out)
    engine.destroy()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
