"""Two nodes without a tracker, each with half of a GPT-2 checkpoint, chained by this script through /mesh/v1/forward, give
transformers' text."""
import base64
import json
import pathlib
import struct
import unittest
import urllib.parse

import programs

GPT2 = programs.GOLDEN / "gpt2"
JSON = {"Content-Type": "application/json"}
RAW = "application/octet-stream"


class TwoNodes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = programs.scratch()
        folder = pathlib.Path(cls.scratch.name)
        alone = ["--model-id", str(GPT2), "--quantization", "bfloat16"]
        cls.head = programs.Node(folder / "head", *alone, "--shard-start", "0", "--shard-end", "3")
        cls.tail = programs.Node(folder / "tail", *alone, "--shard-start", "3", "--shard-end", "6")
        cls.head.wait_ready()
        cls.tail.wait_ready()
        cls.references = json.loads((GPT2 / "reference.json").read_text())

    @classmethod
    def tearDownClass(cls):
        cls.head.stop()
        cls.tail.stop()
        cls.scratch.cleanup()

    def chain(self, body, content_type, session):
        return programs.forward_chain([self.head, self.tail], body, content_type, session)

    def test_the_chained_text_is_that_of_transformers(self):
        compared = 0
        for number, reference in enumerate(self.references):
            if min(reference["margin"]) <= 0.02:
                continue  # a bf16 rounding at the border may flip a near tie
            compared += 1
            given, ids, text = self.chain(reference["prompt"], "text/plain", f"text-{number}")
            self.assertEqual(given, reference["prompt_ids"])
            answer, pieces = [ids[-1]], [text]
            while len(answer) < len(reference["completion_ids"]):
                _, ids, text = self.chain(json.dumps({"ids": answer[-1:]}), "application/json", f"text-{number}")
                answer.append(ids[-1])
                pieces.append(text)
            self.assertEqual(answer, reference["completion_ids"], reference["prompt"])
            self.assertEqual(urllib.parse.unquote("".join(pieces)), reference["text"])
        self.assertGreaterEqual(compared, 3)

    def test_without_a_session_nothing_is_remembered(self):
        prompt = self.references[0]["prompt_ids"]
        once = self.chain(json.dumps({"ids": prompt}), "application/json", None)
        self.assertEqual(once, self.chain(json.dumps({"ids": prompt}), "application/json", None))
        self.assertEqual(once[1][-1], self.references[0]["completion_ids"][0])
        self.assertEqual(json.loads(self.head.call("GET", "/health")[2])["sessions"], 0)

    def test_positions_and_masks_travel_beside_the_hidden_states(self):
        prompt = self.references[0]["prompt_ids"]
        body = json.dumps({"ids": prompt})
        plain = self.head.call("POST", "/mesh/v1/forward", body, JSON)[2]
        rows = len(prompt)
        causal = bytes(key <= row for row in range(rows) for key in range(rows))
        positions = ",".join(str(position) for position in range(rows))
        told = self.head.call("POST", "/mesh/v1/forward", body, {**JSON, "X-Meshnet-Positions": positions,
                              "X-Meshnet-Attn-Mask": base64.b64encode(causal).decode()})
        self.assertEqual(told[0], 200)
        self.assertEqual(told[2], plain)
        shifted = self.head.call("POST", "/mesh/v1/forward", body,
                                 {**JSON, "X-Meshnet-Positions": ",".join(str(7 + position) for position in range(rows))})
        self.assertEqual(shifted[0], 200)
        self.assertNotEqual(shifted[2], plain)
        hidden_first = bytes([0] + [1] * (rows - 1))
        padded = self.head.call("POST", "/mesh/v1/forward", json.dumps({"ids": prompt[:1] + prompt}),
                                {**JSON, "X-Meshnet-Attn-Mask": base64.b64encode(bytes([0]) + bytes([1] * rows)).decode()})
        self.assertEqual(padded[0], 400, "a row that sees nothing is refused")
        self.assertIn(b"error", padded[2])
        self.assertEqual(len(hidden_first), rows)

    def test_a_whole_mask_ends_with_its_headers_line(self):
        for rows, wanted in ((78, 200), (79, 431)):
            causal = bytes(key <= row for row in range(rows) for key in range(rows))
            status, _, answer = self.head.call("POST", "/mesh/v1/forward", json.dumps({"ids": [5] * rows}),
                                               {**JSON, "X-Meshnet-Attn-Mask": base64.b64encode(causal).decode()})
            self.assertEqual(status, wanted, answer)
        self.assertIn("8192", json.loads(answer)["error"]["message"])
        padded = self.head.call("POST", "/mesh/v1/forward", json.dumps({"ids": [5] * 1024}),
                                {**JSON, "X-Meshnet-Attn-Mask": base64.b64encode(bytes([1] * 1024)).decode()})
        self.assertEqual(padded[0], 200, padded[2])

    def test_bad_input_gets_one_clear_error_and_the_node_goes_on(self):
        good = struct.pack("<256H", *([0x3f80] * 256))
        cases = [
            (good, {"Content-Type": RAW}, "X-Meshnet-Shape"),
            (good, {"Content-Type": RAW, "X-Meshnet-Shape": "2,256"}, "1024 bytes"),
            (good, {"Content-Type": RAW, "X-Meshnet-Shape": "1,255"}, "256"),
            (b"", {"Content-Type": RAW, "X-Meshnet-Shape": "0,256"}, "rows"),
            (struct.pack("<256H", *([0x7fc0] * 256)), {"Content-Type": RAW, "X-Meshnet-Shape": "1,256"}, "finite"),
            (good, {"Content-Type": RAW, "X-Meshnet-Shape": "1,256", "X-Meshnet-Positions": "1,2"}, "positions"),
            (good, {"Content-Type": RAW, "X-Meshnet-Shape": "1,256", "X-Meshnet-Attn-Mask": "!"}, "base64"),
            (b"text", {"Content-Type": "text/plain"}, "not held"),
        ]
        for body, headers, expected in cases:
            status, _, answer = self.tail.call("POST", "/mesh/v1/forward", body, headers)
            self.assertIn(status, (400, 404), answer)
            self.assertIn(expected, json.loads(answer)["error"]["message"])
        for body in (b"{", b"[]", b'{"ids":"x"}', b'{"ids":[]}', b'{"ids":[2048]}', b'{"ids":[-1]}'):
            status, _, answer = self.head.call("POST", "/mesh/v1/forward", body, JSON)
            self.assertEqual(status, 400, answer)
            self.assertTrue(json.loads(answer)["error"]["message"])
        self.assertEqual(self.tail.call("POST", "/mesh/v1/forward", good, {"Content-Type": RAW, "X-Meshnet-Shape": "1,256"})[0], 200)

    def test_metrics_and_health_answer(self):
        self.assertIn(b"meshnet_node_weight_bytes", self.head.call("GET", "/metrics")[2])
        self.assertEqual(json.loads(self.head.call("GET", "/health")[2])["shards"][0]["layers"], [0, 3])
        self.assertEqual(self.head.call("GET", "/nothing")[0], 404)


if __name__ == "__main__":
    unittest.main()
