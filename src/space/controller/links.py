"""The listener for nodes and one link for each connected worker: who it is, what it says, what it is told."""

import asyncio
import hashlib
import ssl
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding
from pydantic import ValidationError

from space.base.logs import bind, get_logger
from space.controller import ca, reports
from space.domain.errors import PlatformUnavailable
from space.store import Database
from space.wire.lines import MAX_LINE, LineError, Lines
from space.wire.node import (
    HEARTBEAT_S,
    LEASE_S,
    Ack,
    Activity,
    Assign,
    CommandReport,
    Enrol,
    Enrolled,
    Heartbeat,
    Hello,
    Refused,
    SandboxReport,
    Spec,
    Welcome,
    from_worker,
)

FIRST_MESSAGE_S = 10.0  # a stranger who says nothing holds a socket no longer
WRITE_S = 10.0  # a worker that takes nothing for so long is dropped; it dials again


class Link:
    """A connected worker."""

    def __init__(self, node: str, lines: Lines) -> None:
        self.node = node
        self.lines = lines

    async def send(self, message: Any) -> None:
        async with asyncio.timeout(WRITE_S):
            await self.lines.send(message.model_dump(mode="json"))


class NodeServer:
    """Takes workers; `push` sends them their assignments."""

    def __init__(self, db: Database, ca_dir: Path) -> None:
        self._db = db
        self._ca = ca_dir
        self.links: dict[str, Link] = {}
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> int:
        """Listen; gives the port."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self._ca / "controller.crt", self._ca / "controller.key")
        context.load_verify_locations(self._ca / "ca.crt")
        context.verify_mode = ssl.CERT_OPTIONAL  # without a certificate only `enrol` is taken
        self._server = await asyncio.start_server(self._serve, host, port, ssl=context, limit=MAX_LINE)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and drop every link."""
        if self._server is not None:
            self._server.close()
        for link in list(self.links.values()):
            link.lines.close()

    async def push(self, node: str, sandbox: str = "") -> None:
        """Send a connected node its assignments, or only one of them."""
        link = self.links.get(node)
        if link is None:
            return
        try:
            await self._assign(link, sandbox)
        except (OSError, TimeoutError, LineError):
            link.lines.close()

    async def _assign(self, link: Link, sandbox: str) -> list[str]:
        rows = await self._db.fetch("ctl_assignments", node=link.node, sandbox=sandbox)
        for row in rows:
            spec = Spec(
                template=row["template"], digest=row["template_digest"] or "", vcpus=row["vcpus"],
                memory_mib=row["memory_mib"], disk_mib=row["disk_mib"], env=row["env"], hostname=row["id"],
            )  # fmt: skip
            desired = "deleted" if row["state"] == "deleting" else "running"
            await link.send(Assign(sandbox=row["id"], epoch=row["epoch"], desired=desired, spec=spec))  # type: ignore[arg-type]
        return [row["id"] for row in rows]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = Lines(reader, writer)
        try:
            await self._talk(lines, writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
        except (LineError, ValidationError) as error:
            get_logger().warning("bad message from a node", action="link_refused", error=str(error)[:500])
        except (OSError, TimeoutError, PlatformUnavailable) as error:
            get_logger().info("link broke", action="link_broken", error=str(error))
        finally:
            lines.close()

    async def _talk(self, lines: Lines, certificate: bytes | None) -> None:
        first = await lines.receive(FIRST_MESSAGE_S)
        if first is None:
            return
        message = from_worker.validate_python(first)
        if certificate is None:
            await self._enrol(lines, message)
            return
        node = await self._known(certificate)
        if node is None or not isinstance(message, Hello) or message.node != node:
            await lines.send(Refused(reason="this certificate does not speak for that node").model_dump())
            return
        with bind(node=node):
            await self._run(Link(node, lines), message)

    async def _known(self, certificate: bytes) -> str | None:
        row = await self._db.fetchrow(
            "ctl_node_by_certificate", node=ca.common_name(certificate),
            certificate_sha256=hashlib.sha256(certificate).digest(),
        )  # fmt: skip
        return None if row is None else str(row["id"])

    async def _enrol(self, lines: Lines, message: Any) -> None:
        if not isinstance(message, Enrol):
            await lines.send(Refused(reason="without a certificate only enrol is taken").model_dump())
            return
        digest = hashlib.sha256(message.token.encode()).digest()
        try:
            async with self._db.transaction() as tx:
                row = await tx.fetchrow("ctl_enrol_node", token_sha256=digest)
                if row is None:
                    raise ValueError("the enrolment token is unknown, used or expired")  # noqa: TRY301 - rolls back
                certificate = ca.sign_node(self._ca, message.csr.encode(), row["id"])
                der = certificate.public_bytes(Encoding.DER)
                await tx.execute(
                    "ctl_bind_certificate", node=row["id"], certificate_sha256=hashlib.sha256(der).digest()
                )
        except ValueError as error:
            await lines.send(Refused(reason=str(error)).model_dump())
            return
        pem = certificate.public_bytes(Encoding.PEM).decode()
        await lines.send(Enrolled(node=row["id"], certificate=pem).model_dump())
        get_logger().info("node enrolled", action="node_enrolled", node=row["id"])

    async def _run(self, link: Link, hello: Hello) -> None:
        await self._hello(hello)
        older = self.links.get(link.node)
        self.links[link.node] = link
        if older is not None:
            older.lines.close()
        get_logger().info("node connected", action="node_connected", sandboxes=len(hello.sandboxes))
        try:
            await link.send(Welcome(sandboxes=await self._assign(link, "")))
            while (raw := await link.lines.receive(LEASE_S + HEARTBEAT_S)) is not None:
                await self._take(link, from_worker.validate_python(raw))
        finally:
            if self.links.get(link.node) is link:
                del self.links[link.node]

    async def _hello(self, hello: Hello) -> None:
        async with self._db.transaction() as tx:
            await tx.execute(
                "ctl_node_hello", node=hello.node, capacity=hello.capacity.model_dump(), machine=hello.machine,
                data_plane_url=hello.data_plane_url,
            )  # fmt: skip
            await tx.execute("ctl_forget_templates", node=hello.node)
            for template in hello.templates:
                await tx.execute("ctl_add_template", node=hello.node, **template.model_dump())

    async def _take(self, link: Link, message: Any) -> None:
        if isinstance(message, Heartbeat):
            await self._db.execute("ctl_node_seen", node=link.node)
        elif isinstance(message, SandboxReport):
            taken = await reports.sandbox_report(self._db, link.node, message)
            await link.send(Ack(sandbox=message.sandbox, epoch=message.epoch, state=message.state, taken=taken))
        elif isinstance(message, CommandReport):
            await reports.command_report(self._db, link.node, message.command)
        elif isinstance(message, Activity):
            await self._db.execute("ctl_activity", node=link.node, sandboxes=message.sandboxes)
        elif isinstance(message, Hello):
            await self._hello(message)  # its templates or capacity changed
