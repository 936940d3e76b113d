"""Frames of the guest protocol as values: bytes in, frames out, no I/O. Every byte here is the guest's word only."""

import json
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

MAX_FRAME = 64 * 1024  # the agent never sends more; whoever does is not the agent
HEADER = struct.Struct("!BQI")


class Kind(IntEnum):
    """What a frame carries."""

    STDIN = 0
    STDOUT = 1
    STDERR = 2
    JSON = 3


class FrameError(ValueError):
    """Bytes that are no frame of this protocol."""


@dataclass(frozen=True)
class Output:
    """Bytes a command wrote. ``seq`` is the position after them, good for ``after``."""

    seq: int
    stream: str
    data: bytes


@dataclass(frozen=True)
class Event:
    """Something that happened, with the guest's fields as they came."""

    seq: int
    type: str
    fields: dict[str, Any] = field(default_factory=dict)


Frame = Output | Event
_STREAMS = {Kind.STDOUT: "stdout", Kind.STDERR: "stderr"}


def encode(kind: Kind, payload: bytes, seq: int = 0) -> bytes:
    """One frame as bytes."""
    if len(payload) > MAX_FRAME:
        raise FrameError(f"a payload of {len(payload)} bytes is longer than a frame")
    return HEADER.pack(kind, seq, len(payload)) + payload


def encode_event(fields: dict[str, Any]) -> bytes:
    """A JSON frame as bytes."""
    return encode(Kind.JSON, json.dumps(fields, separators=(",", ":")).encode())


class FrameParser:
    """Collects bytes and gives whole frames; it never holds more than one frame and what came with it."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Take bytes, give the frames they complete; after a ``FrameError`` the stream is worthless."""
        self._buffer += data
        frames: list[Frame] = []
        at = 0
        while len(self._buffer) - at >= HEADER.size:
            kind, seq, length = HEADER.unpack_from(self._buffer, at)
            if length > MAX_FRAME:
                raise FrameError(f"a frame of {length} bytes")
            if kind not in (Kind.STDOUT, Kind.STDERR, Kind.JSON):
                raise FrameError(f"a frame of unknown kind {kind}")
            if len(self._buffer) - at < HEADER.size + length:
                break
            start = at + HEADER.size
            frames.append(_frame(Kind(kind), seq, bytes(self._buffer[start : start + length])))
            at = start + length
        del self._buffer[:at]
        return frames

    @property
    def pending(self) -> int:
        """How many bytes wait for the rest of their frame."""
        return len(self._buffer)


def _frame(kind: Kind, seq: int, payload: bytes) -> Frame:
    if kind is not Kind.JSON:
        return Output(seq, _STREAMS[kind], payload)
    try:
        fields = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise FrameError("an event that is not JSON") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("type"), str):
        raise FrameError("an event without a type")
    return Event(seq, fields.pop("type"), fields)
