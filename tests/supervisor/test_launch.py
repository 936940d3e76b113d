"""A part of another uid sees its code under a closed directory, and nothing else there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from space.supervisor.launch import closed_ancestor, code_paths

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
NOBODY = 65534


@pytest.fixture
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.getbasetemp()
    # pytest's own directories are 0700 above this one; the closed ancestor found is the outermost of them.
    (top / "closed/tree").mkdir(parents=True, exist_ok=True)
    (top / "closed").chmod(0o700)
    (top / "closed/tree/file").write_text("seen")
    (top / "closed/secret").write_text("unseen")
    return top / "closed"


def launch(*words: str, show: list[Path]) -> subprocess.CompletedProcess[str]:
    shown = [word for path in show for word in ("--show", str(path))]
    return subprocess.run(
        [sys.executable, "-m", "space.supervisor.launch", "--uid", str(NOBODY), "--gid", str(NOBODY), *shown, "--",
         *words],
        capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip


def test_shown_tree_is_readable_and_its_neighbour_is_not_there(closed: Path) -> None:
    done = launch("cat", str(closed / "tree/file"), show=[closed / "tree"])
    assert (done.stdout, done.returncode) == ("seen", 0), done.stderr
    done = launch("ls", str(closed), show=[closed / "tree"])
    assert done.stdout.split() == ["tree"]


def test_without_showing_it_stays_closed(closed: Path) -> None:
    assert launch("cat", str(closed / "tree/file"), show=[]).returncode != 0


def test_nothing_is_mounted_on_the_host(closed: Path) -> None:
    launch("true", show=[closed / "tree"])
    assert str(closed) not in Path("/proc/self/mounts").read_text()


def test_no_privileges_are_left() -> None:
    status = launch("cat", "/proc/self/status", show=[]).stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["Uid"].split() == [str(NOBODY)] * 4
    assert fields["Groups"].split() == []
    assert fields["NoNewPrivs"] == "1"
    assert int(fields["CapEff"], 16) == int(fields["CapPrm"], 16) == 0


def test_python_and_this_source_start_as_another_uid() -> None:
    done = launch(sys.executable, "-c", "import space.base.settings; print('up')", show=code_paths())
    assert done.stdout == "up\n", done.stderr


def test_closed_ancestor() -> None:
    assert closed_ancestor(Path("/usr/bin")) is None
