"""Builds each preset that the tests need and runs every suite; see tests/run for how to call it.

A suite is a function from Options to Tally. A suite that cannot be built or started counts as one failure, so that
nothing is silently left out.
"""
import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "log"
SANITIZER_ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0:detect_container_overflow=0",
    "LSAN_OPTIONS": f"suppressions={ROOT}/tests/lsan.supp:print_suppressions=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=0:second_deadlock_stack=1",
}


@dataclasses.dataclass
class Tally:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


@dataclasses.dataclass
class Options:
    long: bool
    fuzz_seconds: int


def jobs() -> int:
    memory_kib = next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemAvailable"))
    return max(1, min(os.cpu_count() or 1, memory_kib // 1_572_864))


class Progress:
    """How far a build is by its log: on a terminal one line that changes, else a line every 20 seconds."""

    def __init__(self, name: str, log: pathlib.Path):
        self.name, self.log, self.began, self.shown = name, log, time.monotonic(), 0.0

    def show(self) -> None:
        seconds = time.monotonic() - self.began
        terminal = sys.stdout.isatty()
        if seconds - self.shown < (0.5 if terminal else 20):
            return
        self.shown = seconds
        with self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
            steps = re.findall(rb"^\[(\d+)/(\d+)\]", log.read(), re.M)
        done = f"{int(steps[-1][0])} of {int(steps[-1][1])}, " if steps else ""
        text = f"  … {self.name}: {done}{seconds:.0f} s"
        print(f"\r{text}\033[K" if terminal else text, end="" if terminal else "\n", flush=True)

    def end(self) -> None:
        if sys.stdout.isatty():
            print("\r\033[K", end="", flush=True)


def run(name: str, command: list[str], environment: dict[str, str] | None = None, timeout: float = 1800, is_build: bool = False) -> tuple[int, str]:
    """Runs `command` with its output in a log; returns the exit code and the output."""
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"test-{re.sub('[^A-Za-z0-9]+', '-', name)}.log"
    with log.open("wb") as out:
        progress = Progress(name, log) if is_build else None
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                   env={**os.environ, **SANITIZER_ENVIRONMENT, **(environment or {})})
        try:
            code = wait(process, timeout, progress)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if code is None:
            out.write(f"\nstopped after {timeout:.0f} s\n".encode())
            code = 124
    text = log.read_text(errors="replace")
    if code != 0:
        print(f"--- {name}: exit {code}; the end of {log.relative_to(ROOT)}:\n{text[-6000:]}\n---", flush=True)
    return code, text


def wait(process: subprocess.Popen, timeout: float, progress: Progress | None) -> int | None:
    """The exit code; None when the time is over."""
    if progress is None:
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        try:
            return process.wait(0.2)
        except subprocess.TimeoutExpired:
            progress.show()
        finally:
            if process.returncode is not None:
                progress.end()
    return None


def build(preset: str, *options: str, targets: tuple[str, ...] = ()) -> bool:
    began = time.monotonic()
    code, _ = run(f"configure-{preset}", ["cmake", "--preset", preset, "-DMESH_TESTS=ON", *options])
    if code == 0:
        arguments = ["--target", *targets] if targets else []
        code, _ = run(f"build-{preset}", ["nice", "cmake", "--build", f"build/{preset}", "-j", str(jobs()), *arguments], timeout=3000, is_build=True)
    print(f"  built {preset} in {time.monotonic() - began:.0f} s" if code == 0 else f"  {preset} does not build", flush=True)
    return code == 0


def gtest_programs(preset: str, options: Options, environment: dict[str, str] | None = None) -> Tally:
    """Every *_test program of the preset; tests whose name begins with Long run with --long only."""
    programs = sorted((ROOT / "build" / preset / "bin").glob("*_test"))
    with concurrent.futures.ThreadPoolExecutor(jobs()) as pool:
        tallies = list(pool.map(lambda program: gtest_program(preset, program, options, environment), programs))
    return sum(tallies, Tally()) if programs else Tally(failed=1)


def gtest_program(preset: str, program: pathlib.Path, options: Options, environment: dict[str, str] | None) -> Tally:
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        command = [str(program), f"--gtest_output=json:{report.name}", "--gtest_brief=1"]
        if not options.long:
            command.append("--gtest_filter=-*.Long*")
        code, _ = run(f"{preset}-{program.name}", command, environment, timeout=5400 if options.long else 900)
        try:
            results = json.load(open(report.name))
            cases = [case for suite in results["testsuites"] for case in suite["testsuite"]]
            skipped = sum(case.get("result") == "SKIPPED" for case in cases)
            tally = Tally(results["tests"] - results["failures"] - skipped, results["failures"], skipped)
        except ValueError:  # it died before it could report
            tally = Tally(failed=1)
    if code != 0 and tally.failed == 0:
        tally.failed = 1
    print(f"  {preset}/{program.name}: {tally}", flush=True)
    return tally


def unittest_files(folder: str, python: str, options: Options, environment: dict[str, str]) -> Tally:
    total = Tally()
    for file in sorted((ROOT / folder).glob("test_*.py")):
        code, text = run(file.stem, [python, str(file), "-v"], {"MESHNET_BIN": str(ROOT / "build/release/bin"), "MESHNET_LONG": str(int(options.long)), **environment})
        ran = re.search(r"^Ran (\d+) tests? in", text, re.M)
        if ran:
            count = {key: int(value) for key, value in re.findall(r"(failures|errors|skipped)=(\d+)", text.splitlines()[-1])}
            failed, skipped = count.get("failures", 0) + count.get("errors", 0), count.get("skipped", 0)
            # A class that is skipped whole counts among the skipped, not among those that ran.
            tally = Tally(max(0, int(ran[1]) - failed - skipped), failed, skipped)
        else:
            tally = Tally(failed=1)
        if code != 0 and tally.failed == 0:
            tally.failed = 1
        print(f"  {file.relative_to(ROOT)}: {tally}", flush=True)
        total += tally
    return total


def smollm2() -> dict[str, str]:
    return {"MESHNET_SMOLLM2": str(ROOT / "build/models/SmolLM2-135M-Instruct")}


def suite_house(options: Options) -> Tally:
    """Rules of the house that need no build: include arrows, file sizes, words that stay out."""
    return unittest_files("tests/house", sys.executable, options, {})


def suite_unit(options: Options) -> Tally:
    return gtest_programs("release", options, smollm2()) if build("release", "-DMESH_CUDA=ON", "-DMESH_TORCH=ON") else Tally(failed=1)


def suite_process(options: Options) -> Tally:
    return unittest_files("tests/process", sys.executable, options, smollm2())


def suite_openai(options: Options) -> Tally:
    """The official clients for Python and Node against a running mesh."""
    code, _ = run("openai-setup", ["tests/openai/setup"])
    if code != 0:
        return Tally(failed=1)
    return unittest_files("tests/openai", str(ROOT / "build/deps/openai/bin/python"), options, smollm2())


def suite_asan(options: Options) -> Tally:
    return gtest_programs("asan-ubsan", options) if build("asan-ubsan", targets=("unit_tests",)) else Tally(failed=1)


def suite_tsan(options: Options) -> Tally:
    return gtest_programs("tsan", options) if build("tsan", targets=("unit_tests",)) else Tally(failed=1)


def suite_fuzz(options: Options) -> Tally:
    if not build("fuzz", targets=("fuzzers",)):
        return Tally(failed=1)
    programs = sorted((ROOT / "build/fuzz/bin").glob("fuzz_*"))
    with concurrent.futures.ThreadPoolExecutor(jobs()) as pool:
        tallies = list(pool.map(lambda program: fuzz(program, options), programs))
    return sum(tallies, Tally()) if programs else Tally(failed=1)


def fuzz(program: pathlib.Path, options: Options) -> Tally:
    """One target for options.fuzz_seconds, from its committed corpus and from what earlier runs here found."""
    corpus = ROOT / "tests/fuzz/corpus" / program.name
    work = ROOT / "build/fuzz/corpus" / program.name
    work.mkdir(parents=True, exist_ok=True)
    command = [str(program), f"-max_total_time={options.fuzz_seconds}", "-rss_limit_mb=2048", "-timeout=10",
               f"-artifact_prefix={ROOT}/build/fuzz/{program.name}-", str(work), *([str(corpus)] if corpus.is_dir() else [])]
    code, _ = run(program.name, command, timeout=options.fuzz_seconds + 120)
    tally = Tally(passed=int(code == 0), failed=int(code != 0))
    print(f"  {program.name} for {options.fuzz_seconds} s: {tally}", flush=True)
    return tally


SUITES = {"house": suite_house, "unit": suite_unit, "process": suite_process, "openai": suite_openai, "asan": suite_asan,
          "tsan": suite_tsan, "fuzz": suite_fuzz}


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/run", description="Sets up, builds and runs the tests.")
    parser.add_argument("--long", action="store_true", help="also what is labelled long; fuzz targets for 10 minutes each")
    parser.add_argument("--only", nargs="+", choices=SUITES, default=list(SUITES), metavar="SUITE", help="run these suites")
    parser.add_argument("--list", action="store_true", help="print the suites")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(SUITES))
        return 0
    options = Options(arguments.long, 600 if arguments.long else 10)
    total = Tally()
    for name in arguments.only:
        began = time.monotonic()
        print(f"{name}:", flush=True)
        try:
            tally = SUITES[name](options)
        except Exception as error:  # a broken suite is a failure, and the others still run
            print(f"  {name} broke: {error!r}")
            tally = Tally(failed=1)
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
        total += tally
    print(total)
    return int(total.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
