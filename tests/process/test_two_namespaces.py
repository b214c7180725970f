"""Tracker and nodes in two network namespaces: with keys they answer, without them each door stays shut, and a
stranger between them gets nowhere."""
import http.client
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time
import unittest

import hostile
import programs
import test_trust

GPT2 = programs.GOLDEN / "gpt2"
NEAR, FAR = "10.77.0.1", "10.77.0.2"
PAGE, MESH = 18080, 18070


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Hosts:
    """Two namespaces with a wire between them; `add_cleanup` is a test's or a class's."""

    def __init__(self, add_cleanup):
        if os.geteuid() != 0 or not shutil.which("ip"):
            raise unittest.SkipTest("network namespaces need root and iproute2")
        self.add_cleanup = add_cleanup
        self.near, self.far = f"mesh{os.getpid()}a", f"mesh{os.getpid()}b"
        try:
            ip("netns", "add", self.near)
            add_cleanup(ip, "netns", "del", self.near)
            ip("-n", self.near, "link", "show")  # refused where / is no mount point of its own
        except subprocess.CalledProcessError as error:
            raise unittest.SkipTest(f"no network namespaces here: {error.stderr.decode().strip()}")
        ip("netns", "add", self.far)
        add_cleanup(ip, "netns", "del", self.far)
        ip("-n", self.near, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", self.far)
        for name, address in ((self.near, NEAR), (self.far, FAR)):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        scratch = programs.scratch()
        add_cleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.key_file = self.folder / "join.key"

    def start(self, namespace: str, name: str, program: str, *flags: str) -> tuple[subprocess.Popen, pathlib.Path]:
        log = self.folder / f"{name}.log"
        runtime = self.folder / f"run-{namespace}"
        runtime.mkdir(exist_ok=True)
        command = ["ip", "netns", "exec", namespace, str(programs.BIN / program), "--data-dir", str(self.folder / name),
                   "--threads", "1", "--memory", "1GiB", "--dtype", "float32", *flags]
        with open(log, "wb") as sink:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
                                       env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)})
        self.add_cleanup(self.stop, process)
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

    def call(self, namespace, host, port, method, path, body="", headers=None) -> tuple[int, str]:
        """(status, body); status 0 when there was no answer."""
        try:
            status, answer = hostile.send(host, port, method, path, body.encode(), headers, namespace)
        except (OSError, http.client.HTTPException) as error:
            return 0, str(error)
        return status, answer.decode("utf-8", "replace")

    def start_tracker(self, *flags: str) -> pathlib.Path:
        _, log = self.start(self.near, "tracker", "meshnet-tracker", "--model", str(GPT2), "--listen", f"127.0.0.1:{PAGE}",
                            "--mesh-listen", f"{NEAR}:{MESH}", "--admin-listen", f"127.0.0.1:{PAGE + 1}", "--head-layers", "2",
                            "--join-key-file", str(self.key_file), *flags)
        self.wait(lambda: self.call(self.near, "127.0.0.1", PAGE, "GET", "/health")[0] == 200, log)
        return log

    def start_node(self, name, port, key, *flags, address=FAR, mesh=MESH):
        keys = ["--join-key", key] if key else []
        return self.start(self.far, name, "meshnet-node", "--tracker", f"http://{NEAR}:{mesh}", "--listen", f"{address}:{port}",
                          "--cache-dir", str(self.folder / f"cache-{name}"), *keys, *flags)

    def wait(self, condition, log, seconds=60):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if condition():
                return
            time.sleep(0.1)
        raise AssertionError(f"waited in vain:\n{log.read_text(errors='replace')}")

    def wait_ready(self, log):
        self.wait(lambda: self.call(self.near, "127.0.0.1", PAGE, "GET", "/ready")[0] == 200, log)


class TwoNamespaces(unittest.TestCase):
    def setUp(self):
        self.hosts = Hosts(self.addCleanup)

    def test_with_keys_they_answer_and_without_every_door_is_shut(self):
        log = self.hosts.start_tracker("--max-node-layers", "2")
        key = self.hosts.key_file.read_text().strip()
        for index in range(2):
            self.hosts.start_node(f"node{index}", 18090 + index, key)
        self.hosts.wait_ready(log)
        reference = json.loads((GPT2 / "reference.json").read_text())[0]
        status, body = self.hosts.call(self.hosts.near, "127.0.0.1", PAGE, "POST", "/v1/completions", json.dumps(
            {"model": "gpt2", "prompt": reference["prompt"], "max_tokens": 48, "temperature": 0}), {"Content-Type": "application/json"})
        self.assertEqual(status, 200, body)
        self.assertEqual(json.loads(body)["choices"][0]["text"], reference["text"])

        # The node's doors, from the other machine.
        for path, headers in [("/mesh/v1/sessions/open", {}), ("/mesh/v1/sessions/close", {}), ("/mesh/v1/sessions/cursors", {}),
                              ("/mesh/v1/forward", {"Content-Type": "text/plain"}), ("/mesh/v1/forward", {"X-Meshnet-Join": "00" * 16})]:
            status, body = self.hosts.call(self.hosts.near, FAR, 18090, "POST", path, "{}", headers)
            self.assertEqual(status, 401, (path, body))
        self.assertEqual(self.hosts.call(self.hosts.near, FAR, 18090, "GET", "/metrics")[0], 401)
        self.assertEqual(self.hosts.call(self.hosts.near, FAR, 18090, "POST", "/mesh/v1/frames", "junk")[0], 400)
        # The tracker's doors.
        for path in ("/mesh/v1/join", "/mesh/v1/heartbeat"):
            self.assertEqual(self.hosts.call(self.hosts.far, NEAR, MESH, "POST", path, "{}")[0], 401, path)

    def test_a_missing_or_foreign_key_is_refused_with_the_fix(self):
        self.hosts.start_tracker()
        process, log = self.hosts.start_node("keyless", 18090, None)
        self.assertEqual(process.wait(30), 2)
        self.assertIn("--join-key", log.read_text())
        # On loopback no key is needed, but nobody could reach it there.
        process, log = self.hosts.start_node("unreachable", 18091, None, address="127.0.0.1")
        self.assertEqual(process.wait(30), 2)
        self.assertIn("--advertise", log.read_text())
        # Listens on loopback only, say behind a forwarded port, so it starts, but the tracker does not let it in.
        process, log = self.hosts.start_node("unproven", 18091, None, "--advertise", f"{FAR}:18091", address="127.0.0.1")
        self.hosts.wait(lambda: process.poll() is not None, log)
        self.assertEqual(process.returncode, 1, log.read_text())
        secret, pinned = self.hosts.key_file.read_text().strip().split(".")[1:]
        for name, wrong in (("secret", f"mesh1.{'00' * 32}.{pinned}"), ("tracker", f"mesh1.{secret}.{'11' * 32}")):
            process, log = self.hosts.start_node(f"wrong-{name}", 18092, wrong)
            self.hosts.wait(lambda: process.poll() is not None, log)
            self.assertEqual(process.returncode, 1, log.read_text())
            self.assertIn("key", log.read_text())


class StrangerBetween(test_trust.Attacks, unittest.TestCase):
    keyed = True

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        hosts = Hosts(cls.addClassCleanup)
        log = hosts.start_tracker("--mesh-advertise", f"{NEAR}:{MESH + 100}")
        cls.client = ("127.0.0.1", PAGE, hosts.near)
        cls.control = hostile.Proxy((NEAR, MESH + 100), (NEAR, MESH), hosts.near)
        cls.frames = hostile.Proxy((FAR, 18190), (FAR, 18090), hosts.far)
        cls.addClassCleanup(cls.control.close)
        cls.addClassCleanup(cls.frames.close)
        cls.node_process, node_log = hosts.start_node("node", 18090, hosts.key_file.read_text().strip(), "--advertise", cls.frames.address,
                                                      mesh=MESH + 100)
        cls.node_log = staticmethod(lambda: node_log.read_text(errors="replace"))
        hosts.wait_ready(log)
        cls.tracker_key = hostile.key_of(hosts.folder / "tracker" / "tracker.key")


if __name__ == "__main__":
    unittest.main()
