"""Tracker and nodes in two network namespaces: with keys they answer, without them each door stays shut."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import unittest

import programs

GPT2 = programs.GOLDEN / "gpt2"
NEAR, FAR = "10.77.0.1", "10.77.0.2"
PAGE, MESH = 18080, 18070

# Runs in the namespace: one request, the answer as JSON on stdout.
CALL = """
import http.client, json, sys
host, port, method, path, body, headers = json.load(sys.stdin)
connection = http.client.HTTPConnection(host, port, timeout=60)
connection.request(method, path, body, headers)
answer = connection.getresponse()
print(json.dumps([answer.status, answer.read().decode("utf-8", "replace")]))
"""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@unittest.skipUnless(os.geteuid() == 0 and shutil.which("ip"), "network namespaces need root and iproute2")
class TwoNamespaces(unittest.TestCase):
    def setUp(self):
        self.near, self.far = f"mesh{os.getpid()}a", f"mesh{os.getpid()}b"
        try:
            ip("netns", "add", self.near)
        except subprocess.CalledProcessError as error:
            self.skipTest(f"no network namespaces here: {error.stderr.decode().strip()}")
        self.addCleanup(ip, "netns", "del", self.near)
        ip("netns", "add", self.far)
        self.addCleanup(ip, "netns", "del", self.far)
        ip("-n", self.near, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", self.far)
        for name, address in ((self.near, NEAR), (self.far, FAR)):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        scratch = programs.scratch()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.key_file = self.folder / "join.key"

    def start(self, namespace: str, name: str, program: str, *flags: str) -> tuple[subprocess.Popen, pathlib.Path]:
        log = self.folder / f"{name}.log"
        runtime = self.folder / f"run-{namespace}"
        runtime.mkdir(exist_ok=True)
        with open(log, "wb") as sink:
            process = subprocess.Popen(["ip", "netns", "exec", namespace, str(programs.BIN / program), "--data-dir", str(self.folder / name),
                                        "--threads", "1", "--memory", "1GiB", "--dtype", "float32", *flags],
                                       stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
                                       env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)})
        self.addCleanup(self.stop, process)
        return process, log

    @staticmethod
    def stop(process: subprocess.Popen) -> None:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def call(self, namespace, host, port, method, path, body="", headers=None):
        done = subprocess.run(["ip", "netns", "exec", namespace, sys.executable, "-c", CALL], capture_output=True, text=True, timeout=120,
                              input=json.dumps([host, port, method, path, body, headers or {}]))
        return tuple(json.loads(done.stdout)) if done.returncode == 0 else (0, done.stderr)

    def start_tracker(self):
        _, log = self.start(self.near, "tracker", "meshnet-tracker", "--model", str(GPT2), "--listen", f"127.0.0.1:{PAGE}",
                            "--mesh-listen", f"{NEAR}:{MESH}", "--admin-listen", f"127.0.0.1:{PAGE + 1}", "--head-layers", "2",
                            "--max-node-layers", "2", "--join-key-file", str(self.key_file))
        self.wait(lambda: self.call(self.near, "127.0.0.1", PAGE, "GET", "/health")[0] == 200, log)
        return log

    def start_node(self, name, port, key, address=FAR):
        flags = ["--join-key", key] if key else []
        return self.start(self.far, name, "meshnet-node", "--tracker", f"http://{NEAR}:{MESH}", "--listen", f"{address}:{port}",
                          "--cache-dir", str(self.folder / f"cache-{name}"), *flags)

    def wait(self, condition, log, seconds=60):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if condition():
                return
            time.sleep(0.1)
        self.fail(f"waited in vain:\n{log.read_text(errors='replace')}")

    def test_with_keys_they_answer_and_without_every_door_is_shut(self):
        log = self.start_tracker()
        key = self.key_file.read_text().strip()
        for index in range(2):
            self.start_node(f"node{index}", 18090 + index, key)
        self.wait(lambda: self.call(self.near, "127.0.0.1", PAGE, "GET", "/ready")[0] == 200, log)
        reference = json.loads((GPT2 / "reference.json").read_text())[0]
        status, body = self.call(self.near, "127.0.0.1", PAGE, "POST", "/v1/completions", json.dumps(
            {"model": "gpt2", "prompt": reference["prompt"], "max_tokens": 48, "temperature": 0}), {"Content-Type": "application/json"})
        self.assertEqual(status, 200, body)
        self.assertEqual(json.loads(body)["choices"][0]["text"], reference["text"])

        # The node's doors, from the other machine.
        for path, headers in [("/mesh/v1/sessions/open", {}), ("/mesh/v1/sessions/close", {}), ("/mesh/v1/sessions/cursors", {}),
                              ("/mesh/v1/forward", {"Content-Type": "text/plain"}), ("/mesh/v1/forward", {"X-Meshnet-Join": "00" * 16})]:
            status, body = self.call(self.near, FAR, 18090, "POST", path, "{}", headers)
            self.assertEqual(status, 401, (path, body))
        self.assertEqual(self.call(self.near, FAR, 18090, "GET", "/metrics")[0], 401)
        self.assertEqual(self.call(self.near, FAR, 18090, "POST", "/mesh/v1/frames", "junk")[0], 400)
        # The tracker's doors.
        for path in ("/mesh/v1/join", "/mesh/v1/heartbeat"):
            self.assertEqual(self.call(self.far, NEAR, MESH, "POST", path, "{}")[0], 401, path)

    def test_a_missing_or_foreign_key_is_refused_with_the_fix(self):
        self.start_tracker()
        process, log = self.start_node("keyless", 18090, None)
        self.assertEqual(process.wait(30), 2)
        self.assertIn("--join-key", log.read_text())
        # Listens on loopback only, so it starts, but the tracker does not let it in.
        process, log = self.start_node("unproven", 18091, None, address="127.0.0.1")
        self.wait(lambda: process.poll() is not None, log)
        self.assertEqual(process.returncode, 1, log.read_text())
        secret, pinned = self.key_file.read_text().strip().split(".")[1:]
        for name, wrong in (("secret", f"mesh1.{'00' * 32}.{pinned}"), ("tracker", f"mesh1.{secret}.{'11' * 32}")):
            process, log = self.start_node(f"wrong-{name}", 18092, wrong)
            self.wait(lambda: process.poll() is not None, log)
            self.assertEqual(process.returncode, 1, log.read_text())
            self.assertIn("key", log.read_text())


if __name__ == "__main__":
    unittest.main()
