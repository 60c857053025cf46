"""A model that costs next to nothing: Llama's shape in small, random weights, and another model's tokenizer."""

import shutil
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

_SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    # Ten times the usual: probabilities far enough apart that rounding does not decide.
    "initializer_range": 0.2,
}


def tiny_model(like: Path, target: Path, *, seed: int) -> Path:
    """A model in the directory `target` that reads text as the one in `like` does. With another seed it is another
    model of the same shape: nothing but its answers would tell that their KV was mixed up."""
    vocabulary = LlamaConfig.from_pretrained(like)
    special = {name: getattr(vocabulary, name) for name in ("vocab_size", "bos_token_id", "eos_token_id")}
    torch.manual_seed(seed)
    LlamaForCausalLM(LlamaConfig(**_SHAPE, **special)).save_pretrained(target)
    for file in (*like.glob("tokenizer*"), *like.glob("*.jinja"), *like.glob("special_tokens*")):
        shutil.copy(file, target)
    return target
