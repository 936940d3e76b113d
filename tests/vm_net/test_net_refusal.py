"""What a guest sends out is refused at once, whatever the address; nothing is forwarded."""

import importlib.util
import os
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from space.vm import net_rules
from space.vm.net import Network

_spec = importlib.util.spec_from_file_location("vm_net_guest", Path(__file__).with_name("guest.py"))
assert _spec
assert _spec.loader
guest_module: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(guest_module)

AT_ONCE_S = 0.1
ADDRESSES = ["10.77.0.1", "10.77.0.9", "1.1.1.1", "169.254.169.254", "169.254.77.1", "127.0.0.1"]
ROUTABLE = [address for address in ADDRESSES if address != "127.0.0.1"]


class Place:
    def __init__(self, network: Network, name: str, egress: int, control: int) -> None:
        self.network, self.name = network, name
        self.guest = guest_module.Guest(egress, net_rules.GUEST_ADDRESS, net_rules.GUEST_MAC, net_rules.GATEWAY_ADDRESS)
        self.agent = guest_module.Guest(
            control, net_rules.AGENT_ADDRESS, net_rules.AGENT_MAC, net_rules.CONTROL_ADDRESS
        )


@pytest.fixture
async def place(network: Network) -> AsyncIterator[Place]:
    name = await network.acquire()
    egress, control = await network.taps(name)
    await network.link_up(name)
    made = Place(network, name, egress, control)
    made.guest.resolve()
    yield made
    os.close(egress)
    os.close(control)
    await network.release(name)


@pytest.mark.parametrize("target", ROUTABLE)
async def test_a_connect_is_reset_at_once(place: Place, target: str) -> None:
    began = time.monotonic()
    place.guest.tcp(target, 443, 0x02)
    answer = place.guest.next_packet(1)
    assert time.monotonic() - began < AT_ONCE_S
    assert answer is not None
    assert (answer.source, answer.target, answer.protocol) == (target, net_rules.GUEST_ADDRESS, 6)
    assert answer.body[13] & 0x04, "not a reset"
    assert (await place.network.counters(place.name))["refused"] >= 1


@pytest.mark.parametrize("target", ROUTABLE)
async def test_dns_is_refused_at_once_and_every_time(place: Place, target: str) -> None:
    query = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x04pypi\x03org\0\0\x01\0\x01"
    for _ in range(30):  # more than the kernel's default burst of ICMP errors
        began = time.monotonic()
        place.guest.udp(target, 53, query)
        answer = place.guest.next_packet(1)
        assert answer is not None
        assert time.monotonic() - began < AT_ONCE_S
        assert (answer.protocol, answer.body[0], answer.body[1]) == (1, 3, 3), "not port unreachable"


async def test_loopback_from_outside_is_never_served(place: Place) -> None:
    place.guest.tcp("127.0.0.1", 443, 0x02)
    answer = place.guest.next_packet(0.1)
    assert answer is None or answer.body[13] & 0x04


async def test_a_forged_source_and_a_broadcast_get_nowhere(place: Place) -> None:
    place.guest.ip("1.1.1.1", 17, b"\0" * 12, source="8.8.8.8")
    place.guest.ip("255.255.255.255", 17, b"\0" * 12)
    assert place.agent.frames(0.05) == []


async def test_nothing_is_forwarded_between_the_taps(place: Place) -> None:
    place.guest.tcp(net_rules.AGENT_ADDRESS, net_rules.AGENT_PORT, 0x02)
    assert place.agent.frames(0.05) == []


async def test_the_control_tap_takes_no_connection(place: Place) -> None:
    place.agent.resolve()
    for port in (22, 1024):
        place.agent.tcp(net_rules.CONTROL_ADDRESS, port, 0x02, source_port=net_rules.AGENT_PORT)
    place.agent.udp(net_rules.CONTROL_ADDRESS, 53, b"x")
    assert place.agent.next_packet(0.05) is None
    assert (await place.network.counters(place.name))["control_dropped"] == 3


async def test_only_the_agent_is_reached_from_inside(place: Place) -> None:
    def attempt(command: str) -> int:
        argv = ["nsenter", f"--net=/run/netns/{place.name}", "python3", "-c", command]
        return subprocess.run(argv, capture_output=True, check=False).returncode

    connect = "import socket;s=socket.socket();s.settimeout(0.2);s.connect(({!r},{}))"
    began = time.monotonic()
    assert attempt(connect.format("1.1.1.1", 443)) != 0
    assert attempt(connect.format(net_rules.GUEST_ADDRESS, 80)) != 0
    assert attempt(connect.format(net_rules.AGENT_ADDRESS, 80)) != 0
    assert time.monotonic() - began < 5
    assert place.guest.next_packet(0.05) is None
    assert place.agent.next_packet(0.05) is None


async def test_there_is_no_way_out(place: Place) -> None:
    def inside(*argv: str) -> str:
        command = ["nsenter", f"--net=/run/netns/{place.name}", *argv]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    links = {line.split(": ")[1] for line in inside("ip", "-o", "link").splitlines()}
    assert links == {"lo", net_rules.EGRESS, net_rules.CONTROL}
    assert "default" not in inside("ip", "route", "show", "table", "all", "type", "unicast")
    assert inside("cat", "/proc/sys/net/ipv4/ip_forward").strip() == "0"
    if Path("/proc/sys/net/ipv6").exists():
        assert inside("ip", "-6", "address").strip() == ""


async def test_dial_reaches_an_agent_that_answers(place: Place) -> None:
    import asyncio

    dialing = asyncio.create_task(place.network.dial(place.name, 2))
    syn = await asyncio.to_thread(place.agent.next_packet, 1)
    assert syn.target == net_rules.AGENT_ADDRESS
    port, seq = int.from_bytes(syn.body[:2], "big"), int.from_bytes(syn.body[4:8], "big")
    place.agent.resolve()
    place.agent.tcp(net_rules.CONTROL_ADDRESS, port, 0x12, source_port=net_rules.AGENT_PORT, ack=seq + 1)
    with await dialing as connected:
        assert connected.getpeername() == (net_rules.AGENT_ADDRESS, net_rules.AGENT_PORT)
        assert not connected.getblocking()


async def test_dial_gives_up_in_time_and_the_thread_is_home(place: Place) -> None:
    here = os.readlink("/proc/thread-self/ns/net")
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        await place.network.dial(place.name, 0.2)
    assert time.monotonic() - began < 1
    assert os.readlink("/proc/thread-self/ns/net") == here
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
