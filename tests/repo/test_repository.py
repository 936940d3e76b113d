"""The repository itself: what must not stand in it, what must."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def test_lock_file_names_no_place() -> None:
    text = (ROOT / "requirements.lock").read_text()
    assert "://" not in text
    assert " @ " not in text
    assert not re.search(r"^--?(index|extra-index|find-links|i )", text, re.MULTILINE)


def test_lock_file_pins_everything_with_hashes() -> None:
    entries = re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text())
    assert all("==" in e and "--hash=sha256:" in e for e in entries if e and not e.startswith("#"))


def test_modules_are_small_and_packages_say_from_and_to() -> None:
    for path in tracked():
        if path.suffix == ".py" and path.is_relative_to(ROOT / "src"):
            text = path.read_text()
            assert len(text.splitlines()) <= 500, path
            if path.name == "__init__.py" and path.parent != ROOT / "src/space":
                assert "From:" in text, path
                assert "To:" in text, path


@pytest.mark.parametrize("name", ["scripts/check", "scripts/test", "scripts/quickstart", "scripts/lib.sh", ".ci/run"])
def test_scripts_parse(name: str) -> None:
    subprocess.run(["bash", "-n", str(ROOT / name)], check=True)


def test_pages_linked_from_the_readme_are_there() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target
