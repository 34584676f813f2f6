"""The Trainer of Hugging Face transformers on a small Llama with random weights; nothing is downloaded.

    torchrun --nproc-per-node 2 hf_trainer.py --accumulate 4
    accelerate launch --num_processes 2 hf_trainer.py --accumulate 4
    python hf_trainer.py --accumulate 4

Weights: the Trainer counts the targets of all microbatches of a step, on all ranks, and the model divides the sum
of its losses by that number: every token of the step has the same weight. (Releases before 4.46 took the mean of each
microbatch, and the mean of those means.)
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import common


class Samples(common.Sentences):
    """Sentences as dictionaries, because the Trainer drops rows without keys."""

    def __getitem__(self, index):
        return {"input_ids": super().__getitem__(index)}


def collate(samples):
    return common.collate([sample["input_ids"] for sample in samples])


def parse():
    parser = common.flags(__doc__)
    parser.add_argument("--amp", action="store_true", help="fp32 parameters, autocast to --dtype")
    parser.add_argument("--tie", action="store_true", help="one weight for embedding and head")
    parser.add_argument("--deepspeed", help="a DeepSpeed configuration")
    parser.add_argument("--no-report", action="store_true", help="no trackers and no progress bar")
    return parser.parse_args()


def build(args):
    config = LlamaConfig(
        vocab_size=common.VOCABULARY,
        hidden_size=args.width,
        intermediate_size=2 * args.width,
        num_hidden_layers=args.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=common.LONGEST,
        tie_word_embeddings=args.tie,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    return model if args.amp else model.to(common.DTYPES[args.dtype])


def settings(args):
    recompute = {}
    if args.checkpoint != "none":
        recompute["gradient_checkpointing"] = True
        recompute["gradient_checkpointing_kwargs"] = {"use_reentrant": args.checkpoint == "reentrant"}
    return TrainingArguments(
        output_dir=args.out or "trainer_output",
        max_steps=args.steps,
        per_device_train_batch_size=args.micro_batch,
        gradient_accumulation_steps=args.accumulate,
        learning_rate=args.lr,
        # The default of 1e-8 is 0 in fp16.
        adam_epsilon=1e-4 if args.dtype == "fp16" and not args.amp else 1e-8,
        max_grad_norm=args.clip,
        bf16=args.amp and args.dtype == "bf16",
        fp16=args.amp and args.dtype == "fp16",
        deepspeed=args.deepspeed,
        seed=args.seed,
        use_cpu=not torch.accelerator.is_available(),
        logging_steps=1,
        save_strategy="no",
        report_to="none" if args.no_report else "all",
        disable_tqdm=args.no_report,
        **recompute,
    )


def main():
    args = parse()
    arguments = settings(args)
    torch.manual_seed(args.seed)
    trainer = Trainer(
        model=build(args),
        args=arguments,
        train_dataset=Samples(4096, args.seed),
        data_collator=collate,
    )
    trainer.train()
    if args.out:
        trainer.save_model(args.out)


if __name__ == "__main__":
    main()
