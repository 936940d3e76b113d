"""A guest of a few lines: raw Ethernet, IPv4, TCP and UDP spoken on a tap's descriptor."""

import os
import select
import socket
import struct
import time
from dataclasses import dataclass

HOST_ANY = b"\xff" * 6
VNET_HEADER = bytes(10)  # struct virtio_net_hdr: no offload


def checksum(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def mac_bytes(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


@dataclass
class Packet:
    source: str
    target: str
    protocol: int
    body: bytes


class Guest:
    def __init__(self, tap: int, address: str, mac: str, gateway: str) -> None:
        self.tap, self.address, self.mac, self.gateway = tap, address, mac_bytes(mac), gateway
        self.gateway_mac = HOST_ANY

    def frame(self, kind: int, body: bytes, target: bytes) -> None:
        os.write(self.tap, VNET_HEADER + target + self.mac + struct.pack("!H", kind) + body)

    def ip(self, target: str, protocol: int, body: bytes, source: str | None = None) -> None:
        head = struct.pack(
            "!BBHHHBBH4s4s", 0x45, 0, 20 + len(body), 7, 0, 64, protocol, 0,
            socket.inet_aton(source or self.address), socket.inet_aton(target),
        )  # fmt: skip
        head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
        self.frame(0x0800, head + body, self.gateway_mac)

    def tcp(self, target: str, port: int, flags: int, *, source_port: int = 40000, ack: int = 0) -> None:
        body = struct.pack("!HHIIBBHHH", source_port, port, 1000, ack, 0x50, flags, 65535, 0, 0)
        pseudo = socket.inet_aton(self.address) + socket.inet_aton(target) + struct.pack("!BBH", 0, 6, len(body))
        body = body[:16] + struct.pack("!H", checksum(pseudo + body)) + body[18:]
        self.ip(target, 6, body)

    def udp(self, target: str, port: int, payload: bytes) -> None:
        self.ip(target, 17, struct.pack("!HHHH", 40001, port, 8 + len(payload), 0) + payload)

    def frames(self, seconds: float) -> list[tuple[int, bytes]]:
        """Every frame that arrives in the time: (ethertype, body)."""
        found, end = [], time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([self.tap], [], [], left)[0]:
                raw = os.read(self.tap, 65536)[len(VNET_HEADER) :]
                found.append((struct.unpack("!H", raw[12:14])[0], raw[14:]))
        return found

    def next_packet(self, seconds: float) -> Packet | None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not select.select([self.tap], [], [], left)[0]:
                return None
            raw = os.read(self.tap, 65536)[len(VNET_HEADER) :]
            if raw[12:14] == b"\x08\x00" and raw[14] >> 4 == 4:
                ip = raw[14:]
                return Packet(socket.inet_ntoa(ip[12:16]), socket.inet_ntoa(ip[16:20]), ip[9], ip[20:])
        return None

    def resolve(self) -> None:
        """Ask by ARP for the gateway; keeps its address."""
        ask = struct.pack(
            "!HHBBH6s4s6s4s", 1, 0x0800, 6, 4, 1, self.mac, socket.inet_aton(self.address), bytes(6),
            socket.inet_aton(self.gateway),
        )  # fmt: skip
        self.frame(0x0806, ask, HOST_ANY)
        for kind, body in self.frames(0.05):
            if kind == 0x0806 and body[6:8] == b"\0\x02":
                self.gateway_mac = body[8:14]
                return
        raise AssertionError("no answer to ARP")
