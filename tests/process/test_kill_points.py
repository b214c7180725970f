"""A hop dies at once at a named point of a frame's way, in the middle of an answer, and starts anew: the stream goes on
with the right text. The hop is meshnet-faulty-node, the node's own code with a fault point handed in."""
import json
import os
import pathlib
import threading
import unittest

import programs

GPT2 = programs.GOLDEN / "gpt2"
FAULTY = "meshnet-faulty-node"
POINTS = ("before-frame-read", "after-frame-read", "before-answer", "after-answer", "before-compute", "after-compute",
          "before-send", "after-send")
LAYERS = {"middle": [2, 4], "tail": [4, 6]}
TOKENS = 48
DIED = 9
LONG = os.environ.get("MESHNET_LONG") == "1"


class Hop:
    """A faulty node that is started again, with the same folder and port, when it has died."""

    def __init__(self, folder: pathlib.Path, tracker: programs.Tracker):
        self.folder, self.tracker = folder, tracker
        self.port = programs.free_port()
        self.node: programs.Node | None = None
        self.start()

    def start(self) -> None:
        if self.node:
            self.node.sink.close()
        self.node = programs.Node(self.folder, "--tracker", self.tracker.mesh_url, "--wire-codec", "zstd", port=self.port,
                                  program=FAULTY, FAULT_FILE=str(self.folder / "fault"))

    def arm(self, point: str, count: int) -> threading.Thread:
        """From now on the hop dies at the count-th passing of the point; the thread ends when it has been started anew."""
        def restart():
            code = self.node.wait_exit(60)
            self.died_with = code
            if code == DIED:
                self.start()

        self.died_with = None
        draft = self.folder / "fault.new"
        draft.write_text(f"{point} {count}\n")
        draft.rename(self.folder / "fault")
        thread = threading.Thread(target=restart, daemon=True)
        thread.start()
        return thread

    def layers(self) -> list[int]:
        shards = self.node.shards()
        return shards[0]["layers"] if shards else []

    def stop(self) -> None:
        self.node.stop()


@unittest.skipUnless((programs.BIN / FAULTY).exists(), f"{FAULTY} is not built (MESH_TESTS)")
class KillPoints(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = programs.scratch()
        cls.addClassCleanup(cls.scratch.cleanup)
        folder = pathlib.Path(cls.scratch.name)
        # Hop 0 runs layers [0, 2); no node has room for another's layers, so each comes back to its own.
        cls.tracker = programs.Tracker(folder / "tracker", GPT2, "--head-layers", "2", "--max-node-layers", "2")
        cls.addClassCleanup(cls.tracker.stop)
        cls.hops = [Hop(folder / f"node{index}", cls.tracker) for index in range(2)]
        for hop in cls.hops:
            cls.addClassCleanup(hop.stop)
        cls.tracker.wait_ready()
        cls.references = [one for one in json.loads((GPT2 / "reference.json").read_text()) if min(one["margin"]) > 0.02]

    def assert_survives(self, role: str, point: str, count: int, reference: dict) -> None:
        self.tracker.wait_ready()
        hop = next(hop for hop in self.hops if hop.layers() == LAYERS[role])
        watch, text, pieces = None, "", 0
        request = {"model": "gpt2", "prompt": reference["prompt"], "max_tokens": TOKENS, "temperature": 0}
        for data in self.tracker.stream(request):
            if data == "[DONE]":
                break
            chunk = json.loads(data)
            self.assertNotIn("error", chunk, self.tracker.text())
            text += "".join(choice["text"] for choice in chunk["choices"])
            pieces += 1
            if pieces == 3:
                watch = hop.arm(point, count)
        else:
            self.fail(f"the stream ended without [DONE] after {text!r}\n{self.tracker.text()}")
        self.assertEqual(hop.died_with, DIED, f"it did not die there\n{hop.node.text()}")
        watch.join(60)
        self.assertEqual(text, reference["text"])

    def run_points(self, role: str, counts: tuple[int, ...]) -> None:
        number = 0
        for point in POINTS:
            for count in counts:
                number += 1
                with self.subTest(point=point, count=count):
                    self.assert_survives(role, point, count, self.references[number % len(self.references)])

    def test_a_middle_hop_dies_at_each_point(self):
        self.run_points("middle", (1,))

    def test_the_tail_dies_at_each_point(self):
        self.run_points("tail", (1,))

    @unittest.skipUnless(LONG, "long")
    def test_each_hop_dies_at_later_passings(self):
        for role in LAYERS:
            self.run_points(role, (2, 3, 7, 20))


if __name__ == "__main__":
    unittest.main()
