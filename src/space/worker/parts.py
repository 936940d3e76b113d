"""What a worker's steps stand on, gathered once at its start."""

from dataclasses import dataclass

from space.vm.disk import Store
from space.vm.net import Network
from space.vm.qemu import QemuDriver
from space.worker.records import Records
from space.worker.slots import Slots


@dataclass(frozen=True)
class Parts:
    """The seams of one node."""

    driver: QemuDriver
    network: Network
    store: Store
    slots: Slots
    records: Records
    boot_timeout: float
