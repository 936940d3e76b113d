"""Ids: a prefix that says what the thing is, then random lower-case letters and digits (they stand in host names)."""

from __future__ import annotations

import re
import secrets
from typing import Literal

Prefix = Literal["sbx", "op", "cmd", "tpl", "snap", "ckpt", "cred", "node", "key", "org", "req", "evt"]

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
# 20 of 36 letters are 103 bits: above the 96 that the contract asks for, and short enough for a DNS label with a port.
LENGTH = 20


def new(prefix: Prefix) -> str:
    """A new id, for example `sbx4k0…`."""
    return prefix + "".join(secrets.choice(_ALPHABET) for _ in range(LENGTH))


def is_id(text: str, prefix: Prefix) -> bool:
    """Whether the text has the form of an id of this kind."""
    return re.fullmatch(prefix + "[0-9a-z]{" + str(LENGTH) + "}", text) is not None
