#!/usr/bin/env python3
"""The engine beside a llama-bench of your own, in turns on the same machine: prefill of a prompt and decode from an
empty context, tokens/s, medians, and their ratio.

  tests/bench/llama_cpp.py --llama-bench ~/llama.cpp/build/bin/llama-bench --model FOLDER \\
      --gguf bfloat16=smollm2-bf16.gguf --gguf int8=smollm2-q8_0.gguf --gguf nf4=smollm2-q4_0.gguf
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def ours(options, quantization):
    source = ["--model", options.model] if options.model else ["--synthetic", options.synthetic]
    measured = run([options.engine_bench, *source, "--json", "--quantization", quantization, "--stages", "1",
                    "--threads", str(options.threads), "--prompt", str(options.prompt), "--chunk", str(options.chunk),
                    "--context", "1", "--decoded", str(options.decoded), "--rounds", str(options.repeats), "--cpu-path", options.cpu_path])
    stage = measured["stages"][0]
    return {"prefill": stage["prefill_tokens_per_s"], "decode": stage["decode_tokens_per_s"],
            "prefill share": stage["prefill_share"], "decode share": stage["decode_share"]}


def theirs(options, gguf):
    tests = run([options.llama_bench, "-m", gguf, "-t", str(options.threads), "-p", str(options.prompt),
                 "-n", str(options.decoded), "-r", str(options.repeats), "-o", "json"])
    return {"prefill" if test["n_gen"] == 0 else "decode": statistics.median(test["samples_ts"]) for test in tests}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    programs = pathlib.Path(__file__).resolve().parents[2] / "build" / "release" / "bin"
    parser.add_argument("--llama-bench", required=True, help="path of the program")
    parser.add_argument("--engine-bench", default=str(programs / "engine_bench"))
    parser.add_argument("--model", help="folder of the model")
    parser.add_argument("--synthetic", help="instead: a shape as engine_bench takes it")
    parser.add_argument("--gguf", action="append", required=True, metavar="QUANTIZATION=FILE",
                        help="the same model for llama-bench, for each of our quantizations")
    parser.add_argument("--cpu-path", default="auto", help="what ours may use, such as avx2 beside a llama.cpp built with GGML_NATIVE=OFF")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--chunk", type=int, default=512, help="rows of our prefill steps; llama-bench has 512")
    parser.add_argument("--decoded", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3, help="turns of both programs")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of a turn")
    options = parser.parse_args()
    if bool(options.model) == bool(options.synthetic):
        parser.error("give --model or --synthetic")
    pairs = [entry.split("=", 1) for entry in options.gguf]
    found = {quantization: ([], []) for quantization, _ in pairs}
    for _ in range(options.rounds):
        for quantization, gguf in pairs:
            found[quantization][0].append(ours(options, quantization))
            found[quantization][1].append(theirs(options, gguf))
    print(f"{'weights':9} {'what':8} {'ours':>9} {'llama.cpp':>9} {'ratio':>6} {'of limit':>8}   "
          f"(load {os.getloadavg()[0]:.1f})")
    for quantization, (mine, other) in found.items():
        for what in ("prefill", "decode"):
            a = statistics.median(row[what] for row in mine)
            b = statistics.median(row[what] for row in other)
            share = statistics.median(row[what + " share"] for row in mine)
            print(f"{quantization:9} {what:8} {a:9.1f} {b:9.1f} {a / b:6.2f} {100 * share:7.0f}%")


if __name__ == "__main__":
    main()
