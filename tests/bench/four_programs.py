"""What it costs a token that a model's layers are spread over four node programs of one machine.

A tracker without layers and four nodes with a quarter of them each, over loopback, beside a tracker and one node with all layers, beside the
same engine in one process (stages_bench). Standard library only; weights are made up and written to disk, so that nodes read them as any
checkpoint. All programs run at once and are asked in turns. python3 tests/bench/four_programs.py [--config FILE] [--device cuda] [--rounds N]
"""
import argparse
import contextlib
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "process"))
sys.path.insert(0, str(ROOT / "tests" / "bench"))
import programs  # noqa: E402
from mesh import Answer, ask  # noqa: E402

STAGES = 4
PROMPT = 128
TARGET_MS = 0.8
BLOCK = 32 << 20


def tensors_of(config: dict) -> dict[str, list[int]]:
    """Names and shapes of a Llama checkpoint."""
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    width = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    shapes = {"model.embed_tokens.weight": [vocab, hidden]}
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        shapes |= {name + "input_layernorm.weight": [hidden], name + "self_attn.q_proj.weight": [queries, hidden],
                   name + "self_attn.k_proj.weight": [keys, hidden], name + "self_attn.v_proj.weight": [keys, hidden],
                   name + "self_attn.o_proj.weight": [hidden, queries], name + "post_attention_layernorm.weight": [hidden],
                   name + "mlp.gate_proj.weight": [inner, hidden], name + "mlp.up_proj.weight": [inner, hidden],
                   name + "mlp.down_proj.weight": [hidden, inner]}
    shapes["model.norm.weight"] = [hidden]
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = [vocab, hidden]
    return shapes


def write_weights(path: pathlib.Path, config: dict) -> None:
    """Norms of ones; matrices of bfloat16 values of either sign between 2^-7 and 2^-5, pieces of one random block."""
    table = bytes(0x3C | byte & 0x80 for byte in range(256))
    block = bytearray(random.Random(1).randbytes(min(BLOCK, 1 << 24)))
    block[1::2] = bytes(block[1::2]).translate(table)
    header, places, at = {}, [], 0
    for name, shape in tensors_of(config).items():
        size = 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        places.append((at, size, len(shape) == 1))
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    start = 8 + len(text)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.pwrite(file, len(text).to_bytes(8, "little") + text, 0)
    os.ftruncate(file, start + at)

    def write(mine: list[tuple[int, int, bool]]) -> None:
        for place, size, ones in mine:
            source = memoryview(b"\x80\x3f" * (size // 2)) if ones else memoryview(block)
            done, skip = 0, place % len(source) & ~1
            while done < size:
                done += os.pwrite(file, source[skip:skip + size - done], start + place + done)
                skip = 0

    workers = min(8, os.cpu_count() or 1)
    threads = [threading.Thread(target=write, args=(places[index::workers],)) for index in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(file)


def write_tokenizer(path: pathlib.Path, vocab: int) -> None:
    """Byte-level, without merges: a token for each byte, and others that only an answer has."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(byte) for byte in printable] + [chr(256 + index) for index in range(256 - len(printable))]
    tokens = letters + [f"w{index}" for index in range(vocab - len(letters))]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    path.write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": byte_level,
        "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: index for index, token in enumerate(tokens[:vocab])}, "merges": []}}))


@contextlib.contextmanager
def multi_process_service(folder: pathlib.Path):
    """Runs the GPU's multi-process service for the programs that are started within: their kernels then share the GPU, instead of taking turns."""
    pipes, logs = folder / "mps-pipes", folder / "mps-logs"
    pipes.mkdir()
    logs.mkdir()
    os.environ |= {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(logs)}
    try:
        with subprocess.Popen(["nvidia-cuda-mps-control", "-f"], stdin=subprocess.DEVNULL) as daemon:
            until = time.monotonic() + 10
            while not (pipes / "control").exists() and daemon.poll() is None and time.monotonic() < until:
                time.sleep(0.02)
            try:
                yield
            finally:
                subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, check=False, timeout=30)
                try:
                    daemon.wait(30)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                print("".join(log.read_text() for log in logs.iterdir()), file=sys.stderr)
    finally:
        del os.environ["CUDA_MPS_PIPE_DIRECTORY"], os.environ["CUDA_MPS_LOG_DIRECTORY"]


class Mesh:
    """A tracker without layers of its own, and nodes that share a model's layers evenly."""

    def __init__(self, folder: pathlib.Path, model: pathlib.Path, layers: int, stages: int, options: argparse.Namespace):
        self.model = model.name
        common = ["--threads", str(options.threads), "--log-level", "warning", "--prefix-cache-memory", "0"]
        self.tracker = programs.Tracker(folder / "tracker", model, "--head-layers", "0", "--max-node-layers", str(layers // stages), "--max-copies", "1",
                                        "--device", "cpu", "--memory", "4GiB", *common, dtype="bfloat16")
        self.nodes = [programs.Node(folder / f"node{stage}", "--tracker", self.tracker.mesh_url, "--device", options.device, "--memory",
                                    options.memory, *common, dtype="bfloat16") for stage in range(stages)]

    def stop(self) -> None:
        for program in [*self.nodes, self.tracker]:
            program.stop()

    def wait_ready(self) -> None:
        try:
            self.tracker.wait_ready(240)
        except AssertionError:
            print("\n".join(node.text() for node in self.nodes), file=sys.stderr)
            raise

    def step_seconds(self) -> tuple[float, int]:
        """Of all nodes' decode steps so far, and how many of the first node's."""
        seconds, count = 0.0, 0
        for index, node in enumerate(self.nodes):
            for line in node.call("GET", "/metrics")[2].decode().splitlines():
                name, _, value = line.partition(" ")
                if name.startswith("meshnet_step_seconds_sum") and "decode" in name:
                    seconds += float(value)
                elif name.startswith("meshnet_step_seconds_count") and "decode" in name and index == 0:
                    count = int(float(value))
        return seconds, count

    def answer(self, seed: int, vocab: int, tokens: int) -> Answer:
        prompt = [(37 * place + 1013 * seed) % vocab for place in range(PROMPT)]
        return ask(self.tracker, self.model, prompt, tokens)


def engine_ms(options: argparse.Namespace) -> dict:
    command = [str(programs.BIN / "stages_bench"), "--config", str(options.config), "--device", options.device, "--stages", str(STAGES), "--prompt",
               str(PROMPT), "--decoded", str(options.tokens), "--rounds", str(options.rounds), "--json"]
    if options.device == "cpu":
        command += ["--threads", str(options.threads)]
    if library := os.environ.get("MESHNET_CUDA_LIBRARY"):
        command += ["--cuda-library", library]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=pathlib.Path, default=ROOT / "node" / "tools" / "shapes" / "llama-8b.json")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--memory", default="20GiB", help="of each node")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of each program")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=pathlib.Path, help="where the weights are written; default: a temporary folder")
    parser.add_argument("--mps", action="store_true", help="under the GPU's multi-process service, started for the time of the run")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    config = json.loads(options.config.read_text())
    layers, vocab = config["num_hidden_layers"], config["vocab_size"]
    if layers % STAGES:
        parser.error(f"{layers} layers do not make {STAGES} equal stages")
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(programs.scratch()))
        model = (options.folder or folder) / "made-up"
        model.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        (model / "config.json").write_text(options.config.read_text())
        write_tokenizer(model / "tokenizer.json", vocab)
        write_weights(model / "model.safetensors", config)
        if options.mps:
            stack.enter_context(multi_process_service(folder))
        print(f"weights written in {time.monotonic() - began:.1f} s", flush=True)
        began = time.monotonic()
        meshes = {}
        for name, stages in (("four", STAGES), ("one", 1)):
            meshes[name] = Mesh(folder / name, model, layers, stages, options)
            stack.callback(meshes[name].stop)
        for mesh in meshes.values():
            mesh.wait_ready()
        print(f"both meshes ready in {time.monotonic() - began:.1f} s", flush=True)
        engine = engine_ms(options)
        seen: dict[str, list[float]] = {name: [] for name in meshes}
        wrong, texts, steps_ms = 0, {}, {}
        for index in range(-2, options.rounds):
            for name, mesh in meshes.items():
                answer = mesh.answer(index % 2, vocab, options.tokens)
                wrong += texts.setdefault((name, index % 2), answer.text) != answer.text
                if index >= 0:
                    seen[name].append(1e3 * answer.token_seconds)
        for name, mesh in meshes.items():
            seconds, count = mesh.step_seconds()
            steps_ms[name] = 1e3 * seconds / count
    added = [four - engine["whole_ms"] for four in seen["four"]]
    more = [four - one for four, one in zip(seen["four"], seen["one"])]
    median = statistics.median
    result = {"engine": engine, "four_ms": seen["four"], "one_ms": seen["one"], "added_ms": median(added), "more_than_one_program_ms": median(more),
              "steps_ms": steps_ms, "texts_that_changed": wrong, "target_ms": TARGET_MS, "met": median(added) <= TARGET_MS}
    print(f"engine alone, one stage      {engine['whole_ms']:8.3f} ms a token")
    print(f"engine alone, {STAGES} stages       {engine['device_ms']:8.3f} ms a token, {engine['device_ratio']:.3f} times; through the host "
          f"{engine['host_ms']:.3f} ms, {engine['host_ratio']:.3f} times")
    for name, values in seen.items():
        print(f"{name:<4} node program{'s' if name == 'four' else ' '}           {median(values):8.3f} ms a token, from {min(values):.3f} to {max(values):.3f}; "
              f"{steps_ms[name]:.3f} of it in steps")
    print(f"{'met   ' if result['met'] else 'MISSED'} {STAGES} hops add {result['added_ms']:.3f} ms to the engine alone (target {TARGET_MS}); "
          f"{result['more_than_one_program_ms']:.3f} more than one node program; {wrong} texts changed")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
