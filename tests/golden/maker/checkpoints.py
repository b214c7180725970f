"""Tiny checkpoints with random weights: one for each thing that a family's loader and layers can get wrong.

Norms and biases are random as well (their defaults, 0 and 1, hide bugs), and the scales give logits with a standard
deviation near 2, so that most arg-maxes have a margin.
"""
import json
import shutil

import torch
from transformers import (AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config)

VOCAB = 2048
IDS = dict(bos_token_id=0, eos_token_id=0)
BASE = dict(vocab_size=VOCAB, hidden_size=128, intermediate_size=256, num_hidden_layers=6, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=False, **IDS)
SHORT = BASE | dict(num_hidden_layers=4, tie_word_embeddings=True)


def rope(kind, theta=10000.0, **rest):
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=theta, **rest))


LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)

# name → (configuration, what it is for)
CONFIGS = {
    "tiny-gpt2": GPT2Config(vocab_size=VOCAB, n_embd=128, n_layer=6, n_head=4, n_positions=512, **IDS),
    "tiny-llama": LlamaConfig(**BASE, **rope("llama3", **LLAMA3)),
    "tiny-llama-linear": LlamaConfig(**SHORT, attention_bias=True, mlp_bias=True, **rope("linear", factor=4.0)),
    "tiny-llama-yarn": LlamaConfig(**SHORT, **rope("yarn", factor=8.0, original_max_position_embeddings=64)),
    "tiny-llama-dynamic": LlamaConfig(**SHORT | dict(max_position_embeddings=200), **rope("dynamic", factor=4.0)),
    "tiny-mistral": MistralConfig(**BASE, sliding_window=32, head_dim=32),
    "tiny-qwen2": Qwen2Config(**BASE | dict(tie_word_embeddings=True), **rope("default", theta=1e6)),
    "tiny-qwen2-window": Qwen2Config(**SHORT, use_sliding_window=True, sliding_window=24, max_window_layers=2),
    "tiny-qwen3": Qwen3Config(**BASE, head_dim=64, **rope("default", theta=1e6)),
}


def randomise(model, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    normal = lambda t, std: torch.randn(t.shape, generator=g) * std
    conv1d = model.config.model_type == "gpt2"  # weights lie as [in, out]
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            if name.endswith("bias"):
                p.copy_(normal(p, 0.1))
            elif p.dim() == 1:
                p.copy_(1 + normal(p, 0.2))
            elif "wpe" in name:
                p.copy_(normal(p, 0.1))
            elif "embed" in name or "wte" in name or "lm_head" in name:
                p.copy_(normal(p, 2 / p.shape[1] ** 0.5))
            else:
                fan_in = p.shape[0] if conv1d else p.shape[1]
                p.copy_(normal(p, (1.4 if "q_proj" in name or "k_proj" in name else 0.7) / fan_in ** 0.5))


def old_style(source, target) -> None:
    """The same model with a configuration as transformers 4 wrote it: rope_theta and rope_scaling, torch_dtype."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    config = json.loads((target / "config.json").read_text())
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    config["rope_scaling"] = parameters
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.46.0"
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def make(here, names) -> None:
    out = here / "checkpoints"
    for seed, (name, config) in enumerate(CONFIGS.items()):
        if names and name not in names:
            continue
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        randomise(model, seed)
        model.to(torch.bfloat16).save_pretrained(out / name)
        shutil.copy(out / "qwen3" / "tokenizer.json", out / name / "tokenizer.json")
        print(name, sum(f.stat().st_size for f in (out / name).iterdir()))
    if not names or "tiny-llama-4x" in names:
        old_style(out / "tiny-llama", out / "tiny-llama-4x")
