#!/usr/bin/env python3
"""Copies a HuggingFace SafeTensors checkpoint with NaN in every tensor that layers [A, B) do not need.

    poison.py SOURCE TARGET A B

A stage that runs [A, B) on the copy gives the right values only if it reads no other tensor. Kept are the layers'
tensors, the embeddings when A is 0 (or when B ends the model and the head is tied to them), and the final norm and
lm_head when B ends the model. Integer tensors, which have no NaN, become all ones bits. Prints one line: tensors and
bytes kept and poisoned. Needs nothing but Python.
"""
import argparse
import json
import re
import shutil
import struct
import sys
from pathlib import Path

# Little-endian NaN of each type that has one.
NAN = {"F64": b"\0\0\0\0\0\0\xf8\x7f", "F32": b"\0\0\xc0\x7f", "BF16": b"\xc0\x7f", "F16": b"\0\x7e",
       "F8_E4M3": b"\x7f", "F8_E5M2": b"\x7f", "F8_E8M0": b"\xff"}
LAYER = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)\.")
EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|wte|wpe)\.")
HEAD = re.compile(r"(?:^|\.)(?:norm|ln_f|lm_head)\.")


def needed(name, begin, end, layers, tied):
    """Whether a stage that runs layers [begin, end) of a model may read the tensor."""
    layer = LAYER.search(name)
    if layer:
        return begin <= int(layer.group(1)) < end
    if EMBEDDING.search(name):
        return begin == 0 or (end == layers and tied and "wpe" not in name)
    if HEAD.search(name):
        return end == layers
    sys.exit(f"no rule for tensor {name}")


def read_header(file):
    length = struct.unpack("<Q", file.read(8))[0]
    header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return header, 8 + length


def poison(path, keep):
    """Overwrites the tensors of the file that `keep` refuses; returns [tensors, bytes] kept and poisoned."""
    counts = {True: [0, 0], False: [0, 0]}
    with open(path, "r+b") as file:
        header, data = read_header(file)
        for name, info in header.items():
            begin, end = info["data_offsets"]
            kept = keep(name)
            counts[kept][0] += 1
            counts[kept][1] += end - begin
            if kept:
                continue
            pattern = NAN.get(info["dtype"], b"\xff")
            block = pattern * ((1 << 20) // len(pattern))
            file.seek(data + begin)
            for at in range(begin, end, len(block)):
                file.write(block[:end - at])
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("begin", type=int)
    parser.add_argument("end", type=int)
    args = parser.parse_args()
    config = json.loads((args.source / "config.json").read_text())
    config = config.get("text_config", config)
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    # Absent means what the family's own configuration class says; only gpt2 of ours defaults to tied.
    tied = config.get("tie_word_embeddings", config.get("model_type") == "gpt2")
    if not 0 <= args.begin < args.end <= layers:
        sys.exit(f"layers [{args.begin}, {args.end}) of a model with {layers}")
    shutil.copytree(args.source, args.target)
    total = {True: [0, 0], False: [0, 0]}
    for path in sorted(args.target.glob("*.safetensors")):
        if path.name.startswith("golden"):
            continue
        counts = poison(path, lambda name: needed(name, args.begin, args.end, layers, tied))
        for kept, (tensors, size) in counts.items():
            total[kept][0] += tensors
            total[kept][1] += size
    print(f"kept {total[True][0]} tensors, {total[True][1]} bytes; "
          f"poisoned {total[False][0]} tensors, {total[False][1]} bytes")


if __name__ == "__main__":
    main()
