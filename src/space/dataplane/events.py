"""Frames of the guest agent as NDJSON lines, and the cursors with which a client comes back."""

import json
import re
from binascii import b2a_base64

from space.domain.errors import InvalidCursor
from space.guest import Event, Output

_CURSOR = re.compile(r"c(\d{1,19})-(\d{1,19})")
_STREAMS = ("stdout", "stderr")


def cursor_of(epoch: int, seq: int) -> str:
    """The place after event `seq`; opaque to clients."""
    return f"c{epoch}-{seq}"


def after_of(cursor: str | None, epoch: int) -> int:
    """The sequence number to continue after.

    A cursor of an earlier epoch is from before a rollback: the events of this epoch are then given from their first.
    """
    if not cursor:
        return 0
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise InvalidCursor(
            "this is not a cursor of a command's stream", hint="Take `cursor` from the last event read."
        )
    return int(match[2]) if int(match[1]) == epoch else 0


def check_cursor(cursor: str | None) -> None:
    """Refuse a malformed cursor before anything is started."""
    after_of(cursor, 0)


def line_of(frame: Output | Event, epoch: int, last: int) -> bytes:
    """One NDJSON line; `last` is the newest sequence number seen, the place of events that have none."""
    if isinstance(frame, Output):
        head = f'{{"seq":{frame.seq},"epoch":{epoch},"cursor":"{cursor_of(epoch, frame.seq)}",'
        kind = frame.stream if frame.stream in _STREAMS else "stdout"
        return b"".join((head.encode(), f'"type":"{kind}","data":"'.encode(), _base64(frame.data), b'"}\n'))
    fields = {k: v for k, v in frame.fields.items() if k not in ("seq", "epoch", "cursor", "type")}
    return host_line(frame.type, epoch, frame.seq or last, seq=frame.seq or None, **fields)


def host_line(kind: str, epoch: int, last: int, *, seq: int | None = None, **fields: object) -> bytes:
    """A line that is not output; without `seq` it is the host's own."""
    head = {"seq": seq, "epoch": epoch, "cursor": cursor_of(epoch, last), "type": kind}
    return json.dumps(head | fields, separators=(",", ":")).encode() + b"\n"


def _base64(data: bytes) -> bytes:
    return b2a_base64(data, newline=False)
