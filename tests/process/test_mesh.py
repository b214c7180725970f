"""Tracker and two nodes as real programs on a small trained model: the text is transformers', whatever is restarted."""
import concurrent.futures
import json
import os
import pathlib
import signal
import time
import unittest

import programs

GPT2 = programs.GOLDEN / "gpt2"
TOKENS = 48


def references() -> list[dict]:
    """Prompts whose text no bf16 rounding at a border may change."""
    return [one for one in json.loads((GPT2 / "reference.json").read_text()) if min(one["margin"]) > 0.02]


class Mesh(unittest.TestCase):
    def setUp(self):
        scratch = programs.scratch()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.tracker = programs.Tracker(self.folder / "tracker", GPT2, "--head-layers", "2", "--max-node-layers", "2")
        self.addCleanup(self.tracker.stop)
        self.nodes = [self.start_node(index) for index in range(2)]
        self.tracker.wait_ready()

    def start_node(self, index: int) -> programs.Node:
        port = self.nodes[index].port if hasattr(self, "nodes") else None
        node = programs.Node(self.folder / f"node{index}", "--tracker", self.tracker.mesh_url, "--wire-codec", "zstd", port=port)
        self.addCleanup(node.stop)
        return node

    def request(self, reference: dict, **more) -> dict:
        return {"model": "gpt2", "prompt": reference["prompt"], "max_tokens": TOKENS, "temperature": 0, **more}

    def assert_right(self, reference: dict) -> None:
        answer = self.tracker.complete(self.request(reference))
        self.assertEqual(answer["choices"][0]["text"], reference["text"])
        self.assertEqual(answer["usage"]["completion_tokens"], TOKENS)

    def streamed(self, reference: dict, at: int, disturb) -> str:
        """The streamed text; `disturb` is called when `at` pieces have come."""
        text, pieces = "", 0
        for data in self.tracker.stream(self.request(reference)):
            if data == "[DONE]":
                return text
            chunk = json.loads(data)
            self.assertNotIn("error", chunk, f"{data}\n{self.tracker.text()}")
            for choice in chunk["choices"]:
                text += choice["text"]
            pieces += 1
            if pieces == at:
                disturb()
        self.fail(f"the stream ended without [DONE] after {text!r}\n{self.tracker.text()}")

    def test_text_is_that_of_transformers_alone_and_at_once(self):
        wanted = references()
        self.assertGreaterEqual(len(wanted), 3)
        for reference in wanted[:3]:
            self.assert_right(reference)
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            for done in [pool.submit(self.assert_right, wanted[index % len(wanted)]) for index in range(16)]:
                done.result()
        for node in self.nodes:
            self.assertEqual([shard["state"] for shard in node.shards()], ["ready"])
            self.assertGreater(json.loads(node.call("GET", "/health")[2])["steps"], 0)

    def test_a_node_killed_in_the_middle_comes_back_and_the_stream_goes_on(self):
        reference = references()[0]

        def kill_and_restart():
            self.nodes[0].process.kill()
            self.nodes[0].process.wait()
            self.nodes[0] = self.start_node(0)

        self.assertEqual(self.streamed(reference, 5, kill_and_restart), reference["text"])

    @unittest.skipUnless(os.environ.get("MESHNET_LONG") == "1", "long")
    def test_nodes_killed_at_many_moments_lose_nothing(self):
        wanted = references()
        for round_number, at in enumerate((1, 2, 7, 19, 33, 46)):
            with self.subTest(at=at):
                index = round_number % 2

                def kill_and_restart():
                    self.nodes[index].process.kill()
                    self.nodes[index].process.wait()
                    self.nodes[index] = self.start_node(index)

                reference = wanted[round_number % len(wanted)]
                self.assertEqual(self.streamed(reference, at, kill_and_restart), reference["text"])

    def test_a_stopped_node_that_goes_on_does_no_harm(self):
        reference = references()[1]

        def pause():
            os.kill(self.nodes[1].process.pid, signal.SIGSTOP)
            time.sleep(1)
            os.kill(self.nodes[1].process.pid, signal.SIGCONT)

        self.assertEqual(self.streamed(reference, 5, pause), reference["text"])

    def test_a_node_that_is_told_to_end_finishes_its_sessions_first(self):
        reference = references()[2]
        process = self.nodes[0].process
        self.assertEqual(self.streamed(reference, 5, lambda: process.send_signal(signal.SIGTERM)), reference["text"])
        self.assertEqual(self.nodes[0].wait_exit(20), 0, self.nodes[0].text())

    def test_a_killed_tracker_comes_back_and_nothing_is_loaded_again(self):
        self.assert_right(references()[0])
        logs = [node.text() for node in self.nodes]
        self.tracker.kill()
        self.tracker.start()
        self.tracker.wait_ready()
        self.assert_right(references()[1])
        for node, before in zip(self.nodes, logs):
            self.assertNotIn("loading layers", node.text()[len(before):])

    def test_a_client_that_leaves_frees_its_session_within_a_second(self):
        stream = self.tracker.stream(self.request(references()[0], max_tokens=900))
        for _ in range(3):
            next(stream)
        stream.close()
        deadline = time.monotonic() + 1
        counts = None
        while time.monotonic() < deadline:
            counts = [json.loads(node.call("GET", "/health")[2])["sessions"] for node in self.nodes]
            if counts == [0, 0]:
                return
            time.sleep(0.02)
        self.fail(f"sessions still open: {counts}")


if __name__ == "__main__":
    unittest.main()
