"""The SFTTrainer of TRL on a small Llama with random weights and synthetic sentences; nothing is downloaded.

    torchrun --nproc-per-node 2 trl_sft.py --accumulate 4
    python trl_sft.py --accumulate 4

Weights: SFTTrainer is a Trainer of transformers, which counts the targets of all microbatches of a step, on all ranks;
the model divides the sum of its losses by that number: every token of the step has the same weight.
"""

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

import common


def parse():
    parser = common.flags(__doc__)
    parser.add_argument("--amp", action="store_true", help="fp32 parameters, autocast to --dtype")
    return parser.parse_args()


def build(args):
    config = LlamaConfig(
        vocab_size=common.VOCABULARY + 1,
        hidden_size=args.width,
        intermediate_size=2 * args.width,
        num_hidden_layers=args.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=common.LONGEST,
        pad_token_id=common.VOCABULARY,
        bos_token_id=None,
        eos_token_id=common.VOCABULARY,
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    return model if args.amp else model.to(common.DTYPES[args.dtype])


def tokenizer():
    """A tokenizer whose words are the numbers of the tokens; SFTTrainer takes the padding token from the tokenizer."""
    words = {str(token): token for token in range(common.VOCABULARY)} | {"<end>": common.VOCABULARY}
    text = Tokenizer(models.WordLevel(words, unk_token="<end>"))
    return PreTrainedTokenizerFast(tokenizer_object=text, pad_token="<end>", eos_token="<end>")


def sentences(args):
    source = common.Sentences(4096, args.seed)
    return Dataset.from_dict({"input_ids": [source[index].tolist() for index in range(len(source))]})


def settings(args):
    return SFTConfig(
        output_dir=args.out or "trainer_output",
        max_steps=args.steps,
        max_length=common.LONGEST,
        per_device_train_batch_size=args.micro_batch,
        gradient_accumulation_steps=args.accumulate,
        gradient_checkpointing=args.checkpoint != "none",
        gradient_checkpointing_kwargs={"use_reentrant": args.checkpoint == "reentrant"},
        learning_rate=args.lr,
        # The default of 1e-8 is 0 in fp16.
        adam_epsilon=1e-4 if args.dtype == "fp16" and not args.amp else 1e-8,
        max_grad_norm=args.clip,
        bf16=args.amp and args.dtype == "bf16",
        fp16=args.amp and args.dtype == "fp16",
        seed=args.seed,
        use_cpu=not torch.accelerator.is_available(),
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def main():
    args = parse()
    torch.manual_seed(args.seed)
    trainer = SFTTrainer(
        model=build(args),
        args=settings(args),
        train_dataset=sentences(args),
        processing_class=tokenizer(),
    )
    trainer.train()
    if args.out:
        trainer.save_model(args.out)


if __name__ == "__main__":
    main()
