"""One embedded server for the store's tests."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
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
