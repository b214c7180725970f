"""The tracker is killed while an answer streams over two nodes: each frees the session and its caches when the lease ends, lives
on, and serves the tracker that comes back."""
import http.client
import json
import pathlib
import time
import unittest

import programs

GPT2 = programs.GOLDEN / "gpt2"
TOKENS = 48
LEASE = 30  # seconds, counted at each hop from the last frame (proto-docs/session.md)
SLACK = 10  # a node looks every second; a busy machine looks later


class HeadKilled(unittest.TestCase):
    def setUp(self):
        scratch = programs.scratch()
        self.addCleanup(scratch.cleanup)
        folder = pathlib.Path(scratch.name)
        self.tracker = programs.Tracker(folder / "tracker", GPT2, "--head-layers", "2", "--max-node-layers", "2")
        self.addCleanup(self.tracker.stop)
        self.nodes = []
        for index in range(2):
            self.nodes.append(programs.Node(folder / f"node{index}", "--tracker", self.tracker.mesh_url))
            self.addCleanup(self.nodes[index].stop)
        self.tracker.wait_ready()

    def held(self) -> list[tuple[int, int]]:
        """(sessions, KV blocks) of each node."""
        states = [json.loads(node.call("GET", "/health")[2]) for node in self.nodes]
        return [(state["sessions"], state["cache_blocks"]) for state in states]

    def wait_held(self, wanted, seconds: float) -> float:
        began = time.monotonic()
        while not all(map(wanted, held := self.held())):
            self.assertLess(time.monotonic() - began, seconds, f"(sessions, KV blocks) of the nodes: {held}")
            time.sleep(0.05)
        return time.monotonic() - began

    def assert_right(self, reference: dict) -> None:
        answer = self.tracker.complete({"model": "gpt2", "prompt": reference["prompt"], "max_tokens": TOKENS, "temperature": 0})
        self.assertEqual(answer["choices"][0]["text"], reference["text"])

    def test_nodes_free_its_sessions_by_their_lease_and_serve_the_next_tracker(self):
        [reference, *_] = [one for one in json.loads((GPT2 / "reference.json").read_text()) if min(one["margin"]) > 0.02]
        before = self.held()
        self.assertEqual([sessions for sessions, _ in before], [0, 0])
        stream = self.tracker.stream({"model": "gpt2", "prompt": reference["prompt"], "max_tokens": 900, "temperature": 0})
        for _ in range(5):
            next(stream)
        for (sessions, blocks), (_, empty) in zip(self.held(), before):
            self.assertEqual(sessions, 1)
            self.assertGreater(blocks, empty)
        self.tracker.kill()
        try:
            self.assertNotIn("[DONE]", list(stream), "an answer that was cut off looks whole")
        except (OSError, http.client.HTTPException):
            pass  # cut off in the middle of an event
        self.wait_held(lambda held: held == (0, 0), LEASE + SLACK)
        for node in self.nodes:
            self.assertIsNone(node.process.poll(), node.text())
        self.tracker.start()
        self.tracker.wait_ready()
        self.assert_right(reference)
        self.wait_held(lambda held: held == (0, 0), SLACK)


if __name__ == "__main__":
    unittest.main()
