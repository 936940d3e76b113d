"""Real commands under a real agent in host mode."""

import asyncio
import hashlib
import os
import secrets
import time
from contextlib import suppress
from pathlib import Path

import pytest

from space.guest.client import AdoptRequest, Attachment, GuestClient, StartSpec
from space.guest.errors import GuestError
from space.guest.frames import Event, Output


def new_id() -> str:
    return "cmd-" + secrets.token_hex(8)


def sh(
    script: str, *, stdin: bool = False, tty: dict[str, int] | None = None, timeout_ms: int | None = None
) -> StartSpec:
    return StartSpec(["sh", "-c", script], stdin=stdin, tty=tty, timeout_ms=timeout_ms)


async def collect(attachment: Attachment) -> tuple[bytes, bytes, list[Event]]:
    out = {"stdout": bytearray(), "stderr": bytearray()}
    events = []
    async for frame in attachment:
        if isinstance(frame, Output):
            out[frame.stream] += frame.data
        else:
            events.append(frame)
    return bytes(out["stdout"]), bytes(out["stderr"]), events


async def run(client: GuestClient, spec: StartSpec) -> tuple[bytes, bytes, Event]:
    async with client.attach(new_id(), spec=spec) as attachment:
        out, err, events = await collect(attachment)
    assert [e.type for e in events] == ["process_started", "process_exited", "stream_closed"]
    return out, err, events[1]


async def test_health(client: GuestClient) -> None:
    health = await client.health()
    assert health["adopted"] is False
    assert health["boot_id"]


async def test_exit_codes_and_both_streams(client: GuestClient) -> None:
    out, err, exited = await run(client, sh("echo out; echo err >&2; exit 7"))
    assert (out, err) == (b"out\n", b"err\n")
    assert exited.fields["exit_code"] == 7
    assert exited.fields["reason"] is None


async def test_death_by_signal(client: GuestClient) -> None:
    _, _, exited = await run(client, sh("kill -SEGV $$"))
    assert exited.fields["signal"] == "SIGSEGV"
    assert "exit_code" not in exited.fields


async def test_sent_signal(client: GuestClient) -> None:
    ident = new_id()
    async with client.attach(ident, spec=StartSpec(["sleep", "100"])) as attachment:
        await client.signal(ident, "SIGTERM")
        _, _, events = await collect(attachment)
    assert events[1].fields["signal"] == "SIGTERM"
    assert events[1].fields["reason"] == "signal"
    with pytest.raises(GuestError, match="process_exited"):
        await client.signal(ident, "SIGTERM")


async def test_timeout_kills_descendants(client: GuestClient) -> None:
    out, _, exited = await run(client, sh("sleep 300 & echo $!; wait", timeout_ms=300))
    assert exited.fields["signal"] == "SIGKILL"
    assert exited.fields["reason"] == "timeout"
    await asyncio.sleep(0.2)
    with suppress(FileNotFoundError):
        assert Path(f"/proc/{int(out)}/stat").read_text().split()[2] == "Z"


async def test_background_child_does_not_delay_the_exit(client: GuestClient) -> None:
    began = time.monotonic()
    times = {}
    async with client.attach(new_id(), spec=sh("sleep 8 & exit 3")) as attachment:
        async for frame in attachment:
            if isinstance(frame, Event):
                times[frame.type] = time.monotonic() - began
    assert times["process_exited"] < 2
    assert 4.5 < times["stream_closed"] < 7


async def test_100_mb_arrive_whole(client: GuestClient, tmp_path: Path) -> None:
    source = tmp_path / "random"
    block = os.urandom(1 << 20)
    with source.open("wb") as file:
        for _ in range(100):
            file.write(block)
    seen, size = hashlib.sha256(), 0
    async with client.attach(new_id(), spec=StartSpec(["cat", str(source)])) as attachment:
        async for frame in attachment:
            if isinstance(frame, Output):
                seen.update(frame.data)
                size += len(frame.data)
            else:
                assert frame.type != "output_dropped"
    assert size == 100 << 20
    assert seen.hexdigest() == hashlib.sha256(block * 100).hexdigest()


async def test_without_reader_the_ring_is_bounded_and_the_loss_exact(client: GuestClient) -> None:
    ident, total = new_id(), 20_000_000
    async with client.attach(ident, spec=sh(f"sleep 0.3; head -c {total} /dev/zero; echo end")):
        pass
    for _ in range(200):
        if (await client.process(ident))["state"] == "exited":
            break
        await asyncio.sleep(0.05)
    async with client.attach(ident) as attachment:
        out, _, events = await collect(attachment)
    dropped = [e.fields["bytes"] for e in events if e.type == "output_dropped"]
    assert len(dropped) == 1
    assert dropped[0] + len(out) == total + 4
    assert 3 << 20 < len(out) <= 4 << 20
    assert out.endswith(b"\0end\n")


async def test_reattach_after_a_position(client: GuestClient) -> None:
    ident = new_id()
    async with client.attach(ident, spec=sh("echo one; sleep 0.4; echo two")) as attachment:
        async for frame in attachment:
            if isinstance(frame, Output):
                break
    async with client.attach(ident, after=frame.seq) as attachment:
        out, _, events = await collect(attachment)
    assert out == b"two\n"
    assert [e.type for e in events] == ["process_exited", "stream_closed"]
    async with client.attach(ident, after=3) as attachment:  # inside "one": the rest of it comes
        out, _, _ = await collect(attachment)
    assert out == b"e\ntwo\n"


async def test_five_mb_of_stdin_come_back(client: GuestClient) -> None:
    data = os.urandom(5_000_000)
    async with client.attach(new_id(), spec=StartSpec(["cat"], stdin=True)) as attachment:

        async def feed() -> None:
            await attachment.send_stdin(data)
            await attachment.close_stdin()

        feeder = asyncio.create_task(feed())
        out, _, _ = await collect(attachment)
        await feeder
    assert out == data


async def test_stdin_nobody_reads_waits(client: GuestClient) -> None:
    async with client.attach(new_id(), spec=sh("sleep 1; cat | wc -c", stdin=True)) as attachment:
        began = time.monotonic()

        async def feed() -> float:
            await attachment.send_stdin(b"x" * 400_000)
            took = time.monotonic() - began
            await attachment.close_stdin()
            return took

        feeder = asyncio.create_task(feed())
        out, _, _ = await collect(attachment)
        assert await feeder > 0.8
    assert out.strip() == b"400000"


async def test_terminal_and_resize(client: GuestClient) -> None:
    spec = sh("stty size; read line; stty size; tty; exit 4", tty={"rows": 24, "cols": 80})
    async with client.attach(new_id(), spec=spec) as attachment:
        out, resized = b"", False
        async for frame in attachment:
            if isinstance(frame, Output):
                out += frame.data
                if b"24 80" in out and not resized:
                    resized = True
                    await attachment.resize(50, 132)
                    feeder = asyncio.create_task(attachment.send_stdin(b"go\n"))
            elif frame.type == "process_exited":
                assert frame.fields["exit_code"] == 4
        await feeder
    assert b"50 132" in out
    assert b"/dev/pts/" in out


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (StartSpec(["no-such-thing"]), "executable_not_found"),
        (StartSpec(["/etc/passwd"]), "permission_denied"),
        (StartSpec(["true"], cwd="/no/such"), "cwd_not_found"),
        (StartSpec(["true"], user="nobody-at-all"), "user_not_found"),
    ],
)
async def test_start_failures_leave_nothing(client: GuestClient, spec: StartSpec, code: str) -> None:
    ident = new_id()
    with pytest.raises(GuestError) as caught:
        async with client.attach(ident, spec=spec):
            pass
    assert caught.value.code == code
    assert caught.value.status == 422
    with pytest.raises(GuestError, match="unknown_process"):
        await client.process(ident)


async def test_unknown_process(client: GuestClient) -> None:
    for call in (client.process("nope"), client.signal("nope", "SIGTERM"), client.resize("nope", 1, 1)):
        with pytest.raises(GuestError, match="unknown_process"):
            await call
    with pytest.raises(GuestError, match="unknown_process"):
        async with client.attach("nope"):
            pass


async def test_two_hundred_at_once(client: GuestClient) -> None:
    results = await asyncio.gather(*(run(client, sh(f"echo {n}; exit {n % 250}")) for n in range(200)))
    assert [out for out, _, _ in results] == [b"%d\n" % n for n in range(200)]
    assert [e.fields["exit_code"] for _, _, e in results] == [n % 250 for n in range(200)]


async def test_watch_tells_starts_and_exits(client: GuestClient) -> None:
    async with client.watch() as events:
        assert (await anext(events)).type == "snapshot"
        ident = new_id()
        runner = asyncio.create_task(_attach(client, ident))
        seen = []
        async for event in events:
            if event.fields.get("id") == ident:
                seen.append(event.type)
            if len(seen) == 2:
                break
        await runner
    assert seen == ["process_started", "process_exited"]


async def _attach(client: GuestClient, ident: str) -> None:
    async with client.attach(ident, spec=StartSpec(["true"])) as attachment:
        await collect(attachment)


async def test_process_table_shows_the_agent(client: GuestClient) -> None:
    rows = await client.system_processes()
    assert any("space-agent" in row["command"] for row in rows)


async def test_a_host_is_never_adopted(client: GuestClient) -> None:
    before = Path("/etc/hostname").read_bytes()
    with pytest.raises(GuestError, match="not_a_machine"):
        await client.adopt(AdoptRequest(b"x" * 64, 1, "h", "m", "n"))
    assert Path("/etc/hostname").read_bytes() == before
