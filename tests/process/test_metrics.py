"""/metrics of a running tracker and node: the names of docs/metrics.md, and what a session leaves behind."""
import http.client
import pathlib
import re
import time
import unittest

import programs

QWEN3 = programs.GOLDEN / "qwen3"
PAGE = programs.ROOT / "docs" / "metrics.md"


def page() -> dict[str, dict[str, str]]:
    """{program: {family: kind}} of the page's table."""
    found: dict[str, dict[str, str]] = {"both": {}, "tracker": {}}
    for name, program, kind in re.findall(r"^\| `(\w+)(?:{[^`]*})?` \| (\w+) \| (\w+) \|", PAGE.read_text(), re.MULTILINE):
        found[program][name] = kind
    return found


def families(text: str) -> dict[str, str]:
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))


def value(text: str, sample: str) -> float:
    for line in text.splitlines():
        if line.startswith(sample + " "):
            return float(line.split()[-1])
    raise AssertionError(f"no {sample} in:\n{text}")


class Metrics(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = programs.scratch()
        cls.addClassCleanup(cls.scratch.cleanup)
        folder = pathlib.Path(cls.scratch.name)
        cls.tracker = programs.Tracker(folder / "tracker", QWEN3, "--head-layers", "3")
        cls.addClassCleanup(cls.tracker.stop)
        cls.node = programs.Node(folder / "node", "--tracker", cls.tracker.mesh_url)
        cls.addClassCleanup(cls.node.stop)
        cls.tracker.wait_ready()

    def texts(self) -> dict[str, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.tracker.admin_port, timeout=30)
        connection.request("GET", "/metrics")
        tracker = connection.getresponse().read().decode()
        connection.close()
        return {"tracker": tracker, "node": self.node.call("GET", "/metrics")[2].decode()}

    def test_the_page_names_what_the_programs_print_and_nothing_else(self):
        self.tracker.complete({"model": "qwen3", "prompt": [5, 6, 7], "max_tokens": 2})
        texts, names = self.texts(), page()
        self.assertGreater(len(names["both"]), 10)
        self.assertEqual(families(texts["node"]), names["both"])
        self.assertEqual(families(texts["tracker"]), names["both"] | names["tracker"])

    def test_a_session_is_timed_counted_and_leaves_no_kv_block(self):
        before = self.texts()
        blocks = []
        for _ in self.tracker.stream({"model": "qwen3", "prompt": [5, 6, 7], "max_tokens": 40, "temperature": 0}):
            if not blocks:
                blocks = [value(text, "meshnet_kv_blocks_used") for text in self.texts().values()]
        self.assertTrue(all(one >= 3 for one in blocks), blocks)  # three layers each
        deadline = time.monotonic() + 10
        while any(value(text, "meshnet_kv_blocks_used") for text in self.texts().values()):
            self.assertLess(time.monotonic(), deadline, "KV blocks are still held")
            time.sleep(0.02)
        after = self.texts()
        for program in ("tracker", "node"):
            self.assertGreater(value(after[program], "meshnet_kv_blocks_capacity"), 0)
            for kind in ("prefill", "decode"):
                sample = f'meshnet_step_seconds_count{{kind="{kind}"}}'
                self.assertGreater(value(after[program], sample), value(before[program], sample))
        sample = "meshnet_received_wire_bytes_total"
        self.assertGreater(value(after["node"], sample), value(before["node"], sample))


if __name__ == "__main__":
    unittest.main()
