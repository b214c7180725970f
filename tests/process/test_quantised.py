"""A mesh that serves quantised weights: tracker and nodes agree on the format, and the text is that of one program alone."""
import pathlib
import time
import unittest

import programs

MODEL = programs.GOLDEN / "gpt2"
REQUEST = {"model": "gpt2", "prompt": "the cat", "max_tokens": 24, "temperature": 0}


class Quantised(unittest.TestCase):
    def setUp(self):
        scratch = programs.scratch()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def tracker(self, name: str, *flags: str) -> programs.Tracker:
        tracker = programs.Tracker(self.folder / name, MODEL, *flags)
        self.addCleanup(tracker.stop)
        return tracker

    def node(self, tracker: programs.Tracker, name: str, quantization: str) -> programs.Node:
        node = programs.Node(self.folder / name, "--tracker", tracker.mesh_url, "--quantization", quantization)
        self.addCleanup(node.stop)
        return node

    def text(self, tracker: programs.Tracker) -> str:
        return tracker.complete(REQUEST)["choices"][0]["text"]

    def test_split_over_nodes_the_text_is_that_of_the_tracker_alone(self):
        for quantization in ("int8", "nf4"):
            alone = self.tracker(f"alone-{quantization}", "--quantization", quantization, "--head-layers", "6")
            alone.wait_ready()
            split = self.tracker(f"split-{quantization}", "--quantization", quantization, "--head-layers", "2", "--max-node-layers", "2")
            for index in range(2):
                self.node(split, f"node-{quantization}-{index}", f"bfloat16,{quantization}")
            split.wait_ready()
            self.assertEqual(self.text(split), self.text(alone))

    def test_a_node_that_does_not_accept_the_format_is_given_nothing(self):
        tracker = self.tracker("tracker", "--quantization", "nf4", "--head-layers", "2")
        node = self.node(tracker, "plain", "bfloat16")
        deadline = time.monotonic() + 30
        while "joined" not in tracker.text() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.node(tracker, "willing", "nf4")
        tracker.wait_ready()
        self.assertEqual(node.shards(), [])


if __name__ == "__main__":
    unittest.main()
