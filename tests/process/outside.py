"""What can be seen of a node's reading from outside: tensors' places in the files, resident pages, memory, disk."""
import ctypes
import json
import mmap
import os
import pathlib
import re
import sys
import threading

import programs

sys.path.insert(0, str(programs.ROOT / "tests" / "golden"))
import poison  # noqa: E402

PIECE = 1 << 20


class Stage:
    """The tensors that layers [begin, end) of a checkpoint need, file by file."""

    def __init__(self, checkpoint: pathlib.Path, begin: int, end: int):
        config = json.loads((checkpoint / "config.json").read_text())
        layers = config.get("num_hidden_layers", config.get("n_layer"))
        tied = config.get("tie_word_embeddings", config.get("model_type") == "gpt2")
        self.spans: dict[str, list[tuple[int, int]]] = {}
        self.header = 0
        for path in sorted(checkpoint.glob("*.safetensors")):
            if path.name.startswith("golden"):
                continue
            with path.open("rb") as file:
                header, data = poison.read_header(file)
            self.header += data
            self.spans[path.name] = [(0, data)] + [
                (data + info["data_offsets"][0], data + info["data_offsets"][1]) for name, info in header.items()
                if poison.needed(name, begin, end, layers, tied)]

    @property
    def own(self) -> int:
        return sum(end - begin for spans in self.spans.values() for begin, end in spans) - self.header

    def rounded(self) -> int:
        """Bytes of the whole pieces that hold the tensors and the headers."""
        return sum(len({piece for begin, end in spans for piece in range(begin // PIECE, (end - 1) // PIECE + 1)})
                   for spans in self.spans.values()) * PIECE


def mapped(pid: int, suffix: str = ".safetensors") -> int:
    """Resident bytes of a process's mappings of files with that suffix."""
    total, inside = 0, False
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = line.endswith(suffix)
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def memory(pid: int) -> dict[str, int]:
    """VmRSS and VmHWM in bytes."""
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return {name: int(re.search(rf"^{name}:\s+(\d+) kB", text, re.M)[1]) * 1024 for name in ("VmRSS", "VmHWM")}


class PeakOfMapping:
    """Watches a process's mappings of model files while it runs; `bytes` is the most that was seen resident at once."""

    def __init__(self, pid: int, suffix: str = ".safetensors"):
        self.bytes, self.looks = 0, 0
        self._pid, self._suffix, self._done = pid, suffix, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._done.wait(0.005):
            try:
                self.bytes = max(self.bytes, mapped(self._pid, self._suffix))
                self.looks += 1
            except OSError:
                return

    def stop(self) -> int:
        self._done.set()
        self._thread.join()
        return self.bytes


def on_disk(folder: pathlib.Path, name: str) -> int:
    """Bytes that the disk holds of all files of that name under a folder; holes count nothing."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob(name) if path.is_file())


class PageCache:
    """How much of a file the system has in memory: all that was read of it since `drop`, by whomever."""

    def __init__(self, path: pathlib.Path):
        self.path, self.size = path, path.stat().st_size

    def drop(self) -> bool:
        """False where the file system keeps pages anyway (a file system in memory)."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
        return self.bytes() == 0

    def bytes(self) -> int:
        with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as view:
            pages = (ctypes.c_ubyte * ((self.size + mmap.PAGESIZE - 1) // mmap.PAGESIZE))()
            start = ctypes.c_char.from_buffer(view)
            failed = ctypes.CDLL(None, use_errno=True).mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(self.size), pages)
            del start
            if failed:
                raise OSError(ctypes.get_errno(), "mincore")
            return sum(page & 1 for page in pages) * mmap.PAGESIZE
