"""What a stranger between the programs may try: changed, cut, repeated and forged messages. Each is refused, the node lives,
and the sessions that run meanwhile write the right text. `Attacks` needs a mesh with two proxies in it; this file gives it one
on loopback, test_two_namespaces one between two hosts with keys."""
import contextlib
import json
import os
import pathlib
import queue
import socket
import struct
import threading
import time
import unittest

import hostile
import programs

GPT2 = programs.GOLDEN / "gpt2"
TOKENS = 48
FRAMES, OPEN, CLOSE = "/mesh/v1/frames", "/mesh/v1/sessions/open", "/mesh/v1/sessions/close"
RENEW = "/mesh/v1/sessions/renew"
JOIN, HEARTBEAT, TOKENS_ROUTE = "/mesh/v1/join", "/mesh/v1/heartbeat", "/mesh/v1/tokens"
# Of the first segment in a frame (proto-docs/wire.md).
SESSION, GENERATION, SEQ, START, DEADLINE = 12 + 8, 12 + 56, 12 + 64, 12 + 80, 12 + 92
ACCEPTED, UNKNOWN, CLOSED, NOT_OPENED_YET, BAD_MAC = 0, 1, 2, 4, 8
# Of the first token, and the codes of tokens.
POSITION, TOKEN_ID, LOGPROB = 8 + 24, 8 + 28, 8 + 32
TOKEN_TAKEN, TOKEN_UNKNOWN, TOKEN_NOT_AWAITED, TOKEN_BAD_MAC = 0, 1, 3, 4


def codes(reply: bytes) -> list[int]:
    """The code of each segment's or token's answer."""
    [count] = struct.unpack_from("<H", reply, 6)
    size = (len(reply) - 8) // count
    return [reply[8 + size * index + 20] for index in range(count)]


class Attacks:
    """The mesh: a head, and one node with all other layers. A mixin for TestCase that sets
    frames, control   proxies: head → node, node → tracker (which names it as its own address: tokens go through it too)
    client            (host, port, namespace) of the clients' listener
    node_process, node_log, tracker_key, keyed (whether a join key is asked for)"""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.references = [one for one in json.loads((GPT2 / "reference.json").read_text()) if min(one["margin"]) > 0.02]

    def setUp(self):
        super().setUp()
        self.addCleanup(self.frames.calm)
        self.addCleanup(self.control.calm)

    def assert_right(self, number: int = 0) -> None:
        reference = self.references[number % len(self.references)]
        host, port, namespace = self.client
        status, body = hostile.send(host, port, "POST", "/v1/completions", json.dumps(
            {"model": "gpt2", "prompt": reference["prompt"], "max_tokens": TOKENS, "temperature": 0}).encode(),
            {"Content-Type": "application/json"}, namespace)
        self.assertEqual(status, 200, body)
        self.assertEqual(json.loads(body)["choices"][0]["text"], reference["text"])
        self.assertIsNone(self.node_process.poll(), "the node ended")

    def health(self) -> dict:
        status, body = self.frames.send("/health", b"", method="GET")
        self.assertEqual(status, 200)
        return json.loads(body)

    def wait_no_session(self) -> None:
        """The client has its answer a moment before the node hears of the end."""
        deadline = time.monotonic() + 10
        while self.health()["sessions"] > 0:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def at_frame(self, number: int, attack) -> list:
        """Runs `attack(exchange)` when the number-th frame from now on is about to reach the node; its results end up in the list."""
        seen = []
        results = []

        def hook(exchange):
            if exchange.path == FRAMES:
                seen.append(exchange)
                if len(seen) == number:
                    results.append(attack(exchange))

        self.frames.before = hook
        return results

    # Frames

    def test_a_changed_frame_is_refused_and_the_session_goes_on(self):
        def attack(exchange):
            whole, results = exchange.body, {}
            for name, at in (("MAC", -1), ("hidden states", -17), ("start", START), ("seq", SEQ + 1), ("deadline", DEADLINE + 1)):
                results[name] = self.frames.send(FRAMES, hostile.flipped(whole, at), exchange.headers)
            later = whole[:GENERATION] + struct.pack("<Q", 1 + struct.unpack_from("<Q", whole, GENERATION)[0]) + whole[GENERATION + 8:]
            results["generation"] = self.frames.send(FRAMES, later, exchange.headers)
            return results

        for at in (1, 5):  # the prompt's frame, and one of a step
            results = self.at_frame(at, attack)
            self.assert_right(at)
            self.frames.calm()
            for name, (status, reply) in results[0].items():
                self.assertEqual(status, 202, (name, reply))
                self.assertEqual(codes(reply), [NOT_OPENED_YET if name == "generation" else BAD_MAC], name)

    def test_a_cut_frame_is_refused_and_the_session_goes_on(self):
        def attack(exchange):
            whole = exchange.body
            cut = [self.frames.send(FRAMES, body, exchange.headers)
                   for body in (whole[:-1], whole[:len(whole) // 2], whole[:12], whole[:3], b"", whole + b"\0")]
            hostile.inside(self.frames.namespace, lambda: half(whole))
            return cut

        def half(whole):
            """The connection ends in the middle of the body."""
            with socket.create_connection(self.frames.to, timeout=30) as connection:
                connection.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (FRAMES.encode(), len(whole)))
                connection.sendall(whole[:len(whole) // 2])

        results = self.at_frame(4, attack)
        self.assert_right(2)
        self.frames.calm()
        for status, reply in results[0]:
            self.assertEqual(status, 400, reply)
            self.assertTrue(json.loads(reply)["error"]["message"])

    def test_frames_damaged_on_their_way_are_sent_again(self):
        damages = {2: lambda body: hostile.flipped(body, -1), 9: lambda body: body[:-5], 17: lambda body: hostile.flipped(body, START)}
        seen = []

        def hook(exchange):
            if exchange.path == FRAMES:
                seen.append(exchange)
                exchange.body = damages.get(len(seen), bytes)(exchange.body)

        self.frames.before = hook
        self.assert_right(0)
        self.frames.calm()
        self.assertGreater(len(seen), 17)

    def test_a_repeated_frame_changes_nothing(self):
        replies, sent = [], []

        def again(exchange):
            if exchange.path == FRAMES:
                sent.append(exchange)
                replies.append(self.frames.send(FRAMES, exchange.body, exchange.headers))
                replies.append(self.frames.send(FRAMES, sent[0].body, exchange.headers))

        before = self.health()["steps"]
        self.frames.after = again
        self.assert_right(1)
        self.frames.calm()
        self.assertTrue(all(status == 202 and codes(reply) == [ACCEPTED] for status, reply in replies))
        self.assertLessEqual(self.health()["steps"] - before, len(sent), "a repeated frame was computed")
        self.wait_no_session()
        status, reply = self.frames.send(FRAMES, sent[3].body, sent[3].headers)
        self.assertEqual(status, 202)
        self.assertIn(codes(reply), ([UNKNOWN], [CLOSED]))
        # In another session's name its MAC is wrong.
        results = self.at_frame(3, lambda exchange: self.frames.send(
            FRAMES, sent[3].body[:SESSION] + exchange.body[SESSION:SESSION + 16] + sent[3].body[SESSION + 16:], exchange.headers))
        self.assert_right(2)
        self.frames.calm()
        self.assertEqual(codes(results[0][1]), [BAD_MAC])

    # Tokens

    def test_changed_cut_and_repeated_tokens_are_refused_and_the_text_stays_right(self):
        seen, changed, cut, repeated = [], [], [], []

        def before(exchange):
            if exchange.path != TOKENS_ROUTE:
                return
            seen.append(exchange.body)
            body = exchange.body
            if len(seen) in (2, 7):
                for at in (-1, TOKEN_ID, LOGPROB, POSITION):
                    changed.append(self.control.send(TOKENS_ROUTE, hostile.flipped(body, at), exchange.headers))
                cut.extend(self.control.send(TOKENS_ROUTE, body[:size], exchange.headers) for size in (0, 3, 8, len(body) - 1))
                repeated.append(self.control.send(TOKENS_ROUTE, seen[0], exchange.headers))
            if len(seen) in (4, 11):
                exchange.body = hostile.flipped(body, TOKEN_ID)  # the tail has to say it again
            if len(seen) == 15:
                exchange.body = body[:-1]

        self.control.before = before
        self.assert_right(0)
        self.control.calm()
        self.assertGreater(len(seen), TOKENS)
        self.assertEqual([(status, codes(reply)) for status, reply in changed], [(200, [TOKEN_BAD_MAC])] * len(changed))
        self.assertEqual([status for status, _ in cut], [400] * len(cut))
        for status, reply in repeated:
            self.assertEqual(status, 200)
            self.assertIn(codes(reply), ([TOKEN_TAKEN], [TOKEN_NOT_AWAITED]))
        self.wait_no_session()
        status, reply = self.control.send(TOKENS_ROUTE, seen[0])
        self.assertEqual((status, codes(reply)), (200, [TOKEN_UNKNOWN]))

    # Openings and closings

    def test_an_opening_or_closing_that_the_tracker_did_not_sign_is_refused(self):
        stranger = hostile.stranger()

        def attack(exchange):
            opening = self.frames.of(OPEN)[-1]
            body = opening.body
            close = json.dumps({"session": json.loads(body)["session"], "generation": 1 << 40}).encode()
            unsigned = {"Content-Type": "application/json"}
            return {
                "unsigned opening": (self.frames.send(OPEN, body, unsigned), 401),
                "key alone": (self.frames.send(OPEN, body, {**unsigned, "X-Meshnet-Key": opening.headers["X-Meshnet-Key"]}), 401),
                "changed opening": (self.frames.send(OPEN, hostile.flipped(body, len(body) // 2), opening.headers), 401),
                "a stranger's opening": (self.frames.send(OPEN, body, hostile.signed(stranger, OPEN, body)), 403),
                "an opening's signature on a closing": (self.frames.send(CLOSE, body, opening.headers), 401),
                "unsigned closing": (self.frames.send(CLOSE, close, unsigned), 401),
                "a stranger's closing": (self.frames.send(CLOSE, close, hostile.signed(stranger, CLOSE, close)), 403),
                "the opening again": (self.frames.send(OPEN, body, opening.headers), 200),
            }

        results = self.at_frame(5, attack)
        self.assert_right(0)
        self.frames.calm()
        for name, ((status, reply), wanted) in results[0].items():
            self.assertEqual(status, wanted, (name, reply))
        self.wait_no_session()
        # A recorded opening of a session that is over opens nothing.
        opening = self.frames.of(OPEN)[-1]
        status, reply = self.frames.send(OPEN, opening.body, opening.headers)
        self.assertEqual((status, json.loads(reply)["code"]), (200, "closed"), reply)
        self.assertEqual(self.health()["sessions"], 0)

    # Control

    @contextlib.contextmanager
    def running_sessions(self):
        """Answers are asked for and checked all the time."""
        done, failures, count = threading.Event(), [], [0]

        def ask():
            while not done.is_set():
                try:
                    self.assert_right(count[0])
                    count[0] += 1
                except BaseException as failure:
                    failures.append(failure)
                    return

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
        if failures:
            raise failures[0]
        self.assertGreater(count[0], 0)

    def forge(self, change) -> tuple[hostile.Exchange, dict]:
        """Lets `change` work on the next heartbeat's exchange after the tracker's reply; returns it and the heartbeat after it."""
        forged: list[hostile.Exchange] = []
        following: queue.Queue = queue.Queue()

        def before(exchange):
            if exchange.path == HEARTBEAT and forged:
                following.put(json.loads(exchange.body))

        def after(exchange):
            if exchange.path == HEARTBEAT and not forged:
                change(exchange)
                forged.append(exchange)

        self.control.before, self.control.after = before, after
        beat = following.get(timeout=30)
        self.control.calm()
        return forged[0], beat

    def answer_with(self, exchange: hostile.Exchange, reply: dict, key=None) -> None:
        exchange.reply = json.dumps(reply).encode()
        exchange.reply_headers.update(hostile.signed(key or self.tracker_key, HEARTBEAT, exchange.reply))

    def assert_ignored(self, change, words: str) -> None:
        """The changed reply counts as none: the node says why, renews nothing by it, and goes on."""
        said = len(self.node_log())
        exchange, beat = self.forge(change)
        self.assertEqual(beat["last_reply"], json.loads(exchange.body)["last_reply"], words)
        self.assertIn(words, self.node_log()[said:])
        exchange, beat = self.forge(lambda exchange: None)
        self.assertEqual(beat["last_reply"], json.loads(exchange.reply)["reply"], "the node does not go on")

    def test_a_reply_that_the_tracker_did_not_give_to_this_heartbeat_is_ignored(self):
        def flip(exchange):
            exchange.reply = hostile.flipped(exchange.reply, len(exchange.reply) // 2)

        def strip(exchange):
            for name in ("X-Meshnet-Key", "X-Meshnet-Signature"):
                del exchange.reply_headers[name]

        def by_a_stranger(exchange):
            self.answer_with(exchange, json.loads(exchange.reply), hostile.stranger())

        def an_old_one(exchange):
            old = self.control.of(HEARTBEAT)[-1]
            exchange.reply, exchange.reply_headers = old.reply, old.reply_headers

        with self.running_sessions():
            for change, words in ((flip, "signature does not fit"), (strip, "not signed"), (by_a_stranger, "key"),
                                  (an_old_one, "answers another heartbeat")):
                self.assert_ignored(change, words)

    def test_forged_changed_and_stale_directives_are_refused(self):
        replies = [json.loads(one.genuine) for one in self.control.of(HEARTBEAT) if one.status == 200]
        known = next(one for reply in replies for one in reply["directives"])
        genuine = json.loads(known["body"])
        shards = self.health()["shards"]

        def drop(**fields) -> str:
            """Text of a directive to drop all that the node holds: obeyed, no answer would come out right."""
            return json.dumps({**genuine, "id": os.urandom(len(genuine["id"]) // 2).hex(), "kind": "DROP_SHARD",
                               "layers": shards[0]["layers"], **fields})

        def directive(body: str, key=None, signature: str = "") -> dict:
            return {"body": body, "signature": signature or (key or self.tracker_key).sign(b"meshnet/1 directive\n" + body.encode()).hex()}

        forgeries = {
            "without a signature": (directive(drop(), signature="00" * 64), "signature is not the tracker's"),
            "changed": (directive(drop(), signature=known["signature"]), "signature is not the tracker's"),
            "by a stranger": (directive(drop(), hostile.stranger()), "signature is not the tracker's"),
            "of an old epoch": (directive(drop(epoch=genuine["epoch"] - 1)), "is older than"),
            "for another node": (directive(drop(node="11" * 32)), "it is for node"),
            "expired": (directive(drop(expires_in_ms=0)), "expired"),
        }

        def add(exchange):
            reply = json.loads(exchange.reply)
            self.answer_with(exchange, {**reply, "directives": [known, *(one for one, _ in forgeries.values())]})

        def stale_epoch(exchange):
            self.answer_with(exchange, {**json.loads(exchange.reply), "epoch": genuine["epoch"] - 1})

        loads = self.node_log().count("loading layers")
        with self.running_sessions():
            _, beat = self.forge(add)
            acknowledged = {one["id"]: one for one in beat["directives"]}
            for name, (one, words) in forgeries.items():
                answer = acknowledged[json.loads(one["body"])["id"]]
                self.assertEqual(answer["state"], "refused", name)
                self.assertIn(words, answer["message"], name)
            self.assertEqual(acknowledged[genuine["id"]]["state"], "done", "an old directive's end is remembered")
            # A reply cannot take the epoch back.
            _, beat = self.forge(stale_epoch)
            self.assertGreaterEqual(beat["highest_epoch"], genuine["epoch"])
            # No signature at all makes the reply malformed.
            self.assert_ignored(lambda exchange: self.answer_with(exchange, {
                **json.loads(exchange.reply), "directives": [{"body": drop(), "signature": ""}]}), "signature")
        self.assertEqual(self.health()["shards"], shards)
        self.assertEqual(self.node_log().count("loading layers"), loads, "something was loaded again")

    def test_the_tracker_refuses_repeated_changed_and_unsigned_messages(self):
        stranger = hostile.stranger()
        with self.running_sessions():
            self.forge(lambda exchange: None)
            for path in (HEARTBEAT, JOIN):
                old = self.control.of(path)[0]
                unsigned = {name: value for name, value in old.headers.items() if not name.startswith("X-Meshnet")}
                for name, body, headers, statuses in [
                        ("repeated", old.body, old.headers, (409,)), ("unsigned", old.body, unsigned, (401,)),
                        ("changed", hostile.flipped(old.body, len(old.body) // 2), old.headers, (401, 403)),
                        ("a stranger's", old.body, {**unsigned, **hostile.signed(stranger, path, old.body)},
                         (403, 404) if self.keyed or path == HEARTBEAT else (200,))]:
                    status, reply = self.control.send(path, body, headers)
                    self.assertIn(status, statuses, (path, name, reply))
            self.forge(lambda exchange: None)


class OnLoopback(Attacks, unittest.TestCase):
    keyed = False

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        scratch = programs.scratch()
        cls.addClassCleanup(scratch.cleanup)
        folder = pathlib.Path(scratch.name)
        cls.control = hostile.Proxy(("127.0.0.1", 0), ("", 0))
        cls.addClassCleanup(cls.control.close)
        tracker = programs.Tracker(folder / "tracker", GPT2, "--head-layers", "2", "--mesh-advertise", cls.control.address)
        cls.addClassCleanup(tracker.stop)
        cls.control.to = ("127.0.0.1", tracker.mesh_port)
        cls.client = ("127.0.0.1", tracker.port, None)
        port = programs.free_port()
        cls.frames = hostile.Proxy(("127.0.0.1", 0), ("127.0.0.1", port))
        cls.addClassCleanup(cls.frames.close)
        node = programs.Node(folder / "node", "--tracker", f"http://{cls.control.address}", "--advertise", cls.frames.address, port=port)
        cls.addClassCleanup(node.stop)
        cls.node_process, cls.node_log = node.process, staticmethod(node.text)
        tracker.wait_ready()
        cls.tracker_key = hostile.key_of(folder / "tracker" / "data" / "tracker.key")


class OldOpenings(unittest.TestCase):
    """What a stranger recorded opens nothing, even where no tombstone remembers the session (proto-docs/session.md, Freshness)."""

    def mesh(self, folder: pathlib.Path) -> None:
        self.tracker = programs.Tracker(folder / "tracker", GPT2, "--head-layers", "2")
        self.addCleanup(self.tracker.stop)
        self.port = programs.free_port()
        self.frames = hostile.Proxy(("127.0.0.1", 0), ("127.0.0.1", self.port))
        self.addCleanup(self.frames.close)
        self.start_node(folder)
        self.tracker.wait_ready()

    def start_node(self, folder: pathlib.Path) -> None:
        self.node = programs.Node(folder / "node", "--tracker", self.tracker.mesh_url, "--advertise", self.frames.address, port=self.port)
        self.addCleanup(self.node.stop)

    def answer(self) -> None:
        self.tracker.complete({"model": "gpt2", "prompt": "The sun", "max_tokens": 4, "temperature": 0})

    def sessions(self) -> int:
        return json.loads(self.node.call("GET", "/health")[2])["sessions"]

    def test_no_longer_after_a_restart_of_the_node_nor_with_another_stamp(self):
        with programs.scratch() as name:
            folder = pathlib.Path(name)
            self.mesh(folder)
            self.answer()
            key = hostile.key_of(folder / "tracker" / "data" / "tracker.key")
            recorded = self.frames.of(OPEN)[-1]
            opening = json.loads(recorded.body)
            fresh = opening["fresh"]

            def with_stamp(**changes) -> list[tuple[int, bytes]]:
                """An opening and a renewal of a session that the node never saw, as the tracker would have signed them."""
                session = os.urandom(16).hex()
                messages = {OPEN: {**opening, "session": session, "fresh": {**fresh, **changes}},
                            RENEW: {"sessions": [session], "lease_ms": 30000, "fresh": {**fresh, **changes}}}
                bodies = {path: json.dumps(message).encode() for path, message in messages.items()}
                return [self.frames.send(path, body, hostile.signed(key, path, body)) for path, body in bodies.items()]

            for changes in ({"number": fresh["number"] + 1000}, {"start": fresh["start"] + 1}, {"node": "11" * 32}):
                for status, reply in with_stamp(**changes):
                    self.assertEqual(status, 409, (changes, reply))
            self.assertEqual([status for status, _ in with_stamp()], [200, 200], "a fresh stamp is taken")

            self.node.process.kill()
            self.node.stop()
            self.start_node(folder)
            self.node.wait_ready()
            status, reply = self.frames.send(OPEN, recorded.body, recorded.headers)
            self.assertEqual(status, 409, reply)
            self.assertIn("not fresh", json.loads(reply)["error"]["message"])
            self.assertEqual(self.sessions(), 0)
            self.tracker.wait_ready()
            self.answer()


if __name__ == "__main__":
    unittest.main()
