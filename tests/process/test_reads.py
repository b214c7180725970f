"""What a node reads of a checkpoint, seen from outside: its own layers' tensors and nothing else."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

import outside
import programs

POISON = programs.ROOT / "tests" / "golden" / "poison.py"
SMOLLM2 = pathlib.Path(os.environ.get("MESHNET_SMOLLM2", "/nonexistent"))
MIB = 1 << 20
needs_smollm2 = unittest.skipUnless(SMOLLM2.is_dir(), "MESHNET_SMOLLM2 names no folder")
JSON = "application/json"


class Folder(unittest.TestCase):
    def setUp(self):
        scratch = programs.scratch()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def alone(self, checkpoint: pathlib.Path, begin: int, end: int, poisoned: bool = False, **settings: str) -> programs.Node:
        """A node without a tracker; with `poisoned`, on a copy in which every tensor that [begin, end) does not need is NaN."""
        if poisoned:
            copy = self.folder / f"{checkpoint.name}-{begin}-{end}"
            done = subprocess.run([sys.executable, str(POISON), str(checkpoint), str(copy), str(begin), str(end)], check=True,
                                  capture_output=True, text=True)
            self.assertNotIn("poisoned 0 tensors", done.stdout)
            checkpoint = copy
        node = programs.Node(self.folder / f"node-{checkpoint.name}-{begin}-{end}", "--model-id", str(checkpoint),
                             "--shard-start", str(begin), "--shard-end", str(end), **settings)
        self.addCleanup(node.stop)
        return node

    def assert_answer(self, nodes: list[programs.Node], prompt: list[int], wanted: list[int]) -> None:
        """Greedy ids of nodes in a row are those of transformers."""
        body, answer = json.dumps({"ids": prompt}), []
        while len(answer) < len(wanted):
            answer.append(programs.forward_chain(nodes, body, JSON, "-".join(map(str, prompt[:16] + [len(prompt)])))[1][-1])
            body = json.dumps({"ids": answer[-1:]})
        self.assertEqual(answer, wanted)

    def assert_little_is_resident(self, node: programs.Node, own: outside.Stage, mapped: int) -> None:
        """Pages of the mapping, and of the whole process at its largest, within a stage's own bytes and a little."""
        self.assertLessEqual(mapped, own.own + own.header + MIB)
        for name, size in outside.memory(node.process.pid).items():
            self.assertLessEqual(size, 1.15 * own.own + 250e6, f"{name} with {own.own} own bytes")


class Poisoned(Folder):
    """Two and three nodes in a row, each on a copy where all but its own tensors is NaN."""

    def assert_right_text(self, name: str, borders: tuple[int, ...]) -> None:
        checkpoint = programs.GOLDEN / name
        golden = json.loads((checkpoint / "golden.json").read_text())
        nodes = [self.alone(checkpoint, begin, end, poisoned=True) for begin, end in zip((0, *borders), (*borders, 6))]
        for node in nodes:
            node.wait_ready()
        wanted = [one for one in golden["wire"] if one["splits"] == list(borders) and min(one["margin"]) > 0.02]
        self.assertGreaterEqual(len(wanted), 2, name)
        for one in wanted[:2]:
            self.assert_answer(nodes, golden["prompts"][one["prompt"]]["prompt_ids"], one["completion_ids"])

    def test_start_and_end_ranges(self):
        for name in ("gpt2", "tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-qwen3"):
            with self.subTest(model=name):
                self.assert_right_text(name, (2,))

    def test_start_middle_and_end_ranges(self):
        for name in ("gpt2", "tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-qwen3"):
            with self.subTest(model=name):
                self.assert_right_text(name, (2, 4))

    def test_a_poisoned_tensor_of_its_own_would_show(self):
        """So the other tests can fail: a stage on a copy made for another range gives no number."""
        self.alone(programs.GOLDEN / "gpt2", 0, 3, poisoned=True)  # makes the copy
        node = programs.Node(self.folder / "wrong", "--model-id", str(self.folder / "gpt2-0-3"), "--shard-start", "0",
                             "--shard-end", "4")
        self.addCleanup(node.stop)
        node.wait_ready()
        status, _, body = node.call("POST", "/mesh/v1/forward", b'{"ids":[5]}', {"Content-Type": JSON})
        if status == 200:
            values = memoryview(body).cast("H")
            self.assertTrue(any(value & 0x7f80 == 0x7f80 and value & 0x7f for value in values), "NaN went unseen")


class Resident(Folder):
    """From a cold start: pages that the file system had to read, pages in the node's mapping, and its whole memory."""

    def assert_reads_its_own(self, checkpoint: pathlib.Path, ranges, **settings: str) -> None:
        copy = self.folder / checkpoint.name
        shutil.copytree(checkpoint, copy)
        config = json.loads((copy / "config.json").read_text())
        cache = outside.PageCache(copy / "model.safetensors")
        for begin, end in ranges:
            with self.subTest(layers=(begin, end)):
                own = outside.Stage(copy, begin, end)
                knows = cache.drop()
                node = self.alone(copy, begin, end, **settings)
                peak = outside.PeakOfMapping(node.process.pid)
                node.wait_ready()
                self.prefill(node, begin, config.get("hidden_size") or config["n_embd"])
                self.assert_little_is_resident(node, own, max(peak.stop(), outside.mapped(node.process.pid)))
                if knows:
                    self.assertLessEqual(cache.bytes(), own.own + own.header + MIB, "read from the disk")
                node.stop()

    def prefill(self, node: programs.Node, begin: int, hidden: int) -> None:
        """128 rows, so that working memory is there when it is measured."""
        body, headers = json.dumps({"ids": list(range(100, 228))}), {"Content-Type": JSON}
        if begin > 0:
            body = b"\x00\x3f" * (128 * hidden)
            headers = {"Content-Type": "application/octet-stream", "X-Meshnet-Shape": f"128,{hidden}"}
        self.assertEqual(node.call("POST", "/mesh/v1/forward", body, headers)[0], 200)

    def test_small_stages(self):
        self.assert_reads_its_own(programs.GOLDEN / "gpt2", ((0, 3), (2, 4), (3, 6)))

    @needs_smollm2
    def test_stages_larger_than_a_program(self):
        self.assert_reads_its_own(SMOLLM2, ((0, 15), (10, 20), (15, 30)), dtype="bfloat16")


@needs_smollm2
class SmolLM2(Folder):
    """A chat model as it is given out."""

    def test_poisoned_stages_write_the_answer(self):
        references = json.loads((programs.ROOT / "tests/golden/smollm2/reference.json").read_text())
        reference = max(references, key=lambda one: min(one["margin"]))
        nodes = [self.alone(SMOLLM2, begin, end, poisoned=True) for begin, end in ((0, 15), (15, 30))]
        for node in nodes:
            node.wait_ready()
        self.assert_answer(nodes, reference["prompt_ids"], reference["completion_ids"])

    def test_a_node_fetches_and_holds_its_own_bytes(self):
        tracker = programs.Tracker(self.folder / "tracker", SMOLLM2, "--head-layers", "0", "--max-node-layers", "16", dtype="bfloat16")
        self.addCleanup(tracker.stop)
        nodes = [programs.Node(self.folder / f"node{index}", "--tracker", tracker.mesh_url, dtype="bfloat16") for index in range(2)]
        peaks = []
        for node in nodes:
            self.addCleanup(node.stop)
            peaks.append(outside.PeakOfMapping(node.process.pid, "/data"))
        tracker.wait_ready(120)
        answer = tracker.complete({"model": SMOLLM2.name, "prompt": list(range(100, 228)), "max_tokens": 8, "temperature": 0})
        self.assertEqual(answer["usage"]["completion_tokens"], 8)
        for node, peak in zip(nodes, peaks):
            [shard] = node.shards()
            own = outside.Stage(SMOLLM2, *shard["layers"])
            self.assert_little_is_resident(node, own, max(peak.stop(), outside.mapped(node.process.pid, "/data")))
            # Whole pieces of the weights; beside them the configuration and one bit for each piece.
            held = outside.on_disk(node.folder / "cache", "*")
            self.assertLessEqual(held, own.rounded() + 64 * 1024)
            self.assertGreaterEqual(held, own.own)


if __name__ == "__main__":
    unittest.main()
