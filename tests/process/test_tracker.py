"""meshnet-tracker as its operators, clients and nodes meet it: flags, keys, errors, ends; stages of every number."""
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time
import unittest

import programs

GPT2 = programs.GOLDEN / "gpt2"
QWEN3 = programs.GOLDEN / "qwen3"
TRACKER = str(programs.BIN / "meshnet-tracker")
LAYERS = 6


def reference(folder: pathlib.Path) -> dict:
    """A prompt whose text no bf16 rounding at a border may change."""
    return max(json.loads((folder / "reference.json").read_text()), key=lambda one: min(one["margin"]))


def run(*flags: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run([TRACKER, *flags], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                          env={**os.environ, **environment})


def call(port: int, method: str, path: str, body: bytes | str = b"", headers: dict[str, str] | None = None):
    """(status, headers, body) of one request over a fresh connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


class Folder(unittest.TestCase):
    def setUp(self):
        scratch = programs.scratch()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def tracker(self, model: pathlib.Path, *flags: str, name: str = "tracker") -> programs.Tracker:
        tracker = programs.Tracker(self.folder / name, model, *flags)
        self.addCleanup(tracker.stop)
        return tracker

    def node(self, tracker: programs.Tracker, index: int, *flags: str) -> programs.Node:
        node = programs.Node(self.folder / f"node{index}", "--tracker", tracker.mesh_url, *flags)
        self.addCleanup(node.stop)
        return node

    def post(self, tracker: programs.Tracker, path: str, body: dict | str, headers: dict[str, str] | None = None):
        text = body if isinstance(body, str) else json.dumps(body)
        status, fields, answer = call(tracker.port, "POST", path, text, headers)
        return status, fields, json.loads(answer)


class Flags(Folder):
    def refused(self, code: int, *flags: str) -> str:
        done = run("--data-dir", str(self.folder / "data"), *flags, XDG_RUNTIME_DIR=str(self.folder))
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stderr

    def test_version_and_help(self):
        self.assertIn("meshnet-tracker", run("--version").stdout)
        self.assertIn("--head-layers", run("--help").stdout)

    def test_what_is_wrong_is_named_with_the_fix(self):
        self.assertIn("--model", self.refused(2))
        self.assertIn("--api-key", self.refused(2, "--model", str(GPT2), "--listen", "0.0.0.0:0"))
        self.assertIn("--join-key-file", self.refused(2, "--model", str(GPT2), "--mesh-listen", "0.0.0.0:7"))
        self.assertIn("--admin-key", self.refused(2, "--model", str(GPT2), "--admin-listen", "0.0.0.0:0"))
        self.assertIn("6 layers", self.refused(2, "--model", str(GPT2), "--head-layers", "7"))
        self.assertIn("no-such-flag", self.refused(2, "--no-such-flag"))

    def test_a_folder_that_is_no_model_is_named(self):
        self.assertIn(str(self.folder / "nothing"), self.refused(1, "--model", str(self.folder / "nothing")))

    def test_a_second_tracker_on_one_data_folder_is_refused(self):
        first = self.tracker(GPT2)
        first.wait_ready()
        done = run("--model", str(GPT2), "--data-dir", str(first.folder / "data"), XDG_RUNTIME_DIR=str(self.folder))
        self.assertEqual(done.returncode, 1)
        self.assertIn("another tracker", done.stderr)


class Stages(Folder):
    def assert_right(self, tracker: programs.Tracker, model: pathlib.Path) -> None:
        wanted = reference(model)
        answer = tracker.complete({"model": model.name, "prompt": wanted["prompt_ids"], "max_tokens": 48, "temperature": 0})
        self.assertEqual(answer["choices"][0]["text"], wanted["text"])

    def test_the_tracker_alone(self):
        for model in (GPT2, QWEN3):
            tracker = self.tracker(model, name=f"alone-{model.name}")
            tracker.wait_ready()
            self.assert_right(tracker, model)

    def test_the_tracker_embeds_only_and_one_node_runs_all_layers(self):
        tracker = self.tracker(QWEN3, "--head-layers", "0")
        self.node(tracker, 0)
        tracker.wait_ready()
        self.assert_right(tracker, QWEN3)

    def test_two_models_over_one_node(self):
        tracker = self.tracker(GPT2, "--model", str(QWEN3), "--head-layers", "1")
        self.node(tracker, 0)
        tracker.wait_ready()
        for model in (GPT2, QWEN3):
            self.assert_right(tracker, model)
        self.assertEqual([one["id"] for one in json.loads(tracker.get("/v1/models")[1])["data"]], ["gpt2", "qwen3"])


class Clients(Folder):
    @classmethod
    def setUpClass(cls):
        cls.scratch = programs.scratch()
        cls.shared = programs.Tracker(pathlib.Path(cls.scratch.name), GPT2, "--api-key", "sk-one,sk-two", "--max-sessions", "2",
                                      "--queue-depth", "0")
        cls.shared.wait_ready()

    @classmethod
    def tearDownClass(cls):
        cls.shared.stop()
        cls.scratch.cleanup()

    KEY = {"Authorization": "Bearer sk-two"}

    def ask(self, **more) -> dict:
        return {"model": "gpt2", "prompt": "the", "max_tokens": 4, "temperature": 0, **more}

    def assert_refused(self, status: int, code: str | None, param: str | None, body: dict | str, path: str = "/v1/completions"):
        got, _, answer = self.post(self.shared, path, body, self.KEY)
        self.assertEqual((got, answer["error"]["code"], answer["error"]["param"]), (status, code, param), answer)
        self.assertEqual(set(answer["error"]), {"message", "type", "param", "code"})

    def sessions(self) -> float:
        text = call(self.shared.admin_port, "GET", "/metrics")[2].decode()
        return sum(float(line.split()[1]) for line in text.splitlines() if line.startswith(("meshnet_sessions ", "meshnet_node_sessions ")))

    def wait_for_no_session(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.sessions() > 0:
            self.assertLess(time.monotonic(), deadline, "a session is still open")
            time.sleep(0.02)

    def test_keys(self):
        for headers in ({}, {"Authorization": "Bearer sk-three"}):
            status, _, answer = self.post(self.shared, "/v1/completions", self.ask(), headers)
            self.assertEqual((status, answer["error"]["code"]), (401, "invalid_api_key"))
        self.assertEqual(self.post(self.shared, "/v1/completions", self.ask(), self.KEY)[0], 200)

    def test_errors_are_openai_s(self):
        self.assert_refused(404, "model_not_found", "model", self.ask(model="other"))
        self.assert_refused(400, "context_length_exceeded", "prompt", self.ask(prompt=[5] * 100_000))
        self.assert_refused(400, None, "temperature", self.ask(temperature=9))
        self.assert_refused(400, "unsupported_parameter", "logprobs", self.ask(logprobs=2))
        self.assert_refused(400, None, None, "{")
        self.assert_refused(400, None, None, "[" * 100_000)
        self.assert_refused(400, None, "model", {"model": "gpt2", "messages": [{"role": "user", "content": "x"}]}, "/v1/chat/completions")

    def test_a_stop_string_ends_the_answer_and_is_not_shown(self):
        whole = self.post(self.shared, "/v1/completions", self.ask(max_tokens=30), self.KEY)[2]["choices"][0]["text"]
        stop = whole[10:14]
        answer = self.post(self.shared, "/v1/completions", self.ask(max_tokens=30, stop=stop), self.KEY)[2]["choices"][0]
        self.assertEqual((answer["text"], answer["finish_reason"]), (whole[:whole.index(stop)], "stop"))
        self.wait_for_no_session(1)

    def leave_after(self, body: dict, seconds: float) -> None:
        """Sends a request and closes the connection without reading an answer to the end."""
        text = json.dumps(body).encode()
        with socket.create_connection(("127.0.0.1", self.shared.port)) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-two\r\n"
                               b"Content-Length: %d\r\n\r\n" % len(text) + text)
            deadline = time.monotonic() + 10
            while self.sessions() == 0:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.005)
            time.sleep(seconds)

    def test_a_client_that_leaves_is_noticed_within_a_second(self):
        for body in (self.ask(max_tokens=900), self.ask(max_tokens=900, stream=True), self.ask(prompt=[5, 6, 7] * 300, max_tokens=64)):
            self.leave_after(body, 0.05)
            self.wait_for_no_session(1)

    def test_more_answers_than_allowed_get_429_and_the_others_go_on(self):
        streams = []
        for _ in range(2):
            connection = http.client.HTTPConnection("127.0.0.1", self.shared.port, timeout=60)
            connection.request("POST", "/v1/completions", json.dumps(self.ask(max_tokens=900, stream=True)), self.KEY)
            streams.append((connection, connection.getresponse()))
        status, headers, answer = self.post(self.shared, "/v1/completions", self.ask(), self.KEY)
        self.assertEqual((status, answer["error"]["code"]), (429, "rate_limit_exceeded"))
        self.assertTrue(headers["Retry-After"])
        for connection, response in streams:
            self.assertTrue(response.readline().startswith(b"data: "))
            connection.close()
        self.wait_for_no_session(1)

    def test_page_health_and_unknown_routes(self):
        page = call(self.shared.port, "GET", "/")[2]
        self.assertIn(b"<title>Meshnet</title>", page)
        self.assertEqual(call(self.shared.port, "GET", "/mesh/v1/coverage", headers={"Host": "tracker.example", **self.KEY})[0], 401)
        self.assertIn(b'reply.status == 401', page, "a browser elsewhere is asked for the admin key")
        self.assertEqual(call(self.shared.port, "GET", "/health")[0], 200)
        self.assertEqual(call(self.shared.port, "GET", "/nothing")[0], 404)
        self.assertEqual(call(self.shared.port, "GET", "/v1/completions")[0], 405)


class Mesh(Folder):
    def test_without_coverage_clients_get_503_with_the_layers_and_a_retry(self):
        tracker = self.tracker(GPT2, "--head-layers", "2")
        deadline = time.monotonic() + 60
        while True:
            try:
                status, body = tracker.get("/ready")
                break
            except OSError:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.05)
        self.assertEqual(status, 503)
        self.assertIn(b"[2, 6)", body)
        status, headers, answer = self.post(tracker, "/v1/completions", {"model": "gpt2", "prompt": "a"})
        self.assertEqual((status, answer["error"]["code"]), (503, "service_unavailable"))
        self.assertTrue(headers["Retry-After"])

    def test_a_join_key_is_asked_for_and_let_in(self):
        tracker = self.tracker(GPT2, "--head-layers", "2", "--join-key-file", str(self.folder / "join.key"))
        stranger = self.node(tracker, 0)
        self.assertEqual(stranger.wait_exit(60), 1)
        self.assertIn("join key", stranger.text())
        text = (self.folder / "join.key").read_text().strip()
        self.assertEqual((self.folder / "join.key").stat().st_mode & 0o077, 0)
        other = text[:6] + ("0" if text[6] != "0" else "1") + text[7:]
        self.assertEqual(self.node(tracker, 1, "--join-key", other).wait_exit(60), 1)
        self.node(tracker, 2, "--join-key", text)
        tracker.wait_ready()

    def test_models_and_control_routes_refuse_strangers(self):
        tracker = self.tracker(GPT2)
        tracker.wait_ready()
        coverage = json.loads(call(tracker.mesh_port, "GET", "/mesh/v1/coverage")[2])
        self.assertEqual([layer["ready"] for layer in coverage["models"][0]["layers"]], [1] * LAYERS)
        identity = coverage["models"][0]["identity"]
        for method, path in (("POST", "/mesh/v1/join"), ("POST", "/mesh/v1/heartbeat"), ("POST", "/mesh/v1/sessions/report"),
                             ("GET", f"/mesh/v1/models/{identity}/manifest"), ("GET", f"/mesh/v1/models/{identity}/files/config.json")):
            self.assertEqual(call(tracker.mesh_port, method, path)[0], 401, path)
        forged = {"X-Meshnet-Key": "00" * 32, "X-Meshnet-Signature": "00" * 64}
        self.assertEqual(call(tracker.mesh_port, "POST", "/mesh/v1/join", "{}", forged)[0], 401)
        self.assertEqual(call(tracker.mesh_port, "POST", "/mesh/v1/tokens", os.urandom(100))[0], 400)
        self.assertEqual(call(tracker.port, "GET", "/health")[0], 200)

    def test_slow_readers_do_not_hold_up_tokens_and_nodes(self):
        tracker = self.tracker(GPT2)
        tracker.wait_ready()
        slow = []
        body = json.dumps({"model": "gpt2", "prompt": "the", "max_tokens": 900, "temperature": 0, "stream": True}).encode()
        for _ in range(64):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", tracker.port))
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            slow.append(connection)
            self.addCleanup(connection.close)
        for connection in slow:
            self.assertTrue(connection.recv(1))
        tokens = (programs.ROOT / "proto-docs/vectors/tokens.bin").read_bytes()
        forged = {"X-Meshnet-Key": "00" * 32, "X-Meshnet-Signature": "00" * 64}
        kept = http.client.HTTPConnection("127.0.0.1", tracker.mesh_port, timeout=60)
        self.addCleanup(kept.close)
        took = []
        for number in range(300):
            began = time.monotonic()
            if number % 2:
                kept.request("POST", "/mesh/v1/tokens", tokens)
            else:
                kept.request("POST", "/mesh/v1/heartbeat", "{}", forged)
            answer = kept.getresponse()
            answer.read()
            took.append(time.monotonic() - began)
            self.assertEqual(answer.status, 200 if number % 2 else 401)
        took.sort()
        self.assertLess(took[int(len(took) * 0.99)], 0.05, took[-5:])

    def test_a_signal_lets_running_answers_end(self):
        tracker = self.tracker(GPT2)
        tracker.wait_ready()
        pieces = []
        begun = threading.Event()

        def read():
            for data in tracker.stream({"model": "gpt2", "prompt": "the", "max_tokens": 400, "temperature": 0}):
                pieces.append(data)
                begun.set()

        reader = threading.Thread(target=read)
        reader.start()
        self.assertTrue(begun.wait(30))
        tracker.process.send_signal(signal.SIGTERM)
        reader.join(60)
        self.assertEqual(pieces[-1], "[DONE]")
        self.assertEqual(tracker.process.wait(30), 0)


if __name__ == "__main__":
    unittest.main()
