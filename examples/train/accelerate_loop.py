"""A hand-written training loop with Hugging Face accelerate.

    accelerate launch --num_processes 2 accelerate_loop.py --accumulate 4
    torchrun --nproc-per-node 2 accelerate_loop.py --accumulate 4
    python accelerate_loop.py --accumulate 4

Without GPUs, `accelerate launch` starts one process, whatever --num_processes says; torchrun starts two.

Weights: accelerate divides each loss by the number of microbatches and DDP averages over the ranks, so a loss that
is a sum over tokens is multiplied by both and divided by the number of tokens that all ranks have in the step.
Every token of the step has the same weight.
"""

import os

import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin, set_seed
from torch.utils.data import DataLoader

import common


def parse():
    parser = common.flags(__doc__)
    parser.add_argument("--amp", action="store_true", help="fp32 parameters, autocast to --dtype")
    parser.add_argument("--tie", action="store_true", help="one weight for embedding and head")
    return parser.parse_args()


def prepare(args):
    # Microbatches are fetched a step ahead, so the end of the data does not end a step.
    accumulation = GradientAccumulationPlugin(num_steps=args.accumulate, sync_with_dataloader=False)
    accelerator = Accelerator(
        mixed_precision={"fp32": "no"}.get(args.dtype, args.dtype) if args.amp else "no",
        gradient_accumulation_plugin=accumulation,
        cpu=not torch.accelerator.is_available(),
    )
    set_seed(args.seed)
    model = common.Model(args.width, args.layers, args.checkpoint, args.tie)
    if not args.amp:
        model.to(common.DTYPES[args.dtype])
    # The default of 1e-8 is 0 in fp16.
    eps = 1e-4 if args.dtype == "fp16" and not args.amp else 1e-8
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, eps=eps)
    data = common.Sentences(4096, args.seed)
    loader = DataLoader(data, args.micro_batch, shuffle=True, collate_fn=common.collate, drop_last=True)
    return accelerator, *accelerator.prepare(model, optimizer, loader)


def main():
    args = parse()
    accelerator, model, optimizer, loader = prepare(args)
    world = accelerator.num_processes

    windows = common.windows(loader, args.accumulate)
    for step, window in zip(range(args.steps), windows):
        tokens = sum(common.targets(microbatch["labels"]) for microbatch in window)
        tokens = accelerator.reduce(tokens, "sum")
        total = torch.zeros((), device=accelerator.device)
        for microbatch in window:
            with accelerator.accumulate(model):
                logits = model(microbatch["input_ids"])
                loss = common.summed_loss(logits, microbatch["labels"])
                loss = loss * world * args.accumulate / tokens
                accelerator.backward(loss)
                if accelerator.sync_gradients and args.clip:
                    accelerator.clip_grad_norm_(model.parameters(), args.clip)
                optimizer.step()
                optimizer.zero_grad()
            total += loss.detach()
        total = accelerator.reduce(total, "mean").item() / args.accumulate
        accelerator.print(f"step {step}: loss {total:.4f}", flush=True)

    if args.out:
        state = accelerator.get_state_dict(model)
        if accelerator.is_main_process:
            os.makedirs(args.out, exist_ok=True)
            accelerator.save(state, os.path.join(args.out, "model.pt"))
    accelerator.end_training()


if __name__ == "__main__":
    main()
