"""A node serves the first layers of a shard while the last ones are still on their way to it."""
import json
import pathlib
import socket
import threading
import time
import unittest
import urllib.request

import programs

GPT2 = programs.GOLDEN / "gpt2"
TOKENS = 24


class NarrowLink:
    """A way to the tracker on which bytes of model files come only as far as they were allowed; everything else passes."""

    def __init__(self, port: int):
        self.target = port
        self.allowed, self.changed = 0, threading.Condition()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.target))
            files = threading.Event()
            for source, sink, up in ((near, far, True), (far, near, False)):
                threading.Thread(target=self.carry, args=(source, sink, files, up), daemon=True).start()

    def carry(self, source: socket.socket, sink: socket.socket, files: threading.Event, up: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                if up and b"/files/model.safetensors" in data:
                    files.set()
                if not up and files.is_set():
                    self.take(len(data))
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        source.close()  # each of the two is one thread's source

    def take(self, count: int) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.allowed >= count)
            self.allowed -= count

    def allow(self, count: int) -> None:
        with self.changed:
            self.allowed += count
            self.changed.notify_all()

    def close(self) -> None:
        self.allow(1 << 40)
        self.listener.close()


class ReadyLayers(unittest.TestCase):
    def setUp(self):
        scratch = programs.scratch()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        # The tracker embeds; no node has room for more than four of the six layers.
        self.tracker = programs.Tracker(self.folder / "tracker", GPT2, "--head-layers", "0", "--max-node-layers", "4")
        self.addCleanup(self.tracker.stop)

    def node(self, name: str, url: str) -> programs.Node:
        node = programs.Node(self.folder / name, "--tracker", url, "--wire-codec", "zstd")
        self.addCleanup(node.stop)
        return node

    def wait(self, what: str, condition, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), deadline, f"{what}\n{self.tracker.text()}")
            time.sleep(0.05)

    def coverage(self) -> dict:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.tracker.admin_port}/mesh/v1/coverage", timeout=30) as answer:
            return json.load(answer)

    def test_an_answer_comes_before_the_last_layers_do(self):
        first = self.node("first", self.tracker.mesh_url)
        self.wait("the first node has four layers", lambda: [s["layers"] for s in first.shards() if s["state"] == "ready"] == [[0, 4]])
        second = self.node("second", self.tracker.mesh_url)
        self.wait("the second has the others, and what it has room for",
                  lambda: [s["layers"] for s in second.shards() if s["state"] == "ready"] == [[2, 6]])
        link = NarrowLink(self.tracker.mesh_port)
        self.addCleanup(link.close)
        third = self.node("third", link.url)

        def two_layers():
            link.allow(1 << 16)
            return any(shard["state"] == "loading" and shard["ready"][1] >= 2 for shard in third.shards())
        self.wait("two layers of the third node are ready", two_layers)
        first.process.kill()
        first.process.wait()
        self.wait("the first node is lost", lambda: all(node["state"] != "ready" or node["address"] != f"127.0.0.1:{first.port}"
                                                        for node in self.coverage()["nodes"]))
        reference = min((one for one in json.loads((GPT2 / "reference.json").read_text()) if min(one["margin"]) > 0.02),
                        key=lambda one: len(one["prompt"]))
        self.tracker.wait_ready()
        answer = self.tracker.complete({"model": "gpt2", "prompt": reference["prompt"], "max_tokens": TOKENS, "temperature": 0})
        self.assertTrue(reference["text"].startswith(answer["choices"][0]["text"]), answer)
        self.assertEqual(answer["usage"]["completion_tokens"], TOKENS)
        loading = [shard for shard in third.shards() if shard["state"] == "loading"]
        self.assertEqual([shard["layers"] for shard in loading], [[0, 4]], third.text())
        self.assertLess(loading[0]["ready"][1], 4)
        # And then the rest.
        link.allow(1 << 40)
        third.wait_ready()
        self.tracker.complete({"model": "gpt2", "prompt": reference["prompt"], "max_tokens": TOKENS, "temperature": 0})


if __name__ == "__main__":
    unittest.main()
