"""What a person who starts meshnet-node meets: flags, refusals with the fix, signals, exit codes."""
import os
import pathlib
import signal
import subprocess
import time
import unittest

import programs

GPT2 = str(programs.GOLDEN / "gpt2")
NODE = str(programs.BIN / "meshnet-node")


def run(*flags: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run([NODE, *flags], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                          env={**os.environ, **environment})


class NodeProgram(unittest.TestCase):
    def setUp(self):
        self.scratch = programs.scratch()
        self.folder = pathlib.Path(self.scratch.name)
        self.addCleanup(self.scratch.cleanup)

    def node(self, *flags: str, **settings: str) -> programs.Node:
        node = programs.Node(self.folder / "node", *flags, **settings)
        self.addCleanup(node.stop)
        return node

    def refused(self, *flags: str, **settings: str) -> str:
        node = self.node(*flags, **settings)
        self.assertEqual(node.wait_exit(), 1, node.text())
        return node.text()

    def test_version_and_print_config(self):
        version = run("--version")
        self.assertEqual(version.returncode, 0)
        self.assertRegex(version.stdout, r"meshnet-node \d+\.\d+\.\d+ \(commit \w+\), wire versions 1, CUDA part: ")
        config = run("--tracker", "http://127.0.0.1:1", "--print-config", MESHNET_THREADS="3")
        self.assertEqual(config.returncode, 0, config.stderr)
        self.assertRegex(config.stdout, r"threads\s*= 3\s+# .*environment")

    def test_usage_errors_exit_2_with_the_fix(self):
        for flags, fix in [((), "--tracker"), (("--nonsense", "1"), "nonsense"),
                           (("--tracker", "http://10.0.0.1:8070", "--listen", "0.0.0.0:8090"), "--join-key"),
                           (("--model-id", GPT2, "--shard-start", "3", "--shard-end", "3"), "empty"),
                           (("--model-id", GPT2, "--shard-start", "0", "--shard-end", "3", "--quantization", "nf5"), "bfloat16")]:
            result = run(*flags)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(fix, result.stderr)

    def test_a_range_outside_the_model_is_refused_with_its_size(self):
        self.assertIn("[0, 6)", self.refused("--model-id", GPT2, "--shard-start", "3", "--shard-end", "9"))

    def test_a_model_that_is_not_there_is_refused(self):
        self.assertIn("nowhere", self.refused("--model-id", str(self.folder / "nowhere"), "--shard-start", "0", "--shard-end", "3"))

    def test_the_reason_of_an_end_is_said_before_the_end(self):
        lines = self.refused("--model-id", GPT2, "--shard-start", "3", "--shard-end", "9").splitlines()
        self.assertTrue(lines[-1].endswith(" ended"), lines)
        self.assertEqual([line for line in lines if " error " in line], [line for line in lines if "[0, 6)" in line])

    def test_too_little_memory_is_refused_before_loading_with_the_numbers(self):
        text = self.refused("--model-id", GPT2, "--shard-start", "0", "--shard-end", "6", memory="1MiB")
        self.assertRegex(text, r"need.*free")

    def test_sigterm_ends_with_0(self):
        node = self.node("--model-id", GPT2, "--shard-start", "0", "--shard-end", "3")
        node.wait_ready()
        node.process.send_signal(signal.SIGTERM)
        self.assertEqual(node.wait_exit(10), 0, node.text())

    def test_one_data_folder_serves_one_node(self):
        node = self.node("--model-id", GPT2, "--shard-start", "0", "--shard-end", "3")
        node.wait_ready()
        second = run("--model-id", GPT2, "--shard-start", "0", "--shard-end", "3", "--listen", "127.0.0.1:0",
                     "--data-dir", str(node.folder / "data"))
        self.assertEqual(second.returncode, 1)
        self.assertIn("--data-dir", second.stderr)

    def test_a_tracker_that_is_not_there_is_said_and_tried_again(self):
        node = self.node("--tracker", f"http://127.0.0.1:{programs.free_port()}")
        deadline = time.monotonic() + 20
        while "cannot be reached" not in node.text() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertIn("trying again by itself", node.text())
        self.assertIsNone(node.process.poll())
        node.process.send_signal(signal.SIGTERM)
        self.assertEqual(node.wait_exit(10), 0, node.text())


if __name__ == "__main__":
    unittest.main()
