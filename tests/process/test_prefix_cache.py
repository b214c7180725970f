"""A long prompt that returns: tracker and two nodes begin with what they kept, for the same principal alone."""
import http.client
import json
import pathlib
import unittest

import programs

QWEN3 = programs.GOLDEN / "qwen3"
PROMPT = [3 + 37 * place % 2000 for place in range(1000)]  # seven full blocks of 128
FULL = 896


def value(text: str, sample: str) -> int:
    return next(int(float(line.split()[-1])) for line in text.splitlines() if line.startswith(sample + " "))


class PrefixCache(unittest.TestCase):
    def mesh(self, *flags: str):
        scratch = programs.scratch()
        self.addCleanup(scratch.cleanup)
        folder = pathlib.Path(scratch.name)
        self.tracker = programs.Tracker(folder / "tracker", QWEN3, "--head-layers", "2", "--max-node-layers", "2", "--api-key", "alice,bob", *flags)
        self.addCleanup(self.tracker.stop)
        self.nodes = [programs.Node(folder / f"node{index}", "--tracker", self.tracker.mesh_url) for index in range(2)]
        for node in self.nodes:
            self.addCleanup(node.stop)
        self.tracker.wait_ready()

    def ask(self, key: str, prompt: list[int] = PROMPT) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.tracker.port, timeout=120)
        self.addCleanup(connection.close)
        request = {"model": "qwen3", "prompt": prompt, "max_tokens": 12, "temperature": 0}
        connection.request("POST", "/v1/completions", json.dumps(request), {"Content-Type": "application/json", "Authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        body = json.loads(answer.read())
        self.assertEqual(answer.status, 200, body)
        return body["choices"][0]["text"]

    def counters(self, name: str) -> list[int]:
        connection = http.client.HTTPConnection("127.0.0.1", self.tracker.admin_port, timeout=30)
        self.addCleanup(connection.close)
        connection.request("GET", "/metrics")
        texts = [connection.getresponse().read().decode(), *(node.call("GET", "/metrics")[2].decode() for node in self.nodes)]
        return [value(text, name) for text in texts]

    def test_a_repeated_prompt_gives_the_same_text_from_blocks_that_every_hop_kept(self):
        self.mesh()
        first = self.ask("alice")
        rows = self.counters('meshnet_step_rows_total{kind="prefill"}')
        self.assertEqual(self.counters('meshnet_prefix_tokens_total{result="hit"}'), [0, 0, 0])
        self.assertEqual(self.counters('meshnet_prefix_tokens_total{result="miss"}'), [FULL] * 3)
        self.assertEqual(self.counters("meshnet_kv_blocks_cached"), [7 * 2] * 3)
        self.assertEqual(self.ask("alice"), first)
        self.assertEqual(self.counters('meshnet_prefix_tokens_total{result="hit"}'), [FULL] * 3)
        computed = [after - before for before, after in zip(rows, self.counters('meshnet_step_rows_total{kind="prefill"}'))]
        self.assertEqual(computed, [len(PROMPT) - FULL] * 3)
        self.assertEqual(self.ask("bob"), first)
        self.assertEqual(self.counters('meshnet_prefix_tokens_total{result="hit"}'), [FULL] * 3, "another principal found it")
        # A prompt of whole blocks: the last token is computed in a copy of the last block.
        whole = PROMPT[:FULL]
        kept = self.ask("alice", whole)
        self.assertEqual(self.ask("alice", whole), kept)
        self.assertEqual(self.ask("alice"), first)

    def test_without_memory_for_it_nothing_is_kept_or_offered(self):
        self.mesh("--prefix-cache-memory", "0")
        self.assertEqual(self.ask("alice"), self.ask("alice"))
        for name in ('meshnet_prefix_tokens_total{result="hit"}', 'meshnet_prefix_tokens_total{result="miss"}', "meshnet_kv_blocks_cached"):
            self.assertEqual(self.counters(name), [0, 0, 0])


if __name__ == "__main__":
    unittest.main()
