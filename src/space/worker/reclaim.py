"""At the start, before any work: adopt the machines whose record and process match, remove everything else of ours."""

from space.base.logs import get_logger
from space.vm.base import Machine, MachineError
from space.worker.parts import Parts
from space.worker.records import Sandbox


async def reclaim(parts: Parts) -> list[tuple[Sandbox, Machine | None]]:
    """What goes on; a sandbox without its machine is among them so that its end is reported."""
    records = parts.records.load()
    kept: dict[str, Machine] = {}
    for found in parts.driver.found():
        record = records.get(str(found.get("id")))
        if record is not None and record.state == "running":
            try:
                kept[record.assign.sandbox] = await parts.driver.adopt(found)
                continue
            except MachineError as error:
                get_logger().warning("not adopted", action="not_adopted", sandbox=found.get("id"), reason=str(error))
        await parts.driver.remove(found)
    netns = {records[name].netns for name in kept}
    await parts.network.open(keep=[name for name in netns if name])
    for name in await parts.store.list():
        if name not in kept:
            await parts.store.delete(name)
    for name, record in records.items():
        if name in kept:
            if record.uid is not None:
                parts.slots.keep(record.uid)
        else:
            # Nothing of it is left; a create that was cut off begins again, the rest is reported as failed.
            record.uid = record.netns = record.machine = None
            await parts.records.write(record)
    return [(record, kept.get(name)) for name, record in records.items()]
