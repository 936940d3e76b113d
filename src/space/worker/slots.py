"""Uids of machines: each machine of the node has one of its own."""


class NoSlot(Exception):
    """All uids are in use."""


class Slots:
    """Hands out uids from `base` on; the lowest free one first."""

    def __init__(self, base: int, count: int) -> None:
        self._base = base
        self._count = count
        self._used: set[int] = set()

    def take(self) -> int:
        """A free uid."""
        for uid in range(self._base, self._base + self._count):
            if uid not in self._used:
                self._used.add(uid)
                return uid
        raise NoSlot(f"all {self._count} machine uids are in use")

    def keep(self, uid: int) -> None:
        """Mark one that a running machine holds."""
        self._used.add(uid)

    def give(self, uid: int) -> None:
        """Take one back."""
        self._used.discard(uid)
