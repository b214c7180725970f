"""What a stranger on the wire can do: proxies between two programs that record, change, hold back and repeat messages, and
keys to sign forgeries with."""
import contextlib
import ctypes
import dataclasses
import hashlib
import http.client
import http.server
import os
import pathlib
import queue
import threading
from collections.abc import Callable

import ed25519

CLONE_NEWNET = 0x40000000


def inside(namespace: str | None, call: Callable):
    """What `call` returns, run by a thread in that network namespace, as are all threads and sockets it makes."""
    if namespace is None:
        return call()
    results: queue.Queue = queue.Queue()

    def enter():
        try:
            with open(f"/run/netns/{namespace}", "rb") as place:
                if ctypes.CDLL(None, use_errno=True).setns(place.fileno(), CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), f"cannot enter namespace {namespace}")
            results.put((call(), None))
        except BaseException as failure:
            results.put((None, failure))

    threading.Thread(target=enter, daemon=True).start()
    value, failure = results.get()
    if failure is not None:
        raise failure
    return value


@dataclasses.dataclass
class Exchange:
    """A request and its answer as they went through; what a hook changes is what the other side gets."""
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    status: int = 0
    reply_headers: dict[str, str] = dataclasses.field(default_factory=dict)
    reply: bytes = b""
    genuine: bytes = b""  # the reply before the hook


def send(host: str, port: int, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None, namespace=None):
    """(status, body) of one request over a connection of its own."""
    def call():
        connection = http.client.HTTPConnection(host, port, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()
    return inside(namespace, call)


class Proxy:
    """Listens on `at` and passes each request on to `to`; hooks run in between, in the order of the wire."""
    HOP_BY_HOP = {"host", "connection", "keep-alive", "content-length", "transfer-encoding", "expect"}

    def __init__(self, at: tuple[str, int], to: tuple[str, int], namespace: str | None = None):
        self.to, self.namespace = to, namespace
        self.exchanges: list[Exchange] = []
        self.before: Callable[[Exchange], None] = lambda exchange: None
        self.after: Callable[[Exchange], None] = lambda exchange: None
        self.failures: list[BaseException] = []
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            timeout = 60

            def do_POST(self):
                proxy._pass_on(self)

            do_GET = do_POST

            def finish(self):
                super().finish()
                if "upstream" in self.__dict__:
                    self.upstream.close()

            def log_message(self, *arguments):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request, address):
                pass  # a peer that goes away in the middle

        def start():
            server = Server(at, Handler)
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
            return server

        self._server = inside(namespace, start)
        self.address = "%s:%d" % self._server.server_address

    def _pass_on(self, handler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        kept = {name: value for name, value in handler.headers.items() if name.lower() not in self.HOP_BY_HOP}
        exchange = Exchange(handler.command, handler.path, kept, body)
        self._hook(self.before, exchange)
        connection = handler.__dict__.setdefault("upstream", http.client.HTTPConnection(*self.to, timeout=30))
        try:
            connection.request(exchange.method, exchange.path, exchange.body, exchange.headers)
            answer = connection.getresponse()
            exchange.status, exchange.reply = answer.status, answer.read()
            exchange.genuine = exchange.reply
            exchange.reply_headers = {name: value for name, value in answer.getheaders() if name.lower() not in self.HOP_BY_HOP}
        except (OSError, http.client.HTTPException):
            connection.close()
            handler.close_connection = True  # the caller sees what it would have seen: no answer
            return
        self._hook(self.after, exchange)
        self.exchanges.append(exchange)
        lines = [f"HTTP/1.1 {exchange.status} {answer.reason}", f"Content-Length: {len(exchange.reply)}"]
        lines += [f"{name}: {value}" for name, value in exchange.reply_headers.items()]
        handler.wfile.write("\r\n".join([*lines, "", ""]).encode() + exchange.reply)

    def _hook(self, hook: Callable[[Exchange], None], exchange: Exchange) -> None:
        try:
            hook(exchange)
        except BaseException as failure:  # a check that failed: the test's own thread raises it
            self.failures.append(failure)

    def send(self, path: str, body: bytes, headers: dict[str, str] | None = None, method: str = "POST") -> tuple[int, bytes]:
        """A request of the stranger's own to whom the proxy passes on to."""
        return send(*self.to, method, path, body, headers, self.namespace)

    def of(self, path: str) -> list[Exchange]:
        return [exchange for exchange in self.exchanges if exchange.path == path]

    def calm(self) -> None:
        """No more hooks; raises what one of them found wrong."""
        self.before = self.after = lambda exchange: None
        if self.failures:
            raise self.failures[0]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def key_of(file: pathlib.Path) -> ed25519.Key:
    """The key pair that a program keeps in its data folder."""
    return ed25519.Key(bytes.fromhex(file.read_text().split()[1]))


def stranger() -> ed25519.Key:
    return ed25519.Key(os.urandom(32))


def signed(key: ed25519.Key, path: str, body: bytes) -> dict[str, str]:
    return {"X-Meshnet-Key": key.public.hex(), "X-Meshnet-Signature": key.sign(b"meshnet/1 " + path.encode() + b"\n" + body).hex()}


def node_id(key: ed25519.Key) -> str:
    return hashlib.sha256(key.public).hexdigest()


def flipped(data: bytes, at: int) -> bytes:
    """With one bit changed."""
    at %= len(data)
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]
