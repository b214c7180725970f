"""Starts the product's real programs for tests. Only Python's standard library."""
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BIN = pathlib.Path(os.environ.get("MESHNET_BIN", ROOT / "build" / "release" / "bin"))
GOLDEN = ROOT / "tests" / "golden" / "checkpoints"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Node:
    """One meshnet-node with folders and a runtime folder of its own; its log is a file in `folder`."""

    def __init__(self, folder: pathlib.Path, *flags: str, port: int | None = None, memory: str = "1GiB"):
        self.port = port or free_port()
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "log"
        self.sink = open(self.log, "wb")
        runtime = folder / "runtime"
        runtime.mkdir(exist_ok=True)
        command = [str(BIN / "meshnet-node"), "--listen", f"127.0.0.1:{self.port}", "--data-dir", str(folder / "data"),
                   "--cache-dir", str(folder / "cache"), "--threads", "1", "--memory", memory, "--dtype", "float32", *flags]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.sink,
                                        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)})

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


def scratch() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="meshnet-test-")
