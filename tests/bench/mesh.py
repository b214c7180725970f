"""Speed of the mesh on this machine, every figure a ratio to something measured in the same run.

Standard library only. The programs are those of build/release/bin (or MESHNET_BIN), the model is SmolLM2. All meshes are
started first and then measured in turns, so that what else the machine does meets all of them alike. Each figure is the
median of the rounds' own ratios; beside it stands the ratio of both sides' best rounds, which a busy machine disturbs less. python3 tests/bench/mesh.py [--rounds N] [--model FOLDER] [--json FILE]
"""
import argparse
import concurrent.futures
import contextlib
import dataclasses
import http.client
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "process"))
import programs  # noqa: E402

MODEL = ROOT / "build" / "models" / "SmolLM2-135M-Instruct"
TOKENS = 64
CLIENTS = 16
# Clients that come one after another, so that the prompts of some are read while others get tokens.
MIXED_PROMPTS = [128 + 16 * (7 * client % CLIENTS) for client in range(CLIENTS)]  # 128 to 368 tokens, mean 248
MIXED_TOKENS = 128
MIXED_SECONDS = 0.25  # from one client's beginning to the next one's
PREFILL = 1024
REPEATED = 4096
LAYERS = 30
SUBJECTS = ["a lighthouse keeper", "two rivers", "the oldest library", "a train in winter", "a baker's first day", "the map of an island",
            "a violin maker", "the long drought", "a letter never sent", "the clock tower", "a village market", "the night ferry",
            "an orchard in spring", "the glass factory", "a mountain school", "the last caravan"]
PROMPTS = [f"Once upon a time there was a long story about {subject}. It began" for subject in SUBJECTS]
# Any ids but the special ones, which are the first 17.
LONG_PROMPT = [100 + 37 * index % 20000 for index in range(PREFILL)]


def mixed_prompt(client: int) -> list[int]:
    return [100 + (37 * place + 1013 * client) % 20000 for place in range(MIXED_PROMPTS[client])]


def weights_of(model: pathlib.Path) -> tuple[int, int]:
    """Weights that a token is multiplied with, of the layers' matrices and of lm_head."""
    layers = head = 0
    for path in sorted(model.glob("*.safetensors")):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        for name, tensor in header.items():
            size = math.prod(tensor["shape"]) if name != "__metadata__" and len(tensor["shape"]) == 2 else 0
            layers += size if ".layers." in name else 0
            head = max(head, size if "embed_tokens" in name or "lm_head" in name else 0)
    return layers, head


class Mesh:
    """A tracker with the first layers and one node for each further range of equal length, on cores of `pins` or unpinned."""

    def __init__(self, folder: pathlib.Path, model: pathlib.Path, stages: int, threads: int, pins: list[int] | None = None,
                 kept_prompts: bool = True):
        def launch(stage: int) -> tuple[str, ...]:
            return ("taskset", "-c", str(pins[stage])) if pins else ()

        each = LAYERS // stages
        common = ["--threads", str(threads), "--log-level", "warning"]
        common += [] if kept_prompts else ["--prefix-cache-memory", "0"]
        self.tracker = programs.Tracker(folder / "tracker", model, "--head-layers", str(each), "--max-node-layers", str(each), "--memory", "2GiB",
                                        "--session-tokens", "32768", *common, dtype="bfloat16", launch=launch(0))
        self.nodes = [programs.Node(folder / f"node{stage}", "--tracker", self.tracker.mesh_url, *common, dtype="bfloat16",
                                    memory="2GiB", launch=launch(stage)) for stage in range(1, stages)]

    def stop(self) -> None:
        for program in [*self.nodes, self.tracker]:
            program.stop()

    def complete(self, prompt: str | list[int], tokens: int) -> "Answer":
        return ask(self.tracker, MODEL.name, prompt, tokens)


def ask(tracker: programs.Tracker, model: str, prompt: str | list[int], tokens: int) -> "Answer":
    """One greedy answer, streamed, with the times of its first and last tokens."""
    request = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True,
               "stream_options": {"include_usage": True}}
    connection = http.client.HTTPConnection("127.0.0.1", tracker.port, timeout=300)
    began = time.monotonic()
    connection.request("POST", "/v1/completions", json.dumps(request), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    if reply.status != 200:
        raise AssertionError(f"{reply.status}: {reply.read().decode()}\n{tracker.text()}")
    # Taken in now, read later: the client shares the cores with what it measures.
    pieces = []
    while piece := reply.read1(65536):
        pieces.append((time.monotonic() - began, piece))
    answer = Answer(total=time.monotonic() - began)
    answer.read(pieces)
    connection.close()
    return answer


@dataclasses.dataclass
class Answer:
    text: str = ""
    tokens: int = 0
    first: float = 0
    last: float = 0
    total: float = 0

    def read(self, pieces: list[tuple[float, bytes]]) -> None:
        """`pieces` of the event stream, each with its time; an event counts when its end is there."""
        text = b""
        for seconds, piece in pieces:
            *lines, text = (text + piece).split(b"\n")
            for line in lines:
                if line.startswith(b"data: {"):
                    self.take(json.loads(line[6:]), seconds)

    def take(self, event: dict, seconds: float) -> None:
        if "error" in event:
            raise AssertionError(event["error"])
        self.tokens = (event.get("usage") or {}).get("completion_tokens", self.tokens)
        for choice in event["choices"]:
            self.text += choice["text"]
            if choice["text"]:
                self.last = seconds
                self.first = self.first or seconds

    @property
    def token_seconds(self) -> float:
        """Of one token after the first."""
        return (self.last - self.first) / (self.tokens - 1)


def together(mesh: Mesh, prompts: list[str]) -> tuple[float, list[Answer]]:
    """(tokens/s of all, answers) of one client for each prompt, begun at once."""
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(pool.map(lambda prompt: mesh.complete(prompt, TOKENS), prompts))
    return sum(answer.tokens for answer in answers) / (time.monotonic() - began), answers


def mixed(mesh: Mesh) -> tuple[float, list[Answer]]:
    """(seconds until all have their answers, answers) of clients that begin one after another."""
    began = time.monotonic()

    def client(index: int) -> Answer:
        time.sleep(max(0.0, began + index * MIXED_SECONDS - time.monotonic()))
        return mesh.complete(mixed_prompt(index), MIXED_TOKENS)

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(client, range(CLIENTS)))
    return time.monotonic() - began, answers


def engine_bench(model: pathlib.Path, *flags: str) -> dict:
    done = subprocess.run([str(programs.BIN / "engine_bench"), "--model", str(model), "--json", *flags], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def median(values: list[float]) -> float:
    return statistics.median(values)


class Rounds:
    """The meshes, and what each round measured of them, by name."""

    def __init__(self, meshes: dict[str, Mesh], engine, weights: tuple[int, int]):
        self.meshes, self.engine = meshes, engine
        self.layer_weights, self.head_weights = weights
        self.alone: list[Answer] = []
        self.mixed_alone: list[Answer] = []
        self.wrong = 0
        self.seen: dict[str, list[float]] = {}

    def note(self, name: str, value: float) -> None:
        self.seen.setdefault(name, []).append(value)

    def ratio(self, above: str, below: str, best) -> tuple[float, float]:
        """(median of the rounds' own ratios, ratio of the best); `best` is max of rates, min of times."""
        return (median([a / b for a, b in zip(self.seen[above], self.seen[below])]), best(self.seen[above]) / best(self.seen[below]))

    def warm(self) -> None:
        self.alone = [self.meshes["three"].complete(prompt, TOKENS) for prompt in PROMPTS]
        self.mixed_alone = [self.meshes["three"].complete(mixed_prompt(client), MIXED_TOKENS) for client in range(CLIENTS)]
        for mesh in self.meshes.values():
            mesh.complete(PROMPTS[0], 8)

    def run(self, index: int) -> None:
        bench = self.engine()
        self.note("engine decode", bench["stages"][0]["decode_tokens_per_s"])
        self.note("read share", bench["stages"][0]["decode_share"])
        self.note("matrix share", bench["stages"][0]["prefill_share"])
        prompts = [PROMPTS[(index * 3 + offset) % CLIENTS] for offset in range(3)]
        for name in ("one", "three"):
            answers = [self.meshes[name].complete(prompt, TOKENS) for prompt in prompts]
            self.note(f"{name} token s", median([answer.token_seconds for answer in answers]))
            self.note(f"{name} decode", 1 / self.seen[f"{name} token s"][-1])
            self.note(f"{name} whole", median([answer.tokens / answer.total for answer in answers]))
        rate, answers = together(self.meshes["three"], PROMPTS)
        self.note("sixteen", rate)
        self.wrong += sum(answer.text != alone.text for answer, alone in zip(answers, self.alone))
        self.run_mixed(index, bench["matrix_flops"])
        for name in ("one core", "two cores"):
            self.note(name, self.meshes[name].complete([*LONG_PROMPT[index:], *LONG_PROMPT[:index]], 1).total)
        prompt = [100 + (37 * place + 11 * index + 5) % 20000 for place in range(REPEATED)]
        for name in ("first time", "again"):
            self.note(name, self.meshes["two cores"].complete(prompt, 1).total)

    def run_mixed(self, index: int, matrix_flops: float) -> None:
        """2 FLOP for each weight of the layers and each token, prompts' too, and of lm_head for each token that is sampled."""
        lone = [self.meshes["three"].complete(mixed_prompt((index * 3 + offset) % CLIENTS), MIXED_TOKENS) for offset in range(3)]
        self.note("one mixed", sum(answer.tokens for answer in lone) / sum(answer.total for answer in lone))
        seconds, answers = mixed(self.meshes["three"])
        self.wrong += sum(answer.text != alone.text for answer, alone in zip(answers, self.mixed_alone))
        generated = sum(answer.tokens for answer in answers)
        flops = 2 * (self.layer_weights * (sum(MIXED_PROMPTS) + generated) + self.head_weights * generated)
        self.note("sixteen mixed", generated / seconds)
        self.note("mixed share", flops / seconds / matrix_flops)

    def hop_ms(self) -> tuple[float, float]:
        """Of the two hops that three programs have more than one."""
        three, one = self.seen["three token s"], self.seen["one token s"]
        return 500 * median([a - b for a, b in zip(three, one)]), 500 * (min(three) - min(one))

    def lines(self) -> list[dict]:
        listed = [
            ("one client over three stages ÷ engine_bench, decode", *self.ratio("three decode", "engine decode", max), ">=", 0.8),
            ("one client over three stages ÷ tracker with all layers, decode", *self.ratio("three decode", "one decode", max), ">=", 0.8),
            ("16 clients ÷ one client over two nodes, tokens/s", *self.ratio("sixteen", "three whole", max), ">=", 2.5),
            ("16 clients, prefill and decode mixed ÷ one client over two nodes, tokens/s", *self.ratio("sixteen mixed", "one mixed", max), ">=", 2.5),
            ("16 clients, prefill and decode mixed: work ÷ float32 matrix rate", median(self.seen["mixed share"]), max(self.seen["mixed share"]), ">=", 0.4),
            ("16 clients: texts that differ from the same prompt alone", self.wrong, self.wrong, "<=", 0),
            ("prefill of 1,024 tokens: two stages on a core each ÷ one core", *self.ratio("two cores", "one core", min), "<=", 0.65),
            ("time to first token of a prompt of 4,096 tokens over two stages: again ÷ the first time", *self.ratio("again", "first time", min), "<=", 0.25),
            ("added time per hop on loopback, ms a token", *self.hop_ms(), "<=", 1.0),
            ("decode ÷ read bandwidth", median(self.seen["read share"]), max(self.seen["read share"]), ">=", 0.6),
            ("prefill ÷ matrix rate", median(self.seen["matrix share"]), max(self.seen["matrix share"]), ">=", 0.5),
        ]
        names = ("what", "median", "best", "comparison", "target")
        return [dict(zip(names, line), met=line[1] >= line[4] if line[3] == ">=" else line[1] <= line[4]) for line in listed]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=MODEL)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    loads = []
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(programs.scratch()))
        meshes = {}
        for name, stages, threads, pins in (("one", 1, options.threads, None), ("three", 3, options.threads, None),
                                            ("one core", 1, 1, cores[:1]), ("two cores", 2, 1, cores[:2])):
            # Rounds repeat their prompts, which "three" shall compute each time.
            meshes[name] = Mesh(folder / name.replace(" ", "-"), options.model, stages, threads, pins, kept_prompts=name != "three")
            stack.callback(meshes[name].stop)
        for mesh in meshes.values():
            mesh.tracker.wait_ready()
        rounds = Rounds(meshes, lambda: engine_bench(options.model, "--threads", str(options.threads), "--stages", "1"),
                        weights_of(options.model))
        rounds.warm()
        for index in range(options.rounds):
            rounds.run(index)
            loads.append(os.getloadavg()[0])
    print(f"{options.rounds} rounds, {len(cores)} cores, load {min(loads):.1f} to {max(loads):.1f}\n")
    for name, values in rounds.seen.items():
        print(f"  {name:<16} median {median(values):9.4f}   from {min(values):9.4f} to {max(values):9.4f}")
    print()
    for line in rounds.lines():
        print("  {} {what}: {median:.3f}, best {best:.3f} (target {comparison} {target})".format("met   " if line["met"] else "MISSED", **line))
    if options.json:
        options.json.write_text(json.dumps({"load": loads, "rounds": rounds.seen, "figures": rounds.lines()}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
