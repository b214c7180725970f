"""What each operation of a model gives in transformers, for `meshnet-node compare`: README.md says which."""
import importlib

import torch
from safetensors.torch import save_file

from .references import layers_of, load

IDS = (17, 900, 5)


class Recorder:
    """Records outputs by name while the model runs once."""

    def __init__(self, model):
        self.values, self.handles, self.model = {}, [], model
        self.rotary_calls = 0

    def keep(self, name, value):
        self.values[name] = value.detach().float().reshape(value.shape[0] * value.shape[1], -1).contiguous().clone()

    def output(self, module, name):
        def hook(_, __, result):
            self.keep(name, result[0] if isinstance(result, tuple) else result)
        self.handles.append(module.register_forward_hook(hook))

    def input(self, module, name):
        self.handles.append(module.register_forward_pre_hook(lambda _, args: self.keep(name, args[0])))

    def llama_layer(self, layer, name):
        attention = layer.self_attn
        self.output(layer.input_layernorm, f"{name}.attention_norm")
        for part in "qkv":
            self.output(getattr(attention, f"{part}_proj"), f"{name}.{part}")
        for part in "qk":
            if hasattr(attention, f"{part}_norm"):
                self.output(getattr(attention, f"{part}_norm"), f"{name}.{part}_norm")
        self.input(attention.o_proj, f"{name}.attention")
        self.input(layer.post_attention_layernorm, f"{name}.attention_residual")
        self.output(layer.post_attention_layernorm, f"{name}.mlp_norm")
        self.output(layer.mlp.gate_proj, f"{name}.gate")
        self.output(layer.mlp.up_proj, f"{name}.up")
        self.input(layer.mlp.down_proj, f"{name}.mlp_activation")
        self.output(layer, f"{name}.hidden")

    def gpt2_layer(self, layer, name):
        self.output(layer.ln_1, f"{name}.attention_norm")

        def split(_, __, result):
            for part, value in zip("qkv", result.chunk(3, dim=-1)):
                self.keep(f"{name}.{part}", value)
        self.handles.append(layer.attn.c_attn.register_forward_hook(split))
        self.input(layer.attn.c_proj, f"{name}.attention")
        self.input(layer.ln_2, f"{name}.attention_residual")
        self.output(layer.ln_2, f"{name}.mlp_norm")
        self.output(layer.mlp.c_fc, f"{name}.up")
        self.input(layer.mlp.c_proj, f"{name}.mlp_activation")
        self.output(layer, f"{name}.hidden")

    def rotary(self, function):
        """apply_rotary_pos_emb, called once a layer: q, k of [1, heads, T, d]."""
        def recorded(*args, **named):
            q, k = function(*args, **named)
            for part, value in (("q", q), ("k", k)):
                self.keep(f"layer.{self.rotary_calls}.{part}_rotated", value.transpose(1, 2).flatten(2))
            self.rotary_calls += 1
            return q, k
        return recorded


@torch.no_grad()
def record(model, ids):
    recorder = Recorder(model)
    gpt2 = model.config.model_type == "gpt2"
    code = importlib.import_module(type(model).__module__)
    plain = None if gpt2 else code.apply_rotary_pos_emb
    body = model.transformer if gpt2 else model.model
    for index, layer in enumerate(layers_of(model)):
        (recorder.gpt2_layer if gpt2 else recorder.llama_layer)(layer, f"layer.{index}")
    recorder.input(layers_of(model)[0].ln_1 if gpt2 else layers_of(model)[0].input_layernorm, "embedding")
    recorder.output(body.ln_f if gpt2 else body.norm, "final_norm")
    if plain:
        code.apply_rotary_pos_emb = recorder.rotary(plain)
    try:
        recorder.keep("logits", model(torch.tensor([list(ids)])).logits)
    finally:
        if plain:
            code.apply_rotary_pos_emb = plain
        for handle in recorder.handles:
            handle.remove()
    rows = len(ids)
    tensors = {name: value.reshape(rows, -1).contiguous() for name, value in recorder.values.items()}
    return tensors | {"ids": torch.tensor(list(ids), dtype=torch.int32)}


def make(here, folder=None, target=None) -> None:
    """The committed one, or any folder's: make.py operations FOLDER TARGET."""
    folder = folder or here / "checkpoints" / "tiny-qwen3"
    target = target or here / "operations" / "tiny-qwen3.safetensors"
    tensors = record(load(folder), IDS)
    save_file(tensors, target)
    print(target, len(tensors), sum(t.numel() * t.element_size() for t in tensors.values()))
