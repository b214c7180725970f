"""What deploy/setup tells its reader: the one line for root, and how far a build is."""
import os
import pathlib
import pty
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LINE = "    apt-get update && apt-get install -y --no-install-recommends libfoo-dev libbar-dev\n"
# An ordinary user without sudo, on a system that lacks two packages until somebody makes the file `installed`.
STAGE = f"""
source {ROOT}/deploy/lib.sh
id() {{ echo 1000; }}
may_sudo() {{ return 1; }}
missing_packages() {{ [ -e installed ] || printf 'libfoo-dev libbar-dev '; }}
system_packages programs
step "the next step" true
"""


class Setup(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="meshnet-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def bash(self, script: str) -> subprocess.CompletedProcess:
        return subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)

    def test_without_a_terminal_it_says_what_root_must_type_once_and_ends(self):
        ran = self.bash(STAGE)
        self.assertEqual((ran.returncode, ran.stdout), (2, ""))
        self.assertEqual(ran.stderr.count(LINE), 1)
        self.assertIn("Then run the same command again", ran.stderr)
        self.assertNotIn("failed", ran.stderr)
        self.assertNotIn("the next step", ran.stderr)

    def test_on_a_terminal_it_goes_on_when_the_packages_are_there(self):
        ours, theirs = pty.openpty()
        setup = subprocess.Popen(["bash", "-euo", "pipefail", "-c", STAGE], cwd=self.folder, stdin=theirs, stdout=theirs, stderr=theirs)
        self.addCleanup(setup.kill)
        os.close(theirs)
        text = b""
        while "… system packages".encode() not in text:
            text += os.read(ours, 4096)
        self.assertEqual(text.replace(b"\r\n", b"\n").count(LINE.encode()), 1)
        (self.folder / "installed").touch()
        while "✓ the next step".encode() not in text:
            text += os.read(ours, 4096)
        self.assertEqual(setup.wait(30), 0)
        os.close(ours)

    def test_what_must_be_done_first_is_said_without_a_log(self):
        ran = self.bash(f"source {ROOT}/deploy/lib.sh; step 'check this machine' usage 'free some space'")
        self.assertEqual((ran.returncode, ran.stderr), (2, "meshnet: free some space\n"))

    def test_a_step_that_fails_shows_the_end_of_its_log(self):
        ran = self.bash(f"source {ROOT}/deploy/lib.sh; step 'fetch' bash -c 'echo no network; exit 1'")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("✗ fetch failed", ran.stderr)
        self.assertIn("no network", ran.stderr)

    def mirror(self, *sources: str) -> str:
        files = []
        for text in sources:
            files.append(self.folder / f"{len(files)}.sources")
            files[-1].write_text(text)
        return self.bash(f"source {ROOT}/deploy/lib.sh; debian_mirror {' '.join(map(str, files))}").stdout.strip()

    def test_the_mirror_is_debians_whatever_repositories_stand_before_it(self):
        gpu = "deb [signed-by=/usr/share/keyrings/k.gpg] https://gpu.example/repos/debian12/x86_64/ /\n"
        tool = "deb [arch=amd64 signed-by=/k.gpg] https://tool.example/debian bookworm stable\n"
        debian = "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates\nComponents: main\n\n"
        security = "Types: deb\nURIs: http://mirror.example/debian-security\nSuites: bookworm-security\nComponents: main\n\n"
        line = "# a comment\ndeb [arch=amd64] http://mirror.example/debian/ trixie main contrib\n"
        self.assertEqual(self.mirror(gpu, tool, security + debian), "http://mirror.example/debian")
        self.assertEqual(self.mirror(gpu, line), "http://mirror.example/debian/")
        self.assertEqual(self.mirror("Enabled: no\n" + debian, line), "http://mirror.example/debian/")

    def test_a_list_of_mirrors_as_cloud_images_have_it_is_one_and_ubuntus_archive_is_none(self):
        cloud = "Types: deb\nURIs: mirror+file:/etc/apt/mirrors/debian.list\nSuites: trixie\nComponents: main\n"
        ubuntu = "Types: deb\nURIs: http://archive.example/ubuntu/\nSuites: noble noble-updates\nComponents: main universe\n"
        self.assertEqual(self.mirror(ubuntu, cloud), "mirror+file:/etc/apt/mirrors/debian.list")
        self.assertEqual(self.mirror(ubuntu), "")

    def test_the_disk_that_is_asked_for_grows_with_what_is_set_up(self):
        def needed(*flags: int) -> int:
            return int(self.bash(f"source {ROOT}/deploy/lib.sh; needed_mib {' '.join(map(str, flags))}").stdout)
        unpacked = 2707 + 641  # MiB of nvidia/ and triton/ as gpu.lock's wheels unpack, beside the torch that is there
        self.assertEqual(needed(1, 0, 0, 1), 4000)  # README's figures
        self.assertEqual(needed(1, 1, 1, 0), 12000)
        self.assertGreaterEqual(needed(0, 0, 1, 1) - needed(0, 0, 1, 0), unpacked + 2100)  # and the downloads under way
        self.assertLessEqual(needed(0, 0, 1, 1), 11000)
        self.assertLessEqual(needed(0, 0, 1, 0), 5200)

    def test_too_little_disk_is_said_with_the_sum(self):
        full = f"source {ROOT}/deploy/lib.sh; df() {{ printf 'head\\ndisk 1 1 4500 1 /\\n'; }}; uname() {{ echo Linux x86_64; }}; suite() {{ echo trixie; }}; has_gpu() {{ true; }}"
        self.assertEqual(self.bash(f"{full}; check_machine 1 0 0").returncode, 0)
        ran = self.bash(f"{full}; check_machine 0 0 1")
        self.assertEqual(ran.returncode, 2)
        self.assertIn("needs 10600 MiB", ran.stderr)
        (self.folder / "build" / "deps" / "venv").mkdir(parents=True)
        self.assertEqual(self.bash(f"{full}; check_machine 0 0 1").returncode, 2, "the demo was set up, not CUDA")
        for name in ("torch.done", "cuda.done"):
            (self.folder / "build" / "deps" / name).touch()
        self.assertEqual(self.bash(f"{full}; check_machine 0 0 1").returncode, 0)

    def test_a_build_says_how_many_of_its_steps_are_done(self):
        ran = self.bash(f"source {ROOT}/deploy/lib.sh; printf '[1/300] a.cc\\n[12/345] b.cc\\nwarning\\n' >log; done_of_total log")
        self.assertEqual(ran.stdout, "12 of 345, \n")
        self.assertEqual(self.bash(f"source {ROOT}/deploy/lib.sh; echo fetching >log; done_of_total log").stdout, "")


if __name__ == "__main__":
    unittest.main()
