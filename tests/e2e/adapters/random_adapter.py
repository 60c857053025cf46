"""Random LoRA adapters in PEFT's format: small files that change what a model answers, each in its own way."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

RANK = 8
# Keys and values among them: else adapters would share the base model's KV, and nothing could be mixed up.
_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")


def random_adapter(model: Path, target: Path, *, seed: int, scale: float) -> Path:
    """An adapter for the Llama-shaped model in `model`, as the directory `target`. `scale`: the size of its change to
    each projection, beside projections of about 1 a row."""
    config = json.loads((model / "config.json").read_text())
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head = config.get("head_dim") or hidden // heads
    keys = head * config["num_key_value_heads"]
    shapes = {
        "q_proj": (hidden, head * heads),
        "k_proj": (hidden, keys),
        "v_proj": (hidden, keys),
        "o_proj": (head * heads, hidden),
    }
    draw = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, (wide, out) in shapes.items():
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{at}.lora_A.weight"] = torch.randn(RANK, wide, generator=draw) / wide**0.5
            tensors[f"{at}.lora_B.weight"] = torch.randn(out, RANK, generator=draw) * scale / RANK**0.5
    target.mkdir(parents=True)
    save_file(tensors, target / "adapter_model.safetensors")
    peft = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": RANK, "bias": "none"}
    (target / "adapter_config.json").write_text(json.dumps({**peft, "target_modules": list(_TARGETS)}))
    return target
