"""A training loop with megatron-core's DistributedDataParallel, schedule and optimizer.

    torchrun --nproc-per-node 2 megatron_core.py --accumulate 3 --dtype bf16
    torchrun --nproc-per-node 2 megatron_core.py --accumulate 3 --distributed-optimizer --per-token-loss

Gradients are added up in `main_grad`, a view of one fp32 buffer. Weights: with --per-token-loss the loss is a sum over
tokens, and megatron-core divides the gradients by the number of tokens that all ranks have in the step, so that every
token of the step has the same weight. Otherwise the loss is a mean, and megatron-core averages over the microbatches
and the ranks, so that every microbatch has the same weight.
"""

import os

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.enums import ModelType
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import MegatronModule
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, DistributedSampler

import common


def parse():
    parser = common.flags(__doc__)
    parser.add_argument("--distributed-optimizer", action="store_true", help="shard the optimizer's state")
    parser.add_argument("--per-token-loss", action="store_true", help="divide by the tokens of the whole step")
    parser.add_argument("--overlap", action="store_true", help="reduce gradients during the backward")
    parser.add_argument("--average-in-collective", action="store_true")
    parser.add_argument("--bucket-size", type=int, help="parameters in a bucket, with --overlap")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("start this script with torchrun")
    return args


class WithoutGpu(TorchFunctionMode):
    """Lets megatron-core run on CPUs: its code asks for the device "cuda", for the current device of CUDA, and for the
    types of CUDA's tensors."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        result = function(*args, **kwargs)
        if function is torch.Tensor.type and isinstance(result, str):
            return result.replace("torch.", "torch.cuda.")
        return result

    def __enter__(self):
        torch.cuda.current_device = lambda: "cpu"
        return super().__enter__()


class Language(MegatronModule):
    """The model with the interface that the schedule expects."""

    def __init__(self, config, args):
        super().__init__(config)
        self.model_type = ModelType.encoder_or_decoder
        self.model = common.Model(args.width, args.layers, args.checkpoint)

    def set_input_tensor(self, tensors):
        """Called with the output of the preceding pipeline stage, which this model does not have."""

    def forward(self, input_ids):
        return self.model(input_ids)


def build(args, device):
    torch.manual_seed(args.seed)
    precision = {
        "bf16": args.dtype == "bf16",
        "fp16": args.dtype == "fp16",
        "params_dtype": common.DTYPES[args.dtype],
    }
    config = TransformerConfig(
        num_layers=args.layers,
        hidden_size=args.width,
        num_attention_heads=4,
        calculate_per_token_loss=args.per_token_loss,
        # As Megatron-LM's own training.
        deallocate_pipeline_outputs=True,
        **precision,
    )
    ddp = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=args.overlap,
        use_distributed_optimizer=args.distributed_optimizer,
        average_in_collective=args.average_in_collective,
        bucket_size=args.bucket_size,
    )
    model = Language(config, args).to(device, precision["params_dtype"])
    model = DistributedDataParallel(config, ddp, model)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=args.lr,
            clip_grad=args.clip,
            use_distributed_optimizer=args.distributed_optimizer,
            initial_loss_scale=2.0**12,
            **precision,
        ),
        [model],
    )
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    if args.overlap:
        config.no_sync_func = model.no_sync
    return model, optimizer


def forward_step(microbatches, model):
    """The forward of a microbatch, and the function that computes its loss, as the schedule expects them."""
    microbatch, device = next(microbatches), next(model.parameters()).device
    labels = microbatch["labels"].to(device)
    logits = model(microbatch["input_ids"].to(device))

    def loss_of(logits):
        loss, tokens = common.summed_loss(logits, labels), common.targets(labels).int()
        return loss, tokens, {"loss": loss.detach().clone(), "tokens": tokens}

    return logits, loss_of


def train(args, rank, world, device):
    model, optimizer = build(args, device)
    data = common.Sentences(4096, args.seed)
    sampler = DistributedSampler(data, world, rank, seed=args.seed)
    loader = DataLoader(data, args.micro_batch, sampler=sampler, collate_fn=common.collate, drop_last=True)

    windows = common.windows(loader, args.accumulate)
    forward_backward = get_forward_backward_func()
    for step, window in zip(range(args.steps), windows):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        reports = forward_backward(
            forward_step_func=forward_step,
            data_iterator=iter(window),
            model=[model],
            num_microbatches=args.accumulate,
            seq_length=common.LONGEST,
            micro_batch_size=args.micro_batch,
        )
        optimizer.step()
        total = torch.stack([torch.stack([it["loss"], it["tokens"].float()]) for it in reports]).sum(0)
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step}: loss {(total[0] / total[1]).item():.4f}", flush=True)

    if args.out and rank == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save(model.module.model.state_dict(), os.path.join(args.out, "model.pt"))


def main():
    args = parse()
    device = common.accelerator(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(dist.get_default_backend_for_device(device))
    parallel_state.initialize_model_parallel()
    train(args, dist.get_rank(), dist.get_world_size(), device)
    dist.destroy_process_group()


if __name__ == "__main__":
    if torch.accelerator.is_available():
        main()
    else:
        with WithoutGpu():
            main()
