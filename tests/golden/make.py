#!/usr/bin/env python3
"""Makes all golden data that comes from transformers. README.md says what each file holds.

Usage: make.py checkpoints [NAME ...] | references [NAME ...] | quantised | smollm2 FOLDER | operations [FOLDER TARGET] | templates | tokenizers | all
Needs the packages of requirements.txt. Outputs depend on seeds alone; `references` reads what `checkpoints` wrote, and
the trained checkpoints (gpt2, qwen3) are read as they are.
"""
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))


def main(what: str, *names: str) -> None:
    from maker import checkpoints, operations, quantised, references, templates, tokenizers
    if what in ("checkpoints", "all"):
        checkpoints.make(HERE, names)
    if what in ("references", "all"):
        references.make(HERE, names)
    if what in ("quantised", "all"):
        quantised.make(HERE)
    if what == "smollm2":
        quantised.smollm2(HERE, names[0])
    if what in ("operations", "all"):
        operations.make(HERE, *names)
    if what in ("templates", "all"):
        templates.make(HERE)
    if what in ("tokenizers", "all"):
        tokenizers.make(HERE)


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in ("checkpoints", "references", "quantised", "smollm2", "operations", "templates", "tokenizers", "all"):
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
