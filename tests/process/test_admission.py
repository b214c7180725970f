"""Who runs, who waits and who is refused when nodes' memory or the tracker's limits are reached (docs/admission.md)."""
import http.client
import json
import pathlib
import shutil
import time
import unittest

import programs

QWEN3 = programs.GOLDEN / "qwen3"
REFERENCES = [one for one in json.loads((QWEN3 / "reference.json").read_text()) if min(one["margin"]) > 0.03]
CONTEXT = 262_144
# Two KV heads of 32 values in float32, key and value, three layers at the node; a session of these tokens takes 96 MiB there.
TOKENS, NODE_BYTES_PER_TOKEN = 65_536, 2 * 32 * 4 * 2 * 3
NODE_MEMORY = "300MiB"  # room for two of them, not for three


def long_model(folder: pathlib.Path) -> pathlib.Path:
    """The golden model with a context so long that sessions reserve much and compute little."""
    model = folder / "qwen3"
    model.mkdir()
    for name in ("model.safetensors", "tokenizer.json", "generation_config.json"):
        shutil.copy(QWEN3 / name, model / name)
    config = json.loads((QWEN3 / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": CONTEXT}))
    return model


class Client:
    """One request, sent at once; its answer is read later, or never."""

    def __init__(self, tracker: programs.Tracker, body: dict, key: str | None = None):
        self.connection = http.client.HTTPConnection("127.0.0.1", tracker.port, timeout=120)
        self.response = None
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.connection.request("POST", "/v1/completions", json.dumps({"model": "qwen3", "temperature": 0, **body}), headers)

    def begun(self) -> "Client":
        """Waits for the first token of a stream."""
        self.response = self.connection.getresponse()
        assert self.response.status == 200, self.response.read()
        while not self.response.readline().startswith(b"data: {"):
            pass
        return self

    def answer(self) -> tuple[int, str | None, dict]:
        response = self.connection.getresponse()
        return response.status, response.headers["Retry-After"], json.loads(response.read())

    def leave(self) -> None:
        if self.response is not None:
            self.response.close()
        self.connection.close()


class Admission(unittest.TestCase):
    def metric(self, sample: str) -> float:
        connection = http.client.HTTPConnection("127.0.0.1", self.tracker.admin_port, timeout=30)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(sample + " "))

    def wait_for(self, sample: str, wanted: float, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while self.metric(sample) != wanted:
            self.assertLess(time.monotonic(), deadline, f"{sample} is {self.metric(sample)}\n{self.tracker.text()}")
            time.sleep(0.02)

    def client(self, body: dict, key: str | None = None) -> Client:
        client = Client(self.tracker, body, key)
        self.addCleanup(client.leave)
        return client

    def assert_refused(self, client: Client, status: int, kind: str, code: str) -> str:
        got, retry, body = client.answer()
        self.assertEqual(got, status, body)
        self.assertEqual(set(body["error"]), {"message", "type", "param", "code"})
        self.assertEqual((body["error"]["type"], body["error"]["code"]), (kind, code))
        self.assertEqual(retry is not None, status in (429, 503))
        if retry:
            self.assertIn(int(retry), range(1, 61))
        return body["error"]["message"]


class LongSessions(Admission):
    """Tracker and node hold half of the model each; the node has room for two long sessions."""

    NODE_FLAGS: tuple[str, ...] = ()

    def setUp(self):
        scratch = programs.scratch()
        self.addCleanup(scratch.cleanup)
        folder = pathlib.Path(scratch.name)
        self.tracker = programs.Tracker(folder / "tracker", long_model(folder), "--head-layers", "3", "--queue-depth", "4", "--queue-wait", "90s", "--heartbeat", "500ms",
                                        "--memory", "2GiB")
        self.addCleanup(self.tracker.stop)
        self.node = programs.Node(folder / "node", "--tracker", self.tracker.mesh_url, *self.NODE_FLAGS, memory=NODE_MEMORY)
        self.addCleanup(self.node.stop)
        self.tracker.wait_ready()

    def long(self, reference: dict) -> dict:
        """Reserves TOKENS, and ends soon."""
        stop = reference["text"][30:40]
        return {"prompt": reference["prompt_ids"], "max_tokens": TOKENS - len(reference["prompt_ids"]), "stop": stop}

    def assert_right(self, reference: dict, status: int, body: dict) -> None:
        self.assertEqual(status, 200, body)
        text = reference["text"]
        self.assertEqual(body["choices"][0]["text"], text[:text.index(text[30:40])])


class Turns(LongSessions):
    """The node has host memory too: more sessions than its device holds take turns there."""

    NODE_FLAGS = ("--spill-memory", "1GiB")

    def node_metric(self, name: str) -> float:
        _, _, text = self.node.call("GET", "/metrics")
        return sum(float(line.split()[-1]) for line in text.decode().splitlines() if line.startswith(name + " "))

    def test_five_endless_answers_where_two_have_room_all_begin_and_a_sixth_ends_with_the_right_text(self):
        endless = {"prompt": REFERENCES[0]["prompt_ids"], "max_tokens": TOKENS - 9, "stream": True}
        running = [self.client(endless).begun() for _ in range(5)]
        status, _, body = self.client(self.long(REFERENCES[0])).answer()
        self.assert_right(REFERENCES[0], status, body)
        self.assertGreaterEqual(self.node_metric("meshnet_cache_spills_total") + self.node_metric("meshnet_cache_drops_total"), 4)
        self.assertEqual(self.metric("meshnet_failovers_total"), 0)
        for one in running:
            one.leave()
        self.wait_for("meshnet_answers_running", 0)
        deadline = time.monotonic() + 30
        while self.node_metric("meshnet_kv_blocks_used") + self.node_metric("meshnet_node_spilled_bytes") > 0:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)


class Room(LongSessions):
    def test_six_clients_over_room_for_two_all_get_the_right_text(self):
        references = (REFERENCES * 6)[:6]
        clients = [self.client(self.long(reference)) for reference in references]
        for reference, client in zip(references, clients):
            status, _, body = client.answer()
            self.assert_right(reference, status, body)
        self.wait_for("meshnet_kv_blocks_used", 0)
        self.assertEqual(self.metric("meshnet_admission_wait_seconds_count"), 6)

    def test_those_without_room_wait_the_fifth_is_refused_and_one_that_leaves_makes_a_place(self):
        endless = {"prompt": REFERENCES[0]["prompt_ids"], "max_tokens": TOKENS - 9, "stream": True}
        running = [self.client(endless).begun() for _ in range(2)]
        references = (REFERENCES * 4)[:4]
        waiting = []
        for number, reference in enumerate(references, 1):
            waiting.append(self.client(self.long(reference)))
            self.wait_for("meshnet_admission_waiting", number)
        message = self.assert_refused(self.client(self.long(references[0])), 429, "rate_limit_error", "rate_limit_exceeded")
        self.assertIn("4 requests wait", message)
        waiting.pop().leave()
        self.wait_for("meshnet_admission_waiting", 3, 1)
        for one in running:
            one.leave()
        for reference, one in zip(references, waiting):
            status, _, body = one.answer()
            self.assert_right(reference, status, body)
        self.wait_for("meshnet_admission_waiting", 0)
        self.assertEqual(self.metric('meshnet_admission_refused_total{reason="queue_full"}'), 1)

    def test_what_can_never_fit_is_refused_with_the_numbers_and_what_would_fit_fits(self):
        asked = {"prompt": [5, 6, 7], "max_tokens": 250_000}
        self.wait_for_figures()
        message = self.assert_refused(self.client(asked), 400, "invalid_request_error", "insufficient_memory")
        needed = -(-250_003 // 128) * 128 * NODE_BYTES_PER_TOKEN * 2 // 3  # two of its three layers are too many
        self.assertIn(f"need {needed} bytes for layers [3, 5)", message)
        self.assertRegex(message, r"free are at most \d+ at node [0-9a-f]{16}")
        fits = int(message.split("set max_tokens to ")[1].split()[0])
        self.assertGreater(fits, 2 * TOKENS)
        refused = self.client({**asked, "max_tokens": fits + 1})
        self.assert_refused(refused, 400, "invalid_request_error", "insufficient_memory")
        self.client({**asked, "max_tokens": fits, "stream": True}).begun()
        self.assertEqual(self.metric('meshnet_admission_refused_total{reason="never_fits"}'), 2)

    def wait_for_figures(self) -> None:
        """Until heartbeats have said what the node with its shard has: a second one says no more."""
        heard = 0
        deadline = time.monotonic() + 30
        last = None
        while heard < 3:
            self.assertLess(time.monotonic(), deadline)
            age = self.node_age()
            heard += last is not None and age < last
            last = age
            time.sleep(0.05)

    def node_age(self) -> float:
        connection = http.client.HTTPConnection("127.0.0.1", self.tracker.admin_port, timeout=30)
        connection.request("GET", "/mesh/v1/coverage")
        nodes = json.loads(connection.getresponse().read())["nodes"]
        connection.close()
        return next(one["seconds_since_heartbeat"] for one in nodes if one["address"] != "head")


class Limits(Admission):
    """A tracker alone that runs one answer at a time."""

    def setUp(self):
        scratch = programs.scratch()
        self.addCleanup(scratch.cleanup)
        self.tracker = programs.Tracker(pathlib.Path(scratch.name), QWEN3, "--max-sessions", "1", "--queue-wait", "700ms", "--max-key-sessions", "2",
                                        "--api-key", "sk-one,sk-two")
        self.addCleanup(self.tracker.stop)
        self.tracker.wait_ready()

    def test_keys_have_limits_of_their_own_and_a_wait_that_is_over_is_429(self):
        endless = {"prompt": REFERENCES[0]["prompt_ids"], "max_tokens": 4000, "stream": True}
        self.client(endless, "sk-one").begun()
        waiting = [self.client({"prompt": "a"}, key) for key in ("sk-one", "sk-two", "sk-two")]
        self.wait_for("meshnet_admission_waiting", 3)
        for key in ("sk-one", "sk-two"):
            message = self.assert_refused(self.client({"prompt": "a"}, key), 429, "rate_limit_error", "rate_limit_exceeded")
            self.assertIn("2 answers of this API key", message)
        for one in waiting:
            self.assertIn("waited", self.assert_refused(one, 429, "rate_limit_error", "rate_limit_exceeded"))


if __name__ == "__main__":
    unittest.main()
