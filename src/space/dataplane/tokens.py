"""Who may do what here: a data-plane token against the command or the sandbox in the address."""

from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from space.domain.errors import Forbidden, Unauthenticated, WrongTokenKind
from space.wire.tokens import AttachmentClaims, SandboxClaims, TokenError, verify


@dataclass(frozen=True)
class Grant:
    """What a verified token opened."""

    sandbox: str
    token: str


class Verifier:
    """Checks bearer tokens with the API's public key."""

    def __init__(self, key: Ed25519PublicKey) -> None:
        """`key` verifies; nothing here can sign."""
        self._key = key

    def _claims(self, token: str) -> AttachmentClaims | SandboxClaims:
        try:
            return verify(token, self._key)
        except TokenError as error:
            kind = WrongTokenKind if error.code == "wrong_token_kind" else Unauthenticated
            raise kind(error.message) from error

    def command(self, token: str, command: str, *, scope: str | None = None) -> Grant:
        """Let the command's own attachment token pass, or a sandbox token with `scope`.

        With a sandbox token the guest decides: it knows no command of another sandbox.
        """
        claims = self._claims(token)
        if isinstance(claims, AttachmentClaims):
            if claims.sub != command:
                raise Forbidden("the token is for another command", hint="Ask the API for this command's attachment.")
        elif scope is None:
            raise WrongTokenKind("this call takes the command's attachment token")
        elif scope not in claims.scopes:
            raise Forbidden(f"the token does not have the scope {scope}")
        return Grant(claims.sbx, token)

    def sandbox(self, token: str, sandbox: str, scope: str) -> Grant:
        """Let a sandbox token with `scope` pass."""
        claims = self._claims(token)
        if not isinstance(claims, SandboxClaims):
            raise WrongTokenKind("this call takes a sandbox token, not an attachment token")
        if claims.sbx != sandbox:
            raise Forbidden("the token is for another sandbox")
        if scope not in claims.scopes:
            raise Forbidden(f"the token does not have the scope {scope}")
        return Grant(claims.sbx, token)
