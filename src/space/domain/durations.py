"""Durations as the contract writes them: a whole number and a unit, such as `30s`, `5m`, `250ms`, `1h`."""

from __future__ import annotations

import re

from space.domain.errors import InvalidRequest

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
# Nine digits of days are 2.7 million years: enough for anyone, and far from overflowing a bigint.
_FORM = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)", re.ASCII)


def parse_ms(text: str) -> int:
    """Milliseconds; InvalidRequest unless the text is a positive whole number with a unit."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"{text[:40]!r} is not a duration", hint="Write a number and its unit: `30s`, `5m`.")
    value = int(match[1]) * _UNITS_MS[match[2]]
    if value <= 0:
        raise InvalidRequest("a duration must be longer than nothing", hint="Write `30s`, `5m`, `250ms`.")
    return value


def format_ms(value: int) -> str:
    """The shortest exact form: 300000 is `5m`, 1500 is `1500ms`."""
    for unit in ("d", "h", "m", "s"):
        if value and value % _UNITS_MS[unit] == 0:
            return f"{value // _UNITS_MS[unit]}{unit}"
    return f"{value}ms"
