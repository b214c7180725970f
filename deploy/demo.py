"""Starts a tracker and nodes on this machine, shows the layers filling up, streams an answer and says who ran what.

Standard library only. deploy/demo has the options. Exit 1 when any program ran no layer.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
HOME = ROOT / "build" / "demo"
BIN = ROOT / "build" / "release" / "bin"
MODEL = ROOT / "build" / "models" / "SmolLM2-135M-Instruct"


def fail(text: str) -> None:
    print(f"demo: {text}", file=sys.stderr)
    raise SystemExit(1)


def key_header() -> dict[str, str]:
    key = os.environ.get("MESHNET_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}


def get(url: str, timeout: float = 5) -> str:
    with urllib.request.urlopen(urllib.request.Request(url, headers=key_header()), timeout=timeout) as reply:
        return reply.read().decode()


def metric(text: str, name: str, **labels: str) -> float:
    """Sum of a metric's samples that carry all `labels`."""
    total = 0.0
    for found in re.finditer(rf"^{name}(?:\{{([^}}]*)\}})? (\S+)$", text, re.M):
        if all(f'{key}="{value}"' in (found[1] or "") for key, value in labels.items()):
            total += float(found[2])
    return total


class Program:
    def __init__(self, name: str, command: list[str], port: int):
        self.name, self.port, self.log = name, port, HOME / f"{name}.log"
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log.open("wb"), stderr=subprocess.STDOUT, start_new_session=True)
        with (HOME / "pids").open("a") as pids:
            pids.write(f"{name} {self.process.pid} {port}\n")

    def check(self) -> None:
        if self.process.poll() is not None:
            fail(f"{self.name} ended with code {self.process.returncode}; the end of {self.log}:\n{self.log.read_text()[-2000:]}")


def stop() -> None:
    """Ends every program of build/demo/pids and waits until it is gone."""
    pids = HOME / "pids"
    if not pids.is_file():
        return
    alive = [(name, int(pid)) for name, pid, _ in (line.split() for line in pids.read_text().splitlines())]
    for signal_number, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        for _, pid in alive:
            try:
                if "meshnet-" in pathlib.Path(f"/proc/{pid}/cmdline").read_text():
                    os.kill(pid, signal_number)
            except OSError:
                pass
        until = time.monotonic() + patience
        while alive and time.monotonic() < until:
            alive = [(name, pid) for name, pid in alive if running(pid)]
            time.sleep(0.05)
    pids.unlink()


def running(pid: int) -> bool:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass
    try:
        return "meshnet-" in pathlib.Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


def free_port(port: int, option: str) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            fail(f"port {port} is in use by another program; choose others with {option}, or end an earlier demo with deploy/demo --stop")
    return port


def layer_count(model: pathlib.Path) -> int:
    config = json.loads((model / "config.json").read_text())
    return int(config.get("num_hidden_layers") or config.get("n_layer"))


def start(options: argparse.Namespace) -> list[Program]:
    layers = layer_count(options.model)
    head_layers = max(1, layers // (options.nodes + 1))
    ports = [free_port(options.port + offset, "--port") for offset in range(3 + options.nodes)]
    shutil.rmtree(HOME / "state", ignore_errors=True)
    (HOME / "state").mkdir(parents=True)
    (HOME / "pids").write_text("")
    mesh = f"http://127.0.0.1:{ports[1]}"
    programs = [Program("tracker", [
        str(BIN / "meshnet-tracker"), "--listen", f"127.0.0.1:{ports[0]}", "--mesh-listen", f"127.0.0.1:{ports[1]}",
        "--admin-listen", f"127.0.0.1:{ports[2]}", "--model", str(options.model), "--head-layers", str(head_layers), "--max-node-layers", str(-(-(layers - head_layers) // options.nodes)),
        "--data-dir", str(HOME / "state" / "tracker"), "--wire-codec", "zstd"], ports[0])]
    for index, port in enumerate(ports[3:], 1):
        programs.append(Program(f"node{index}", [
            str(BIN / "meshnet-node"), "--tracker", mesh, "--listen", f"127.0.0.1:{port}", "--wire-codec", "zstd",
            "--data-dir", str(HOME / "state" / f"node{index}"), "--cache-dir", str(HOME / f"cache-node{index}")], port))
    return programs


def draw(coverage: dict) -> str:
    """One character a layer: '.' nobody, '~' loading, '1'…'9' ready copies."""
    layers = coverage["models"][0]["layers"]
    return "".join(str(min(layer["ready"], 9)) if layer["ready"] else "~" if layer["loading"] else "." for layer in layers)


def wait_until_ready(options: argparse.Namespace, programs: list[Program]) -> None:
    client, mesh = (f"http://127.0.0.1:{options.port + offset}" for offset in (0, 1))
    shown, until = None, time.monotonic() + 120
    while time.monotonic() < until:
        for program in programs:
            program.check()
        try:
            picture = draw(json.loads(get(f"{mesh}/mesh/v1/coverage")))
            if picture != shown:
                print(f"  layers {picture}", file=sys.stderr)
                shown = picture
            get(f"{client}/ready")
            return
        except (OSError, ValueError, KeyError, IndexError):
            time.sleep(0.1)
    fail(f"the layers were not covered within 120 s; logs lie in {HOME}")


def answer(options: argparse.Namespace) -> tuple[int, float, float]:
    """Streams the answer to stdout; returns (tokens, seconds to the first, seconds from the first to the last)."""
    base = f"http://127.0.0.1:{options.port}/v1"
    model = json.loads(get(f"{base}/models"))["data"][0]["id"]
    body = {"model": model, "messages": [{"role": "user", "content": options.prompt}], "max_tokens": options.max_tokens, "temperature": 0,
            "stream": True, "stream_options": {"include_usage": True}}
    request = urllib.request.Request(f"{base}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json", **key_header()})
    began = time.monotonic()
    first = last = None
    tokens = 0
    try:
        reply = urllib.request.urlopen(request, timeout=120)
    except urllib.error.HTTPError as error:
        fail(f"the tracker answered {error.code}: {error.read().decode()[:1000]}")
    for line in reply:
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            fail(f"the stream ended with an error: {event['error']['message']}")
        tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
        text = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
        if text:
            last = time.monotonic()
            first = first or last
            print(text, end="", flush=True)
    print()
    if first is None:
        fail("the answer is empty")
    return tokens, first - began, last - first


def report(options: argparse.Namespace, programs: list[Program], tokens: int, first: float, rest: float) -> None:
    coverage = json.loads(get(f"http://127.0.0.1:{options.port + 1}/mesh/v1/coverage"))
    ranges = {node["address"]: ", ".join(f"[{shard['begin']}, {shard['end']})" for shard in node["shards"]) for node in coverage["nodes"]}
    raw = wire = 0.0
    idle = []
    print("\nprogram    layers       rows run", file=sys.stderr)
    for program in programs:
        head = program.name == "tracker"
        text = get(f"http://127.0.0.1:{options.port + 2 if head else program.port}/metrics")
        rows = metric(text, "meshnet_step_rows_total")
        layer_rows = metric(text, "meshnet_layer_rows_total")
        raw += metric(text, "meshnet_sent_raw_bytes_total")
        wire += metric(text, "meshnet_sent_wire_bytes_total")
        held = next((text for address, text in ranges.items() if (address == "head") == head and (head or address.endswith(f":{program.port}"))), "none")
        print(f"{program.name:<10} {held:<12} {rows:.0f}", file=sys.stderr)
        if layer_rows == 0:
            idle.append(program.name)
    print(f"time to first token {first * 1000:.0f} ms; {tokens} tokens, {(tokens - 1) / rest:.1f} tokens/s" if tokens > 1 and rest > 0
          else f"time to first token {first * 1000:.0f} ms", file=sys.stderr)
    if wire:
        print(f"hidden states on the wire: {wire / 1024:.0f} KiB for {raw / 1024:.0f} KiB of bfloat16, ratio {wire / raw:.2f}", file=sys.stderr)
    if idle:
        fail(f"{', '.join(idle)} ran no layer; logs lie in {HOME}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="deploy/demo", description="A tracker and nodes on this machine answer a prompt together.")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--stop", action="store_true")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--model", type=pathlib.Path, default=MODEL)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("prompt", nargs="?", default="What is the capital of France?")
    options = parser.parse_args()
    HOME.mkdir(parents=True, exist_ok=True)
    stop()
    if options.stop:
        return
    try:
        programs = start(options)
        wait_until_ready(options, programs)
        report(options, programs, *answer(options))
    except BaseException:
        stop()
        raise
    if options.keep:
        print(f"\nstill running: http://127.0.0.1:{options.port}/ (OpenAI endpoint: http://127.0.0.1:{options.port}/v1); end it with deploy/demo --stop", file=sys.stderr)
    else:
        stop()


if __name__ == "__main__":
    main()
