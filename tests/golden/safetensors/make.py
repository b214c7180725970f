#!/usr/bin/env python3
"""Makes the files that common/safetensors and common/hub are tested on, with the reference implementations.

Needs torch, safetensors and huggingface_hub; run it in this folder. The results are committed.
  dtypes.safetensors  a [2, 3] tensor of each element type of torch with 1 … 6 (BOOL 0 1 0 1 0 1, E8M0 1 2 4 … 32)
  sharded/            two shards and an index, written by huggingface_hub
  hf_cache/           a cache that huggingface_hub wrote from a local server: two commits, a tag, LFS and plain files
"""
import hashlib
import http.server
import json
import os
import shutil
import threading
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict, snapshot_download
from safetensors.torch import save, save_file

HERE = Path(__file__).parent
DTYPES = [torch.bool, torch.uint8, torch.int8, torch.float8_e5m2, torch.float8_e4m3fn, torch.float8_e8m0fnu,
          torch.int16, torch.uint16, torch.float16, torch.bfloat16, torch.int32, torch.uint32, torch.float32,
          torch.complex64, torch.float64, torch.int64, torch.uint64]
COMMITS = {"main": "a" * 40, "v1": "b" * 40}


def counting(dtype):
    values = torch.arange(1, 7, dtype=torch.float32).reshape(2, 3)
    if dtype == torch.bool:
        return (torch.arange(6) % 2 == 1).reshape(2, 3)
    if dtype == torch.float8_e8m0fnu:
        values = 2.0 ** torch.arange(6, dtype=torch.float32).reshape(2, 3)
    return values.to(dtype)


def repo_files(revision):
    """Name → bytes of the made-up repository tiny/model at a revision."""
    scale = 1.0 if revision == "main" else 2.0
    tensors = {"w": torch.arange(8, dtype=torch.float32) * scale}
    return {"config.json": json.dumps({"model_type": "llama", "revision": revision}).encode(),
            "tokenizer.json": b"{}", "model.safetensors": save(tensors)}


class Hub(http.server.BaseHTTPRequestHandler):
    """The few answers of the Hub that snapshot_download asks for."""

    def log_message(self, *_):
        pass

    def answer(self, body, headers=()):
        self.send_response(200)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_GET(self):
        path = self.path.split("?")[0].strip("/").split("/")
        revision = next(name for name in COMMITS if name in path or COMMITS[name] in path)
        files = repo_files(revision)
        if path[0] == "api":
            if "tree" in path:
                listing = [{"type": "file", "path": name, "size": len(body), "oid": "0" * 40}
                           for name, body in files.items()]
                return self.answer(json.dumps(listing).encode(), [("Content-Type", "application/json")])
            info = {"id": "tiny/model", "sha": COMMITS[revision], "private": False, "tags": [], "downloads": 0,
                    "likes": 0, "siblings": [{"rfilename": name} for name in files]}
            return self.answer(json.dumps(info).encode(), [("Content-Type", "application/json")])
        body = files[path[-1]]
        lfs = path[-1].endswith(".safetensors")
        etag = hashlib.sha256(body).hexdigest() if lfs else hashlib.sha1(
            b"blob %d\0" % len(body) + body).hexdigest()
        return self.answer(body, [("ETag", f'"{etag}"'), ("X-Repo-Commit", COMMITS[revision]),
                                  ("X-Linked-Size", str(len(body)))])

    do_HEAD = do_GET


def make_cache():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    cache = HERE / "hf_cache"
    shutil.rmtree(cache, ignore_errors=True)
    for revision in COMMITS:
        snapshot_download("tiny/model", revision=revision, cache_dir=cache,
                          endpoint=f"http://127.0.0.1:{server.server_port}")
    shutil.rmtree(cache / ".locks", ignore_errors=True)
    server.shutdown()


def main():
    os.environ["HF_HUB_DISABLE_XET"] = "1"
    save_file({str(dtype).removeprefix("torch."): counting(dtype) for dtype in DTYPES}, HERE / "dtypes.safetensors",
              metadata={"format": "pt"})
    shutil.rmtree(HERE / "sharded", ignore_errors=True)
    (HERE / "sharded").mkdir()
    state = {f"model.layers.{i}.weight": torch.full((16, 16), float(i)) for i in range(4)}
    save_torch_state_dict(state, HERE / "sharded", max_shard_size=2048)
    (HERE / "sharded" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    make_cache()


if __name__ == "__main__":
    main()
