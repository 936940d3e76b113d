"""API keys: `space_` and 40 hex digits; only the SHA-256 of the digits is stored."""

from __future__ import annotations

import hashlib
import re
import secrets

PREFIX = "space_"
_FORM = re.compile(r"space_([0-9a-f]{40})")


def new_key() -> tuple[str, bytes]:
    """A new key, to be shown once, and the hash to store."""
    digits = secrets.token_hex(20)
    return PREFIX + digits, hash_digits(digits)


def hash_digits(digits: str) -> bytes:
    """What is stored. A plain hash is enough: the digits are 160 random bits, not a password."""
    return hashlib.sha256(digits.encode()).digest()


def hash_of(key: str) -> bytes | None:
    """The hash of a key as sent, or None when it has not the form of one."""
    match = _FORM.fullmatch(key)
    return hash_digits(match[1]) if match else None
