"""The command line without a platform: errors with hints, exit codes, contexts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from space.cli.session import exit_code_of


def space(home: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    code = (
        "from space.cli import context, main; import pathlib; context.home_of = lambda u: pathlib.Path(%r); main.main()"
    )
    return subprocess.run(
        [sys.executable, "-c", code % str(home), *words],
        env={"PATH": "/usr/bin:/bin", **env}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_no_platform_known(tmp_path: Path) -> None:
    done = space(tmp_path, "sandbox", "ls")
    assert done.returncode == 1
    assert "sudo space up -d" in done.stderr
    assert "Traceback" not in done.stderr
    done = space(tmp_path, "sandbox", "ls", "--json")
    assert json.loads(done.stdout)["error"]["code"] == "no_context"


def test_unreachable_platform_is_ours_not_the_commands(tmp_path: Path) -> None:
    env = {"SPACE_API_URL": "http://127.0.0.1:9", "SPACE_API_TOKEN": "space_" + "0" * 40}
    done = space(tmp_path, "run", "--", "true", **env)
    assert done.returncode == 125
    assert "cannot reach" in done.stderr
    assert "Traceback" in space(tmp_path, "--debug", "run", "--", "true", **env).stderr


def test_unknown_variable(tmp_path: Path) -> None:
    done = space(tmp_path, "sandbox", "ls", SPACE_API_TOKE="x")
    assert "did you mean SPACE_API_TOKEN" in done.stderr


def test_doctor_names_the_missing(tmp_path: Path) -> None:
    done = space(tmp_path, "doctor", "--json")
    assert {c["name"] for c in json.loads(done.stdout)} >= {"root", "packages", "kvm", "disk"}


@pytest.mark.parametrize(
    ("event", "code"),
    [
        ({"exit_code": 0}, 0),
        ({"exit_code": 7}, 7),
        ({"signal": "SIGKILL", "reason": "timeout"}, 137),
        ({"signal": "SIGINT"}, 130),
    ],
)
def test_exit_codes(event: dict[str, object], code: int) -> None:
    assert exit_code_of(event) == code
