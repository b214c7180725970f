"""The node's commands for owners and developers, and what node and tracker say of their memory."""
import json
import pathlib
import re
import subprocess
import unittest

import programs

MODEL = programs.GOLDEN / "tiny-qwen3"
REFERENCE = programs.ROOT / "tests" / "golden" / "operations" / "tiny-qwen3.safetensors"
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def run(*arguments: str | pathlib.Path) -> subprocess.CompletedProcess:
    return subprocess.run([programs.BIN / "meshnet-node", *map(str, arguments)], capture_output=True, text=True, timeout=120)


def memory_parts(log: str) -> list[float]:
    """Bytes of the line "memory: TOTAL = PART what + PART what …", total first."""
    line = re.search(r"memory: (.* free)", log)
    if not line:
        raise AssertionError(f"no line of memory in\n{log}")
    return [float(number) * UNITS[unit] for number, unit in re.findall(r"(\d+(?:\.\d)?) ([KMG]?i?B)\b", line[1])]


class Tools(unittest.TestCase):
    def setUp(self):
        scratch = programs.scratch()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def test_compare_agrees_with_the_reference_of_the_same_model(self):
        done = run("compare", "--model", MODEL, "--golden", REFERENCE)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("93 operations agree", done.stdout)

    def test_compare_names_what_differs_and_fails(self):
        done = run("compare", "--model", MODEL, "--golden", REFERENCE, "--quantization", "int8", "--tolerance", "1e-9")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"layer\.0\.q differs: ")

    def test_commands_say_what_they_lack(self):
        self.assertEqual(run("compare", "--model", MODEL).returncode, 2)
        self.assertEqual(run("bench", "--nonsense").returncode, 2)
        done = run("compare", "--model", MODEL, "--golden", self.folder / "none")
        self.assertEqual(done.returncode, 1)
        self.assertIn("none", done.stderr)

    def test_bench_measures_and_keeps_its_figures(self):
        done = run("bench", "--shape", MODEL / "config.json", "--quantization", "int8", "--device", "cpu", "--threads", "1", "--json",
                   "--data-dir", self.folder / "data")
        self.assertEqual(done.returncode, 0, done.stderr)
        figures = json.loads(done.stdout)
        self.assertGreater(figures["read_bytes_per_second"], 0)
        self.assertEqual([layer["weights"] for layer in figures["layers"]], ["int8"])
        self.assertGreater(figures["layers"][0]["decode_seconds"], 0)
        self.assertEqual(json.loads((self.folder / "data" / "bench.json").read_text()), figures)

    def test_node_and_tracker_say_what_their_memory_is_for(self):
        node = programs.Node(self.folder / "node", "--model-id", str(MODEL), "--shard-start", "0", "--shard-end", "6")
        self.addCleanup(node.stop)
        node.wait_ready()
        tracker = programs.Tracker(self.folder / "tracker", MODEL, "--head-layers", "6")
        self.addCleanup(tracker.stop)
        tracker.wait_ready()
        for log in (node.text(), tracker.text()):
            total, weights, *others = memory_parts(log)
            self.assertGreater(weights, 2**20)
            self.assertEqual(len(others), 4)
            self.assertAlmostEqual(weights + sum(others), total, delta=total / 10)  # each is rounded


if __name__ == "__main__":
    unittest.main()
