"""Rules of the house that the sources alone can break."""
import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SOURCES = {".h", ".hpp", ".cc", ".cpp", ".cu", ".cuh", ".rs", ".py"}
TEXTS = SOURCES | {".md", ".txt", ".cmake", ".html", ".js", ""}
ROOMS_ABOVE = {"common": ("node", "tracker", "tests"), "node": ("tracker", "tests"), "tracker": ("tests",)}


def files(suffixes: set[str]) -> list[pathlib.Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file() and pathlib.Path(name).suffix in suffixes]


def includes(file: pathlib.Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*[<"]([^">]+)[">]', file.read_text(), re.M)


def place(file: pathlib.Path) -> str:
    return str(file.relative_to(ROOT))


class House(unittest.TestCase):
    def test_includes_point_from_tracker_to_node_to_common(self):
        wrong = [f"{place(file)} includes {name}" for file in files(SOURCES) for name in includes(file)
                 if name.split("/")[0] in ROOMS_ABOVE.get(place(file).split("/")[0], ())]
        self.assertEqual(wrong, [])

    def test_only_the_engine_and_tensor_parallel_rooms_include_torch(self):
        allowed = ("node/engine/", "node/tp/", "tests/bench/")
        wrong = [f"{place(file)} includes {name}" for file in files(SOURCES) if not place(file).startswith(allowed)
                 for name in includes(file) if re.match(r"(ATen|torch|c10|cuda)", name)]
        self.assertEqual(wrong, [])

    def test_the_engine_s_public_headers_are_free_of_torch(self):
        for file in (ROOT / "node/engine/engine.h", ROOT / "node/node.h"):
            self.assertEqual([name for name in includes(file) if re.match(r"(ATen|torch|c10)", name)], [], place(file))

    def test_only_the_net_room_includes_httplib(self):
        wrong = [place(file) for file in files(SOURCES) if not place(file).startswith("common/net/") and "httplib.h" in includes(file)]
        self.assertEqual(wrong, [])

    def test_no_source_file_is_over_500_lines(self):
        long = {place(file): count for file in files(SOURCES) if (count := file.read_text().count("\n")) > 500}
        self.assertEqual(long, {})

    def test_the_project_speaks_of_itself_alone(self):
        words = re.compile("|".join((r"/wo" + r"rk/", r"\bhelper-\d", r"deb\.deb" + "ian", r"pypi" + r"\.org", r"crates" + r"\.io", r"registry\.npm" + "js")))
        wrong = [f"{place(file)}:{number}: {line.strip()[:80]}" for file in files(TEXTS) if "/golden/" not in place(file)
                 for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1) if words.search(line)]
        self.assertEqual(wrong, [])

    def test_every_room_says_what_belongs_in_it(self):
        rooms = [folder for top in ("common", "node", "tracker") for folder in (ROOT / top).iterdir() if (folder / "CMakeLists.txt").is_file()]
        self.assertEqual([place(room) for room in rooms if not (room / "README.md").is_file()], [])


if __name__ == "__main__":
    unittest.main()
