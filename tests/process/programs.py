"""Starts the product's real programs for tests. Only Python's standard library."""
import http.client
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BIN = pathlib.Path(os.environ.get("MESHNET_BIN", ROOT / "build" / "release" / "bin"))
GOLDEN = ROOT / "tests" / "golden" / "checkpoints"


def command_of(launch: tuple[str, ...], program: str, given: tuple[str, ...] | list[str], defaults: dict[str, str]) -> list[str]:
    """`launch` (such as taskset), the program, its flags, and each default whose flag is not given."""
    beside = [text for flag, value in defaults.items() if flag not in given for text in (flag, value)]
    return [*launch, str(BIN / program), *given, *beside]


def free_port() -> int:
    """Below the range that Linux takes for outgoing connections: none of them gets it before the program does, or while it is down."""
    while True:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


class Node:
    """One meshnet-node with folders and a runtime folder of its own; its log is a file in `folder`."""

    def __init__(self, folder: pathlib.Path, *flags: str, port: int | None = None, memory: str = "1GiB", dtype: str = "float32",
                 program: str = "meshnet-node", launch: tuple[str, ...] = (), **environment: str):
        self.port = port or free_port()
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "log"
        self.sink = open(self.log, "wb")
        runtime = folder / "runtime"
        runtime.mkdir(exist_ok=True)
        command = command_of(launch, program, flags, {
            "--listen": f"127.0.0.1:{self.port}", "--data-dir": str(folder / "data"), "--cache-dir": str(folder / "cache"),
            "--threads": "1", "--memory": memory, "--dtype": dtype})
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.sink,
                                        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime), **environment})

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def call(self, method: str, path: str, body: bytes | str = b"", headers: dict[str, str] | None = None):
        """(status, headers, body) of one request over a fresh connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def shards(self) -> list[dict]:
        try:
            status, _, body = self.call("GET", "/health")
        except OSError:
            return []
        return json.loads(body)["shards"] if status == 200 else []

    def wait_ready(self, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            shards = self.shards()
            if shards and all(shard["state"] == "ready" for shard in shards):
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"the node is not ready:\n{self.text()}")

    def wait_exit(self, seconds: float = 30) -> int:
        return self.process.wait(timeout=seconds)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.sink.close()


def forward_chain(nodes: list[Node], body: bytes | str, content_type: str, session: str | None = None):
    """One /mesh/v1/forward through nodes that hold a model's layers in order: (ids of the input, arg-max id of each row, text
    of the last one, percent-encoded)."""
    named = {"X-Meshnet-Session": session} if session else {}
    headers = {"Content-Type": content_type, **named}
    given = None
    for node in nodes:
        status, fields, hidden = node.call("POST", "/mesh/v1/forward", body, headers)
        if status != 200:
            raise AssertionError(f"{status}: {hidden.decode(errors='replace')}")
        rows, width = map(int, fields["X-Meshnet-Shape"].split(","))
        if len(hidden) != rows * width * 2:
            raise AssertionError(f"{len(hidden)} bytes for [{rows}, {width}]")
        given = given or fields["X-Meshnet-Input-Ids"]
        body, headers = hidden, {"Content-Type": "application/octet-stream", "X-Meshnet-Shape": fields["X-Meshnet-Shape"], **named}
    numbers = lambda text: [int(number) for number in text.split(",")]
    return numbers(given), numbers(fields["X-Meshnet-Token-Ids"]), fields["X-Meshnet-Text"]


def scratch() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="meshnet-test-")


class Tracker:
    """One meshnet-tracker on free loopback ports; it can be killed and started again with what it stored."""

    def __init__(self, folder: pathlib.Path, model: pathlib.Path, *flags: str, dtype: str = "float32", launch: tuple[str, ...] = ()):
        self.folder, self.dtype, self.launch = folder, dtype, launch
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "runtime").mkdir(exist_ok=True)
        self.port, self.mesh_port, self.admin_port = free_port(), free_port(), free_port()
        self.flags = ["--model", str(model), *flags]
        self.log = folder / "log"
        self.start()

    @property
    def mesh_url(self) -> str:
        return f"http://127.0.0.1:{self.mesh_port}"

    def start(self) -> None:
        self.sink = open(self.log, "ab")
        command = command_of(self.launch, "meshnet-tracker", self.flags, {
            "--listen": f"127.0.0.1:{self.port}", "--mesh-listen": f"127.0.0.1:{self.mesh_port}",
            "--admin-listen": f"127.0.0.1:{self.admin_port}", "--data-dir": str(self.folder / "data"), "--threads": "1",
            "--memory": "1GiB", "--dtype": self.dtype})
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.sink,
                                        env={**os.environ, "XDG_RUNTIME_DIR": str(self.folder / "runtime")})

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def wait_ready(self, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if self.get("/ready")[0] == 200:
                    return
            except OSError:
                pass
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"the mesh is not ready:\n{self.text()}")

    def stream(self, request: dict):
        """Yields the data of each server-sent event of a completion; ends without [DONE] when the stream broke."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request("POST", "/v1/completions", json.dumps({**request, "stream": True}), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                raise AssertionError(f"{answer.status}: {answer.read().decode()}")
            while line := answer.readline():
                if line.startswith(b"data: "):
                    yield line[6:].strip().decode()
        finally:
            connection.close()

    def complete(self, request: dict) -> dict:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request("POST", "/v1/completions", json.dumps(request), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            body = answer.read().decode()
            if answer.status != 200:
                raise AssertionError(f"{answer.status}: {body}\n{self.text()}")
            return json.loads(body)
        finally:
            connection.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.sink.close()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.sink.close()
