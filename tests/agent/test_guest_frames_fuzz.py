"""The parser under any bytes, and the agent under any bytes."""

import asyncio
import random

from hypothesis import given
from hypothesis import strategies as st

from space.guest.client import GuestClient
from space.guest.frames import HEADER, MAX_FRAME, FrameError, FrameParser, Kind, Output, encode


@given(st.binary(max_size=4096))
def test_any_bytes_parse_or_are_refused(data: bytes) -> None:
    parser = FrameParser()
    try:
        parser.feed(data)
    except FrameError:
        return
    assert parser.pending < HEADER.size + MAX_FRAME


@given(st.lists(st.binary(max_size=300), max_size=20), st.integers(1, 50))
def test_any_split_gives_the_same_frames(payloads: list[bytes], step: int) -> None:
    stream = b"".join(encode(Kind.STDOUT, data, n) for n, data in enumerate(payloads))
    parser, frames = FrameParser(), []
    for at in range(0, len(stream), step):
        frames += parser.feed(stream[at : at + step])
    assert frames == [Output(n, "stdout", data) for n, data in enumerate(payloads)]


async def test_garbage_leaves_the_agent_healthy(client: GuestClient, agent_port: int) -> None:
    chance = random.Random(7)
    for _ in range(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", agent_port)
        head = chance.choice(
            [b"", b"GET /v1/health HTTP/1.1\r\n", b"POST /v1/processes/x/attach HTTP/1.1\r\nHost: a\r\n"]
        )
        writer.write(head + chance.randbytes(chance.randrange(1, 40_000)))

        try:
            writer.write_eof()
            await asyncio.wait_for(reader.read(4096), 12)
        except OSError:  # cut off at once, which is a fine answer to garbage
            pass
        finally:
            writer.close()
    assert (await client.health())["version"]
