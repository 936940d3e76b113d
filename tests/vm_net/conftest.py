import itertools
import os
from collections.abc import AsyncIterator

import pytest

from space.vm.net import Network

_numbers = itertools.count()


@pytest.fixture
async def network() -> AsyncIterator[Network]:
    """A network with a prefix of this process, without a pool; whatever it left is deleted."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    made = Network(prefix=f"space-t{os.getpid()}x{next(_numbers)}-", pool_size=0)
    await made.open()
    yield made
    await made.close()
    for name in await made.list():
        await made.delete(name)
