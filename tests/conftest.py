"""For every test: the host holds afterwards what it held before."""

import gc
import importlib.util
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from types import ModuleType

import pytest

# Folders whose tests start machines, mount, or make namespaces. Elsewhere a comparison would only cost time.
ROOMS = {"vm_machine", "vm_net", "vm_disk", "worker", "e2e", "supervisor", "templates"}
SETTLE_S = 3.0  # the kernel ends namespaces, loop devices and killed processes a moment after the call returns


def _load_host() -> ModuleType:
    """tests/host.py as the module `host`: with importlib mode the folder is not on the path."""
    if "host" not in sys.modules:
        spec = importlib.util.spec_from_file_location("host", Path(__file__).with_name("host.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["host"] = module
        spec.loader.exec_module(module)
    return sys.modules["host"]


host = _load_host()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require", action="store_true", help="a test skipped for a missing part is a failure")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With --require (as CI runs), a skip is a failure: a missing part must not look like a passing one."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.config.getoption("--require"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and --require was given: {report.longrepr}"
    return report


def _room(path: Path) -> str:
    return path.relative_to(Path(__file__).parent).parts[0]


@pytest.fixture(autouse=True)
def host_left_as_before(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail the test that leaves a process, namespace, link, mount, loop device or cgroup behind."""
    # fixtures of the session and of modules are set up before this one: what they hold is there before and after
    if _room(request.path) not in ROOMS:
        yield
        return
    home = str(tmp_path_factory.getbasetemp())
    before = host.HostState.capture(home=home)
    yield
    end = time.monotonic() + SETTLE_S
    while left := host.diff(before, host.HostState.capture(home=home)):
        if time.monotonic() > end:
            pytest.fail("\n".join(left), pytrace=False)
        gc.collect()
        time.sleep(0.02)
