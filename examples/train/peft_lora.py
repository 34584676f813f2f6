"""A LoRA adapter of Hugging Face PEFT on a small Llama with random weights, under DDP; nothing is downloaded.

    torchrun --nproc-per-node 2 peft_lora.py --accumulate 4
    python peft_lora.py --accumulate 4

Weights: DDP averages over the ranks, so a loss that is a sum over tokens is multiplied by the number of ranks and
divided by the number of tokens that all ranks have in the step: every token of the step has the same weight.
"""

import contextlib
import os

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from transformers import LlamaConfig, LlamaForCausalLM

import common


def parse():
    parser = common.flags(__doc__)
    parser.add_argument("--adapter-rank", type=int, default=4, help="rank of the matrices of the adapter")
    return parser.parse_args()


def build(args, device):
    config = LlamaConfig(
        vocab_size=common.VOCABULARY,
        hidden_size=args.width,
        intermediate_size=2 * args.width,
        num_hidden_layers=args.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=common.LONGEST,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
    )
    model = LlamaForCausalLM(config).to(device, common.DTYPES[args.dtype])
    adapter = LoraConfig(
        r=args.adapter_rank, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
    )
    model = get_peft_model(model, adapter, autocast_adapter_dtype=False)
    if args.checkpoint != "none":
        # The embedding is frozen, and a checkpoint without an input that requires gradients has no backward.
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable({"use_reentrant": args.checkpoint == "reentrant"})
    return model


def main():
    args = parse()
    world, rank = 1, 0
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    device = common.accelerator(local_rank)
    if "RANK" in os.environ:
        dist.init_process_group(dist.get_default_backend_for_device(device))
        world, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(args.seed)
    model = build(args, device)
    wrapped = DistributedDataParallel(model) if world > 1 else model
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # The default of 1e-8 is 0 in fp16.
    optimizer = torch.optim.AdamW(trained, lr=args.lr, eps=1e-4 if args.dtype == "fp16" else 1e-8)
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
            quiet = index < len(window) - 1 and world > 1
            microbatch = {name: tensor.to(device) for name, tensor in microbatch.items()}
            with wrapped.no_sync() if quiet else contextlib.nullcontext():
                logits = wrapped(microbatch["input_ids"], attention_mask=microbatch["attention_mask"]).logits
                loss = common.summed_loss(logits, microbatch["labels"]) * world / tokens
                loss.backward()
            total += loss.detach()
        if args.clip:
            torch.nn.utils.clip_grad_norm_(trained, args.clip)
        optimizer.step()
        optimizer.zero_grad()
        if world > 1:
            dist.all_reduce(total)
        if rank == 0:
            print(f"step {step}: loss {total.item() / world:.4f}", flush=True)

    if args.out and rank == 0:
        model.save_pretrained(args.out)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
