"""The pure decisions."""

from datetime import UTC, datetime, timedelta

import pytest

from space.domain import durations, ids, placement, shapes
from space.domain.errors import InvalidRequest, IsolationUnavailable, NoCapacity, NoSuchShape, TemplateNotFound
from space.domain.plan import Observed, Step, plan
from space.domain.sandbox import State

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(("text", "value"), [("30s", 30_000), ("5m", 300_000), ("250ms", 250), ("1h", 3_600_000)])
def test_durations(text: str, value: int) -> None:
    assert durations.parse_ms(text) == value
    assert durations.format_ms(value) == text


@pytest.mark.parametrize("text", ["", "0s", "-1s", "5", "5 m", "1.5h", "٣s", "9999999999s", "5m\n"])
def test_bad_durations(text: str) -> None:
    with pytest.raises(InvalidRequest):
        durations.parse_ms(text)


def test_shapes_round_up() -> None:
    assert shapes.choose(None, None) == shapes.DEFAULT
    assert shapes.choose(1, 600) == shapes.Shape(1, 1024)
    assert shapes.choose(3, None) == shapes.Shape(4, 4096)
    with pytest.raises(NoSuchShape):
        shapes.choose(None, 1 << 20)


def test_ids() -> None:
    made = {ids.new("sbx") for _ in range(1000)}
    assert len(made) == 1000
    assert all(ids.is_id(name, "sbx") and name == name.lower() for name in made)
    assert not ids.is_id("sbxé" + "0" * 19, "sbx")


def test_placement_says_why() -> None:
    node = placement.Node("a", True, "emulated", 2048, 9000, 10, templates={"t": "d"})
    wish = placement.Request("t", 1024, 4096)
    assert placement.place(wish, [node]) == placement.Placed("a", "d")
    assert isinstance(placement.place(wish, []), NoCapacity)
    assert isinstance(placement.place(placement.Request("u", 1, 1), [node]), TemplateNotFound)
    assert isinstance(placement.place(placement.Request("t", 4096, 1), [node]), NoCapacity)
    assert isinstance(placement.place(placement.Request("t", 1, 1, "kvm"), [node]), IsolationUnavailable)


@pytest.mark.parametrize(
    ("state", "desired", "node", "left", "step"),
    [
        ("creating", "running", None, 1, Step.PLACE), ("creating", "running", "n", 1, Step.ASSIGN_RUNNING),
        ("running", "running", "n", 1, Step.NOTHING), ("running", "running", "n", 0, Step.EXPIRE),
        ("failed", "running", "n", 0, Step.EXPIRE), ("running", "deleted", "n", 1, Step.BEGIN_DELETE),
        ("deleting", "deleted", "n", 1, Step.ASSIGN_DELETED), ("deleting", "deleted", None, 1, Step.FINISH_DELETE),
        ("deleted", "deleted", "n", 0, Step.NOTHING),
    ],
)  # fmt: skip
def test_plan(state: str, desired: str, node: str | None, left: int, step: Step) -> None:
    seen = Observed(State(state), desired, node, NOW + timedelta(seconds=left))  # type: ignore[arg-type]
    assert plan(seen, NOW) is step
