"""Data-plane tokens: what an attachment token and a sandbox token claim, how they are signed and checked.

The API signs (Ed25519, private key readable by it alone), the data plane verifies with the public key. Both use these
models, so a claim cannot mean two things. An API key never parses as one of these and none of these is an API key.
"""

from __future__ import annotations

import secrets
import time
from typing import Literal

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from pydantic import BaseModel, ConfigDict, Field, ValidationError

AUDIENCE = "data-plane"
ISSUER = "space"
ALGORITHM = "EdDSA"
# Clocks of an API and a node drift; 5 s is far below any token's life and above what NTP leaves.
LEEWAY_S = 5
# A longer string is no token of ours (ours are about 500 bytes); bounds what a stranger makes us parse.
MAX_TOKEN_BYTES = 4096


class TokenError(Exception):
    """The token is missing, expired, forged or of another kind; `code` is the catalogue's code."""

    def __init__(self, code: Literal["unauthenticated", "wrong_token_kind"], message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class _Claims(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    aud: Literal["data-plane"] = "data-plane"
    iss: Literal["space"] = "space"
    sub: str
    sbx: str
    org: str
    exp: int
    jti: str


class AttachmentClaims(_Claims):
    """One command: `sub` is the command's id, `node` the node its sandbox runs on when the token was made."""

    scope: Literal["attach"] = "attach"
    node: str | None = None


class SandboxClaims(_Claims):
    """One sandbox and scopes: `sub` is the sandbox's id."""

    scopes: list[str] = Field(default_factory=list)


def _base(ttl_s: float) -> dict[str, object]:
    return {"exp": int(time.time() + ttl_s), "jti": secrets.token_hex(12)}


def attachment_claims(*, command: str, sandbox: str, org: str, node: str | None, ttl_s: float) -> AttachmentClaims:
    """Claims for attaching to one command for `ttl_s` seconds."""
    return AttachmentClaims.model_validate({"sub": command, "sbx": sandbox, "org": org, "node": node, **_base(ttl_s)})


def sandbox_claims(*, sandbox: str, org: str, scopes: list[str], ttl_s: float) -> SandboxClaims:
    """Claims for one sandbox's live calls within `scopes` for `ttl_s` seconds."""
    return SandboxClaims.model_validate({"sub": sandbox, "sbx": sandbox, "org": org, "scopes": scopes, **_base(ttl_s)})


def load_private_key(pem: bytes) -> Ed25519PrivateKey:
    """The API's signing key; ValueError when it is not Ed25519."""
    key = load_pem_private_key(pem, password=None)
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError("the data-plane key is not an Ed25519 private key")  # noqa: TRY004 (the file is wrong, not a type)
    return key


def load_public_key(pem: bytes) -> Ed25519PublicKey:
    """The verifying key; ValueError when it is not Ed25519."""
    key = load_pem_public_key(pem)
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("the data-plane key is not an Ed25519 public key")  # noqa: TRY004 (the file is wrong, not a type)
    return key


def sign(claims: AttachmentClaims | SandboxClaims, key: Ed25519PrivateKey) -> str:
    """The compact JWT for these claims."""
    return jwt.encode(claims.model_dump(), key, algorithm=ALGORITHM)


def verify(token: str, key: Ed25519PublicKey) -> AttachmentClaims | SandboxClaims:
    """The claims of a good token; TokenError tells an expired or forged one from one of another kind."""
    if len(token) > MAX_TOKEN_BYTES or token.count(".") != 2:
        raise TokenError("wrong_token_kind", "this call takes a data-plane token, not an API key")
    try:
        payload = jwt.decode(
            token, key, algorithms=[ALGORITHM], audience=AUDIENCE, issuer=ISSUER, leeway=LEEWAY_S,
            options={"require": ["exp", "sub", "aud", "iss", "jti"]},
        )  # fmt: skip
    except jwt.ExpiredSignatureError as error:
        raise TokenError("unauthenticated", "the token has expired; ask the API for a new one") from error
    except jwt.InvalidAudienceError as error:
        raise TokenError("wrong_token_kind", "the token was made for another service") from error
    except jwt.PyJWTError as error:
        raise TokenError("unauthenticated", "the token is not valid") from error
    try:
        if payload.get("scope") == "attach":
            return AttachmentClaims.model_validate(payload)
        return SandboxClaims.model_validate(payload)
    except ValidationError as error:
        raise TokenError("wrong_token_kind", "the token's claims are not a data-plane token's") from error
