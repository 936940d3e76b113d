"""One embedded server for the store's tests."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.postgres import TestServer, server


@pytest.fixture(scope="session")
def postgres() -> Iterator[TestServer]:
    with asyncio.Runner() as runner:
        context = server()
        yield runner.run(context.__aenter__())
        runner.run(context.__aexit__(None, None, None))


@pytest.fixture
async def dsn(postgres: TestServer) -> AsyncIterator[str]:
    async with postgres.database() as name:
        yield name
