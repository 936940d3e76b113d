"""Commands that fail show themselves; tasks that die are heard."""

import asyncio
import json
import time

import pytest

from space.base import logs, tasks
from space.base.commands import CommandError, run


async def test_output_and_input() -> None:
    done = await run(["cat"], input=b"\x00\xff" * 100_000)
    assert done.stdout == b"\x00\xff" * 100_000


async def test_failure_shows_the_command_ready_to_paste() -> None:
    with pytest.raises(CommandError) as caught:
        await run(["sh", "-c", "echo 'it broke' >&2; exit 3"])
    assert "sh -c 'echo '\"'\"'it broke'\"'\"' >&2; exit 3'" in str(caught.value)
    assert str(caught.value).endswith("it broke")
    assert caught.value.code == 3


async def test_missing_program() -> None:
    with pytest.raises(CommandError, match="No such file"):
        await run(["/no/such/program"])


async def test_deadline_kills_descendants() -> None:
    began = time.monotonic()
    with pytest.raises(CommandError, match="not finished"):
        await run(["sh", "-c", "sleep 60 & sleep 60"], timeout=0.2)
    assert time.monotonic() - began < 5


async def test_endless_output_is_bounded() -> None:
    with pytest.raises(CommandError, match="wrote more than"):
        await run(["cat", "/dev/zero"])


async def test_a_dead_task_is_fatal() -> None:
    heard: list[str] = []
    tasks.set_fatal(lambda name, _error: heard.append(name))

    async def die() -> None:
        raise RuntimeError("x")

    task = tasks.spawn("dying", die())
    await asyncio.wait([task])
    await asyncio.sleep(0)
    tasks.set_fatal(None)
    assert heard == ["dying"]


async def test_a_cancelled_task_is_not() -> None:
    heard: list[str] = []
    tasks.set_fatal(lambda name, _error: heard.append(name))
    task = tasks.spawn("waiting", asyncio.sleep(60))
    await tasks.cancel(task)
    tasks.set_fatal(None)
    assert heard == []


def test_json_lines_carry_what_is_bound(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup("api", json=True)
    with logs.bind(request="req1", sandbox="sbx1"):
        logs.get_logger().info("create", action="create", size=3)
    line = json.loads(capsys.readouterr().err)
    assert (line["part"], line["request"], line["sandbox"], line["event"]) == ("api", "req1", "sbx1", "create")
