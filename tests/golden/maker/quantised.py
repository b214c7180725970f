"""A tiny checkpoint and what bitsandbytes makes of it: ../README.md says what each file holds."""
import json
import shutil

import bitsandbytes.functional as bnb
import torch
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Qwen2Config

from . import fp8
from .checkpoints import randomise

# Rows of mlp.down_proj are 336 long, no multiple of 64, so that blocks run across rows; gate and up have more than 256
# blocks, so that the second quantisation has two blocks.
CONFIG = Qwen2Config(vocab_size=256, hidden_size=64, intermediate_size=336, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=True, bos_token_id=0,
                     eos_token_id=0)
FORMATS = {
    "int8": BitsAndBytesConfig(load_in_8bit=True),
    "nf4": BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16),
    "nf4-double": BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                                     bnb_4bit_compute_dtype=torch.bfloat16),
}
LENGTH = 16
TOP = 16


def int8(weight):
    codes, scale, _ = bnb.int8_vectorwise_quant(weight.to(torch.float16))
    return bnb.int8_vectorwise_dequant(codes, scale)


def meant_by(packed, state):
    """By the portable code: the compiled CPU code of 0.50.2 lets no block run across rows, unlike all others."""
    absmax = state.absmax
    if state.nested:
        absmax = bnb.dequantize_blockwise(absmax, state.state2) + state.offset
    return _dequantize_4bit_compute(packed.reshape(-1), absmax, state.code, 64, state.shape, torch.float32)


def nf4(weight):
    return meant_by(*bnb.quantize_4bit(weight, blocksize=64, quant_type="nf4"))


def linears(model):
    return {name: module for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear) and name != "lm_head"}


def stored(model):
    """What the codes of a loaded checkpoint mean, in float32."""
    weights = {}
    for name, module in linears(model).items():
        weight = module.weight
        if hasattr(weight, "quant_state") and weight.quant_state is not None:
            weights[name] = meant_by(weight.data, weight.quant_state)
        else:
            weights[name] = bnb.int8_vectorwise_dequant(weight.CB if weight.CB is not None else weight.data, weight.SCB)
    return weights


@torch.no_grad()
def forward(path, change, ids):
    """Logits in float32 of the original with some weights exchanged."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    change(model)
    return model(torch.tensor([ids])).logits[0].float().contiguous()


def put(weights, table=None):
    def change(model):
        for name, module in linears(model).items():
            module.weight.data = weights[name].float().reshape(module.weight.shape)
        if table is not None:
            model.model.embed_tokens.weight.data = table
    return change


def divergence(reference, logits):
    p, q = reference.double().log_softmax(-1), logits.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1).mean().item()


@torch.no_grad()
def smollm2(here, path) -> None:
    """What float32 makes of SmolLM2 when it is quantised at load, along the first answers of smollm2/reference.json."""
    answers = json.loads((here / "smollm2" / "reference.json").read_text())[:3]
    exact = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    variants, table = {}, int8(exact.model.embed_tokens.weight.data)
    for name, quantise in (("int8", int8), ("nf4", nf4), ("fp8", fp8.rows)):
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
        put({key: quantise(module.weight.data) for key, module in linears(model).items()}, table)(model)
        texts, kl = [], []
        for answer in answers:
            ids = answer["prompt_ids"] + answer["completion_ids"]
            logits = model(torch.tensor([ids])).logits[0]
            answered = slice(len(answer["prompt_ids"]) - 1, -1)
            kl.append(divergence(exact(torch.tensor([ids])).logits[0, answered], logits[answered]))
            top = logits.double().log_softmax(-1).topk(TOP)
            texts.append(dict(ids=ids, top_ids=top.indices.tolist(),
                              top_logprobs=[[round(v, 5) for v in row] for row in top.values.tolist()]))
        variants[name] = dict(kl=sum(kl) / len(kl), texts=texts)
    out = here / "smollm2" / "quantised.json"
    out.write_text(json.dumps(variants, separators=(",", ":")) + "\n")
    print({name: v["kl"] for name, v in variants.items()}, out.stat().st_size)


@torch.no_grad()
def whole_rows(here, ids, add) -> None:
    """../checkpoints/tiny-llama, whose rows are whole blocks of 64, as a GPU's own kernels want them, made at load."""
    path = here / "checkpoints" / "tiny-llama"
    source = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    plain = {name: module.weight.data for name, module in linears(source).items()}
    head = int8(source.lm_head.weight.data)

    def change(quantise):
        def apply(model):
            put({name: quantise(weight) for name, weight in plain.items()})(model)
            model.lm_head.weight.data = head.float()
        return apply

    exact = forward(path, lambda _: None, ids)
    add("tiny-llama", exact, exact)
    for name, quantise in (("int8", int8), ("nf4", nf4), ("fp8", fp8.rows)):
        add(f"tiny-llama-{name}", exact, forward(path, change(quantise), ids))


def make(here) -> None:
    out = here / "quantised"
    shutil.rmtree(out, ignore_errors=True)
    model = AutoModelForCausalLM.from_config(CONFIG, dtype=torch.float32)
    randomise(model, 99)
    model.to(torch.bfloat16).save_pretrained(out / "original")
    ids = torch.randint(3, 256, (LENGTH,), generator=torch.Generator().manual_seed(5)).tolist()
    exact = forward(out / "original", lambda _: None, ids)
    tensors, numbers = {"original.logits": exact}, dict(ids=ids, kl={})

    def add(name, change):
        tensors[f"{name}.logits"] = logits = forward(out / "original", change, ids)
        numbers["kl"][name] = divergence(exact, logits)

    for name, quantisation in FORMATS.items():
        quantised = AutoModelForCausalLM.from_pretrained(out / "original", quantization_config=quantisation,
                                                         dtype=torch.bfloat16, device_map="cpu")
        quantised.save_pretrained(out / name)
        weights = stored(quantised)
        add(name, put(weights))
        for module in ("model.layers.0.self_attn.k_proj", "model.layers.1.mlp.down_proj"):
            tensors[f"{name}.{module}"] = weights[module][-16:].float().contiguous()

    # The same made at load: every matrix, and the tied table as INT8 rows; rows of broken blocks are INT8.
    source = AutoModelForCausalLM.from_pretrained(out / "original", dtype=torch.bfloat16)
    plain = {name: module.weight.data for name, module in linears(source).items()}
    table = int8(source.model.embed_tokens.weight.data)
    add("load-fp8", put({name: fp8.rows(w) for name, w in plain.items()}, table))
    add("load-int8", put({name: int8(w) for name, w in plain.items()}, table))
    add("load-nf4", put({name: nf4(w) if w.shape[1] % 64 == 0 else int8(w) for name, w in plain.items()}, table))

    def add_whole(name, original, logits):
        tensors[f"{name}.logits"] = logits
        if original is not logits:
            numbers["kl"][name] = divergence(original, logits)

    def add_fp8(name, original, logits):
        tensors[f"{name}.original.logits"], tensors[f"{name}.logits"] = original, logits
        numbers["kl"][name] = divergence(original, logits)

    whole_rows(here, ids[:8], add_whole)
    fp8.make(out, ids, add_fp8, lambda name, weight: tensors.update({name: weight[-16:].contiguous()}))
    for path in [*FORMATS, "original"]:
        (out / path / "generation_config.json").unlink()
    save_file(tensors, out / "golden.safetensors")
    (out / "golden.json").write_text(json.dumps(numbers) + "\n")
    print(numbers["kl"], sum(f.stat().st_size for f in out.rglob("*") if f.is_file()))
