"""The link to the controller: enrolment, hello, assignments in, reports out, dialled again when it breaks."""

import asyncio
import json
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import NameOID
from pydantic import ValidationError

from space.base.logs import get_logger
from space.base.settings import Settings
from space.base.tasks import cancel, spawn
from space.wire.lines import MAX_LINE, LineError, Lines
from space.wire.node import (
    HEARTBEAT_S,
    LEASE_S,
    Activity,
    Assign,
    CommandReport,
    Enrol,
    Enrolled,
    Heartbeat,
    Hello,
    Refused,
    SandboxReport,
    Welcome,
    from_controller,
)
from space.worker.executor import Executor

CONTROLLER_NAME = "space-controller"  # in the controller's certificate, whatever address was dialled
BACKOFF_FIRST_S, BACKOFF_MOST_S = 0.2, 5.0  # a restarted controller is back in a second; a dead one is not hammered
ANSWER_S = 20.0
QUEUE = 4096  # command reports kept while no controller is there; the oldest then goes


class LinkRefused(Exception):
    """The controller does not take this node."""


class ControllerLink:
    """One node's side of the node protocol."""

    def __init__(self, settings: Settings, hello: Callable[[str], Hello]) -> None:
        self._settings = settings
        self._folder = settings.state_dir / "node"
        self._hello = hello
        self._out: asyncio.Queue[Any] = asyncio.Queue(QUEUE)
        self._active: set[str] = set()
        self.executor: Executor | None = None

    def report(self, message: SandboxReport | CommandReport) -> None:
        """Send when there is a link; sandbox reports lost with a link are told again after the next hello."""
        if self._out.full():
            self._out.get_nowait()
        self._out.put_nowait(message)

    def activity(self, sandbox: str) -> None:
        """Told with the next heartbeat."""
        self._active.add(sandbox)

    async def run(self) -> None:
        """Keep a link for ever."""
        pause = BACKOFF_FIRST_S
        while True:
            try:
                if not (self._folder / "node.crt").exists():
                    await self._enrol()
                await self._once()
                pause = BACKOFF_FIRST_S
            except (OSError, TimeoutError, LineError, ValidationError, LinkRefused, ValueError) as error:
                get_logger().warning("no controller", action="link_broken", error=str(error)[:300], retry_in_s=pause)
            await asyncio.sleep(pause)
            pause = min(pause * 2, BACKOFF_MOST_S)

    async def _dial(self, *, certificate: bool) -> Lines:
        own = self._folder / "ca.crt"
        context = ssl.create_default_context(
            cafile=str(own if own.exists() else self._settings.state_dir / "ca/ca.crt")
        )
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if certificate:
            context.load_cert_chain(self._folder / "node.crt", self._folder / "node.key")
        host, port = self._settings.controller_address
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(
                host, port, ssl=context, server_hostname=CONTROLLER_NAME, limit=MAX_LINE
            )
        return Lines(reader, writer)

    async def _enrol(self) -> None:
        token = self._token()
        if token is None:
            raise LinkRefused("this node has no certificate and no enrolment token (SPACE_ENROL_TOKEN)")
        key = self._key()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "node")])
        csr = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, SHA256()).public_bytes(Encoding.PEM)
        lines = await self._dial(certificate=False)
        try:
            await lines.send(Enrol(token=token, csr=csr.decode()).model_dump())
            raw = await lines.receive(ANSWER_S)
        finally:
            lines.close()
        answer = from_controller.validate_python(raw)
        if not isinstance(answer, Enrolled):
            raise LinkRefused(
                answer.reason if isinstance(answer, Refused) else "the controller did not enrol this node"
            )
        _write(self._folder / "node.json", json.dumps({"node": answer.node}).encode())
        _write(self._folder / "node.crt", answer.certificate.encode())
        (self._folder / "enrol.json").unlink(missing_ok=True)
        get_logger().info("enrolled", action="enrolled", node=answer.node)

    def _token(self) -> str | None:
        path = self._folder / "enrol.json"
        if path.exists():
            return str(json.loads(path.read_bytes())["token"])
        token = self._settings.enrol_token
        return None if token is None else token.get_secret_value()

    def _key(self) -> ec.EllipticCurvePrivateKey:
        path = self._folder / "node.key"
        if path.exists():
            key = load_pem_private_key(path.read_bytes(), None)
            assert isinstance(key, ec.EllipticCurvePrivateKey)
            return key
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        _write(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return key

    async def _once(self) -> None:
        node = str(json.loads((self._folder / "node.json").read_bytes())["node"])
        lines = await self._dial(certificate=True)
        sides: list[asyncio.Task[None]] = []
        try:
            await lines.send(self._hello(node).model_dump(mode="json"))
            sides = [spawn("link-in", self._receive(lines)), spawn("link-out", self._send(lines))]
            sides.append(spawn("link-beat", self._beat(lines)))
            done, _ = await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
            get_logger().warning("link ended", action="link_ended", by=[task.get_name() for task in done])
        finally:
            await cancel(*sides)
            lines.close()

    async def _receive(self, lines: Lines) -> None:
        assert self.executor is not None
        try:
            while (raw := await lines.receive()) is not None:
                message = from_controller.validate_python(raw)
                if isinstance(message, Assign):
                    self.executor.assign(message)
                elif isinstance(message, Welcome):
                    self.executor.explained(set(message.sandboxes))
                    get_logger().info("connected", action="connected", sandboxes=len(message.sandboxes))
                elif isinstance(message, Refused):
                    get_logger().error("refused", action="link_refused", reason=message.reason)
                    return
        except (OSError, LineError, ValidationError) as error:
            get_logger().warning("link broke", action="link_broken", error=str(error)[:300])

    async def _send(self, lines: Lines) -> None:
        try:
            while True:
                message = await self._out.get()
                await lines.send(message.model_dump(mode="json"))
        except (OSError, LineError) as error:
            get_logger().warning("link broke", action="link_broken", error=str(error))

    async def _beat(self, lines: Lines) -> None:
        try:
            while True:
                async with asyncio.timeout(LEASE_S):
                    await lines.send(Heartbeat().model_dump())
                    if self._active:
                        active, self._active = sorted(self._active), set()
                        await lines.send(Activity(sandboxes=active).model_dump())
                await asyncio.sleep(HEARTBEAT_S)
        except (OSError, TimeoutError) as error:
            get_logger().warning("link broke", action="link_broken", error=str(error))


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
