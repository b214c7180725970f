"""A mesh that serves quantised weights: tracker and nodes agree on the format, and the text is that of one program alone."""
import json
import pathlib
import shutil
import struct
import time
import unittest
from collections.abc import Callable

import programs

MODEL = programs.GOLDEN / "gpt2"
CHECKPOINTS = programs.GOLDEN.parent / "quantised"
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
        for quantization in ("int8", "nf4", "fp8"):
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


Tensors = dict[str, tuple[str, list[int], bytes]]  # name: data type, shape, bytes


def edit(folder: pathlib.Path, change: Callable[[Tensors], None]) -> None:
    """Rewrites a folder's model.safetensors with changed tensors."""
    path = folder / "model.safetensors"
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:8 + size])
    header.pop("__metadata__", None)
    place = lambda entry: slice(*(8 + size + offset for offset in entry["data_offsets"]))
    tensors = {name: (entry["dtype"], entry["shape"], content[place(entry)]) for name, entry in header.items()}
    change(tensors)
    lines, data = {}, b""
    for name, (dtype, shape, value) in tensors.items():
        lines[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(value)]}
        data += value
    text = json.dumps(lines).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


class Damaged(unittest.TestCase):
    """What an owner reads when a quantised checkpoint cannot be what it says: the tensor and what is wrong; the program ends."""

    NAME = "model.layers.0.mlp.down_proj.weight"

    def refused(self, source: str, change: Callable[[Tensors], None]) -> str:
        scratch = programs.scratch()
        self.addCleanup(scratch.cleanup)
        folder = pathlib.Path(scratch.name)
        shutil.copytree(CHECKPOINTS / source, folder / "model")
        edit(folder / "model", change)
        node = programs.Node(folder / "node", "--model-id", str(folder / "model"), "--shard-start", "0", "--shard-end", "1")
        self.addCleanup(node.stop)
        self.assertEqual(node.wait_exit(), 1, node.text())
        return node.text()

    def test_a_bitsandbytes_state_of_more_than_64_kib_is_not_read(self):
        def change(tensors: Tensors) -> None:
            state = json.loads(tensors[self.NAME + ".quant_state.bitsandbytes__nf4"][2])
            value = json.dumps(state | {"more": "x" * 65536}).encode()
            tensors[self.NAME + ".quant_state.bitsandbytes__nf4"] = ("U8", [len(value)], value)

        text = self.refused("nf4", change)
        self.assertRegex(text, r"down_proj\.weight\.quant_state\.bitsandbytes__nf4: has \d+ bytes, at most 65536 are read")

    def test_nested_scales_that_are_not_finite_are_refused(self):
        def infinite(tensors: Tensors) -> None:
            dtype, shape, value = tensors[self.NAME + ".nested_absmax"]
            tensors[self.NAME + ".nested_absmax"] = (dtype, shape, struct.pack("<f", float("inf")) + value[4:])

        self.assertRegex(self.refused("nf4-double", infinite), r"down_proj\.weight\.nested_absmax has values that are not finite")

        def overflowing(tensors: Tensors) -> None:  # each is finite, a product of two is not
            for part, count in (("nested_absmax", 2), ("nested_quant_map", 256)):
                tensors[f"{self.NAME}.{part}"] = ("F32", [count], struct.pack("<f", 3e38) * count)

        self.assertRegex(self.refused("nf4-double", overflowing), r"down_proj\.weight\.absmax has values that are not finite")

    def test_fp8_codes_and_scales_that_mean_no_number_are_refused(self):
        name = "model.layers.0.mlp.up_proj.weight"

        def code(tensors: Tensors) -> None:
            dtype, shape, value = tensors[name]
            tensors[name] = (dtype, shape, b"\x7f" + value[1:])

        self.assertRegex(self.refused("fp8-block", code), r"up_proj\.weight: has a code that is not a number.*fetch it again")

        def scale(tensors: Tensors) -> None:
            dtype, shape, value = tensors[name + "_scale_inv"]
            tensors[name + "_scale_inv"] = (dtype, shape, struct.pack("<f", float("nan")) + value[4:])

        self.assertRegex(self.refused("fp8-block", scale), r"up_proj\.weight_scale_inv holds nan")


if __name__ == "__main__":
    unittest.main()
