"""Durations as people write them: ``250ms``, ``30s``, ``5m``, ``2h``, ``1d``; a number and a unit, nothing else."""

import re
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
# Nine digits before the unit: over thirty years in seconds, and no way to make a float overflow.
_SHAPE = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)(ms|s|m|h|d)", re.ASCII)


def parse_duration(text: str) -> float:
    """Give the seconds that ``text`` means, or raise ``ValueError`` saying how to write one."""
    match = _SHAPE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write a number and a unit, as in 250ms, 30s, 5m, 2h or 1d")
    return float(match[1]) * _UNITS[match[2]]


def format_duration(seconds: float) -> str:
    """Write ``seconds`` with the largest unit that keeps it whole."""
    for unit in ("d", "h", "m", "s"):
        count = seconds / _UNITS[unit]
        if count >= 1 and count == int(count):
            return f"{int(count)}{unit}"
    return f"{round(seconds * 1000)}ms"


def _coerce(value: object) -> object:
    return parse_duration(value) if isinstance(value, str) else value


Seconds = Annotated[float, BeforeValidator(_coerce), PlainSerializer(format_duration, when_used="json")]
