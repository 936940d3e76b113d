"""From an unplaced row to running and deleted, with two nodes, stale reports and used tokens."""

from typing import Any

from space.wire.lines import Lines


async def until(lines: Lines, kind: str) -> dict[str, Any]:
    while True:
        message = await lines.receive(15)
        assert message is not None
        if message["type"] == kind:
            return message


async def report(lines: Lines, sandbox: str, epoch: int, state: str) -> bool:
    await lines.send({"type": "report", "sandbox": sandbox, "epoch": epoch, "state": state, "isolation": "emulated"})
    return bool((await until(lines, "ack"))["taken"])


async def test_two_nodes_end_to_end(rig: Any) -> None:
    for name in ("node1", "node2"):
        await rig.node(name, f"token-{name}")
        assert (await rig.enrol(f"token-{name}"))["type"] == "enrolled"
        assert (await rig.enrol(f"token-{name}"))["type"] == "refused"
    foreign = await rig.connect("node2", claim="node1")
    assert (await until(foreign, "refused"))["type"] == "refused"
    links = {name: await rig.connect(name) for name in ("node1", "node2")}
    for link in links.values():
        assert (await until(link, "welcome"))["sandboxes"] == []

    await rig.sandbox("sbx1")
    home = await until(links["node2"], "assign")  # equal memory: the higher id
    assert (home["sandbox"], home["desired"], home["epoch"]) == ("sbx1", "running", 1)
    assert not await report(links["node1"], "sbx1", 1, "running")
    assert not await report(links["node2"], "sbx1", 0, "running")
    assert await report(links["node2"], "sbx1", 1, "running")
    assert await rig.sql.fetchval("select state from operations where id = 'op-sbx1'") == "succeeded"

    await rig.sql.execute("update sandboxes set expires_at = now() where id = 'sbx1'")
    while (gone := await until(links["node2"], "assign"))["desired"] != "deleted":
        pass
    assert not await report(links["node2"], "sbx1", 1, "running")
    assert await report(links["node2"], "sbx1", gone["epoch"], "deleted")
    assert await rig.sql.fetchval("select state from sandboxes where id = 'sbx1'") == "deleted"
    for link in links.values():
        link.close()
