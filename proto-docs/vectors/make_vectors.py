#!/usr/bin/env python3
"""Writes the golden vectors of wire version 1 from proto-docs/wire.md alone: no code of the product takes part.

Needs Python 3.9 or newer and the zstd command. Run it in this folder; the files are committed, tests only read them.
"""
import hashlib
import json
import struct
import subprocess

SESSION = bytes(range(16))
IDENTITY = bytes(range(32, 64))
SECRET = bytes(range(100, 132))


def mac(domain, data):
    return hashlib.blake2b(domain + data, digest_size=16, key=SECRET).digest()


def zstd(data):
    """One frame with its content size in the header: the size is known because the input is a file."""
    with open("raw.tmp", "wb") as f:
        f.write(data)
    coded = subprocess.run(["zstd", "-1", "-q", "--no-check", "-c", "raw.tmp"], check=True, capture_output=True).stdout
    subprocess.run(["rm", "raw.tmp"], check=True)
    return coded


def segment(*, codec=0, hidden=b"", hidden_size=0, rows=1, start=0, seq=1, generation=1, ids=(), axes=0, positions=(),
            spans=(), sides=(), sample=False, bulk=False, deadline=0, begin=3, end=6, coded=None):
    coded = hidden if coded is None else coded
    body = struct.pack("<HBB", sample | bulk << 1, codec, axes) + SESSION + IDENTITY
    body += struct.pack("<QQIIIIIIIHHII", generation, seq, begin, end, start, rows, hidden_size, deadline, len(ids),
                        len(spans), len(sides), len(coded), 0)
    assert len(body) == 108
    body += b"".join(struct.pack("<i", i) for i in ids)
    body += b"".join(struct.pack("<i", p) for p in positions)
    body += b"".join(struct.pack("<II", *span) for span in spans)
    for name, width, data in sides:
        assert len(data) == 2 * rows * width
        body += bytes([len(name)]) + name + struct.pack("<I", width) + data
    body += coded
    data = struct.pack("<I", 4 + len(body) + 16) + body
    return data + mac(b"meshnet/1 segment", data)


def frame(*segments):
    body = b"".join(segments)
    return b"MSHF" + struct.pack("<HHI", 1, len(segments), 12 + len(body)) + body


def write(name, data):
    with open(name, "wb") as f:
        f.write(data)


# bf16 values 0.5, 1.0, -2.0, 3.0 and so on: exponents alike, mantissas few.
ROW = struct.pack("<8H", 0x3F00, 0x3F80, 0xC000, 0x4040, 0x3F80, 0x3F80, 0xBF80, 0x4040)
MANY = ROW * 64  # 64 rows of 8

write("frame_identity.bin", frame(segment(hidden=ROW, hidden_size=8, start=7, seq=9, generation=2, sample=True,
                                          deadline=1500)))
write("frame_zstd.bin", frame(segment(codec=1, hidden=MANY, coded=zstd(MANY), hidden_size=8, rows=64, bulk=True)))
exponents = bytes((MANY[i + 1] << 1 & 0xFF) | MANY[i] >> 7 for i in range(0, len(MANY), 2))
rest = bytes((MANY[i + 1] & 0x80) | (MANY[i] & 0x7F) for i in range(0, len(MANY), 2))
write("frame_split.bin", frame(segment(codec=2, hidden=MANY, coded=zstd(exponents) + rest, hidden_size=8, rows=64,
                                       bulk=True)))
write("frame_all_parts.bin", frame(
    segment(hidden=ROW, hidden_size=4, rows=2, start=5, ids=(11, -1), axes=3, positions=(5, 6, 5, 5, 5, 6),
            spans=((5, 7),), sides=((b"cross", 2, struct.pack("<4H", 1, 2, 3, 4)),)),
    segment(rows=3, ids=(1, 2, 3), begin=0, end=0, seq=2, sample=True)))


def token(position, token_id, logprob):
    data = SESSION + struct.pack("<QIifI", 2, position, token_id, logprob, 0)
    return data + mac(b"meshnet/1 token", data)


write("tokens.bin", b"MSHT" + struct.pack("<HH", 1, 2) + token(8, 42, -0.25) + token(9, 49151, 0.0))
write("segment_answers.bin", b"MSHA" + struct.pack("<HH", 1, 1) + SESSION
      + struct.pack("<IIQQQII", 3, 6, 9, 2, 4, 8, 0))
write("token_answers.bin", b"MSHB" + struct.pack("<HH", 1, 1) + SESSION + struct.pack("<II", 8, 2))


def control(name, message):
    write(name, json.dumps(message, indent=1).encode() + b"\n")


CURSOR = {"generation": 3, "applied": 2, "next": 9}
HOP = {"session": SESSION.hex(), "begin": 6}
FRESH = {"node": (b"\6" * 32).hex(), "start": 4, "number": 117}
control("open_tail.json", {
    "session": SESSION.hex(), "generation": 3, "identity": IDENTITY.hex(), "range": {"begin": 6, "end": 12},
    "takes_ids": False, "max_tokens": 512, "lease_ms": 30000, "head_url": "http://10.0.0.1:8070", "secret": "00ff",
    "fresh": FRESH,
    "tail": {"sampling": {"temperature": 0.75, "top_p": 0.5, "top_k": 40, "seed": 2**64 - 1, "choice": 1},
             "ids": [1, 2, 3]},
    "emit_from": 17})
control("open_first.json", {
    "session": SESSION.hex(), "generation": 1, "identity": IDENTITY.hex(), "range": {"begin": 0, "end": 6},
    "takes_ids": True, "max_tokens": 512, "lease_ms": 30000, "head_url": "http://10.0.0.1:8070", "secret": "00ff",
    "fresh": FRESH,
    "next": {"node": (b"\5" * 32).hex(), "url": "http://10.0.0.7:8090", "range": {"begin": 6, "end": 12}}})


def prefix_keys(salt, ids):
    keys, parent = [], bytes(32)
    for at in range(0, len(ids) - len(ids) % 128, 128):
        block = struct.pack("<128i", *ids[at:at + 128])
        parent = hashlib.sha256(b"meshnet/1 prefix" + parent + IDENTITY + salt + block + bytes(1) + bytes(32)).digest()
        keys.append(parent.hex())
    return keys


# Three full blocks and a rest; the second begins with an id of four bytes.
PROMPT = [index * 7919 % 50000 for index in range(128)] + [2**31 - 1] + list(range(300))
PREFIX = {salt.hex(): prefix_keys(salt, PROMPT) for salt in (bytes(32), bytes(range(200, 232)))}
control("prefix_keys.json", {"identity": IDENTITY.hex(), "ids": PROMPT, "salts": PREFIX})
control("open_offer.json", {
    "session": SESSION.hex(), "generation": 1, "identity": IDENTITY.hex(), "range": {"begin": 0, "end": 6},
    "takes_ids": True, "max_tokens": 512, "lease_ms": 30000, "head_url": "http://10.0.0.1:8070", "secret": "00ff",
    "fresh": FRESH,
    "next": {"node": (b"\5" * 32).hex(), "url": "http://10.0.0.7:8090", "range": {"begin": 6, "end": 12}},
    "prefix": PREFIX[bytes(32).hex()]})
control("open_reply.json", {"code": "no_room", "cursor": CURSOR, "window": {"segments": 16, "rows": 1024},
                            "kept_from": 4, "message": "the cache is full"})
control("close.json", {"session": SESSION.hex(), "generation": 4})
control("cursors.json", {"hops": [HOP]})
control("cursors_reply.json", {"hops": [dict(HOP, known=True, cursor=CURSOR, kept_from=1, computed=8)]})
control("renew.json", {"sessions": [SESSION.hex()], "lease_ms": 30000, "fresh": FRESH})
control("renew_reply.json", {"unknown": [SESSION.hex()]})
control("report.json", dict(HOP, generation=3, code="step_failed", kept_from=4, message="why"))
