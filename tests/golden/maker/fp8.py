"""Tiny checkpoints with FP8 weights: ../README.md says what each file holds.

E4M3 as torch rounds it; a scale is the largest magnitude of what it stands for, divided by 448.
"""
import json
import shutil

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from .checkpoints import randomise

# No size is a multiple of 128 but the attention's width, so that blocks at the edges are partial.
SIZES = dict(vocab_size=256, hidden_size=160, intermediate_size=144, num_hidden_layers=2, num_attention_heads=2,
             num_key_value_heads=1, head_dim=64, max_position_embeddings=128, tie_word_embeddings=False, bos_token_id=0,
             eos_token_id=0)
SIDE = 128
LARGEST = 448.0


def codes(weight, scale):
    """`scale`, in float32, has the weight's shape or spreads over it."""
    return (weight / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)


def rows(weight):
    """FP8 as the engine makes it at load, in float32."""
    weight = weight.float()
    scale = weight.abs().amax(1, keepdim=True) / LARGEST
    return torch.where(scale == 0, torch.zeros(()), codes(weight, torch.where(scale == 0, 1.0, scale)).float() * scale)


def block_scales(weight):
    out, width = (-(-size // SIDE) for size in weight.shape)
    blocks = [[weight[i * SIDE:(i + 1) * SIDE, j * SIDE:(j + 1) * SIDE].abs().max() for j in range(width)] for i in range(out)]
    return torch.tensor(blocks) / LARGEST


def spread(scale, shape):
    return scale.repeat_interleave(SIDE, 0)[:shape[0]].repeat_interleave(SIDE, 1)[:, :shape[1]]


def in_blocks(weight, dtype):
    scale = block_scales(weight)
    # A power of two that is no smaller, or the nearest bfloat16.
    scale = scale.log2().ceil().exp2().to(dtype) if dtype == torch.float8_e8m0fnu else scale.to(dtype)
    wide = spread(scale.float(), weight.shape)
    code = codes(weight, wide)
    return {"": code, "_scale_inv": scale}, code.float() * wide


def in_rows(weight, dtype, shape):
    scale = (weight.abs().max() if shape == [1] else weight.abs().amax(1)) / LARGEST
    scale = scale.to(dtype).reshape(shape)
    wide = scale.float().reshape(-1, 1)
    code = codes(weight, wide)
    return {"": code, "_scale": scale}, code.float() * wide


def block(name, weight):
    if ".layers.0." in name:
        return in_blocks(weight, torch.float32)
    return in_blocks(weight, torch.bfloat16 if "self_attn" in name else torch.float8_e8m0fnu)


def channel(name, weight):
    if ".layers.0." in name:
        made, meant = in_rows(weight, torch.float32, [-1, 1])
        made["/input_scale"] = torch.tensor([0.5])
        if "k_proj" in name:
            made["/k_scale"] = torch.tensor(0.25)
        return made, meant
    return in_rows(weight, torch.bfloat16, [1] if "o_proj" in name else [-1])


# name → (model, what becomes of a linear layer's weight, modules that stay bfloat16, quantization_config)
FORMATS = {
    "fp8-block": (Qwen3Config(**SIZES), block, ["lm_head", "model.layers.1.mlp.down_proj"],
                  dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[128, 128],
                       modules_to_not_convert=["lm_head", "model.layers.1.mlp.down_proj"])),
    "fp8-channel": (LlamaConfig(**SIZES), channel, ["lm_head", "model.layers.0.mlp.down_proj"],
                    dict(quant_method="compressed-tensors", format="float-quantized", quantization_status="compressed",
                         config_groups=dict(group_0=dict(
                             targets=["Linear"],
                             weights=dict(num_bits=8, type="float", strategy="channel", symmetric=True, dynamic=False),
                             input_activations=dict(num_bits=8, type="float", strategy="token", dynamic=True))),
                         ignore=["re:.*lm_head", "model.layers.0.mlp.down_proj"])),
}


@torch.no_grad()
def make(out, ids, add, keep) -> None:
    """Writes the checkpoints below `out`; add(name, original's logits, logits), keep(name, tensor)."""
    for seed, (name, (config, quantise, kept, stated)) in enumerate(FORMATS.items()):
        shutil.rmtree(out / name, ignore_errors=True)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        randomise(model, 200 + seed)
        model.to(torch.bfloat16).save_pretrained(out / name)
        (out / name / "generation_config.json").unlink()
        stored = load_file(out / name / "model.safetensors")
        model = AutoModelForCausalLM.from_pretrained(out / name, dtype=torch.float32, attn_implementation="eager").eval()
        logits = lambda: model(torch.tensor([ids])).logits[0].contiguous()
        original = logits()
        for module, linear in model.named_modules():
            if not isinstance(linear, torch.nn.Linear) or module in kept:
                continue
            weight = f"{module}.weight"
            made, meant = quantise(module, linear.weight.data)
            for suffix, tensor in made.items():
                key = f"{module}.{suffix[1:]}" if suffix.startswith("/") else weight + suffix
                stored[key] = tensor.contiguous()
            linear.weight.data = meant
            if module.endswith(("layers.0.self_attn.k_proj", "layers.1.mlp.up_proj")):
                keep(f"{name}.{module}", meant)
        add(name, original, logits())
        save_file(stored, out / name / "model.safetensors", metadata={"format": "pt"})
        path = out / name / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | dict(quantization_config=stated), indent=2) + "\n")
