"""One owned task a sandbox, converging to its newest assignment."""

import asyncio
from collections.abc import Callable

from space.base.logs import bind, get_logger
from space.base.tasks import cancel, spawn
from space.vm.base import Machine
from space.wire.node import Assign, Present, SandboxReport
from space.worker.parts import Parts
from space.worker.records import Sandbox
from space.worker.steps import StepFailed, Work, create, destroy

RETRY_S = 2.0  # an undo that failed (a busy mount, a slow kernel) usually succeeds a moment later
Reporter = Callable[[SandboxReport], None]


class Keeper:
    """The owner of one sandbox."""

    def __init__(self, parts: Parts, record: Sandbox, report: Reporter, machine: Machine | None = None) -> None:
        self.work = Work(parts, record, machine)
        self._report = report
        self._changed = asyncio.Event()
        self._changed.set()
        self.reported: SandboxReport | None = None  # the last, sent again after a reconnect or a repeated assignment
        self.task: asyncio.Task[None] | None = None
        self.gone = False

    @property
    def assign(self) -> Assign:
        return self.work.record.assign

    def take(self, assign: Assign) -> None:
        """A newer assignment replaces the older; the same one again asks for the last report."""
        old = self.assign
        if assign.epoch < old.epoch or (assign.epoch == old.epoch and old.desired == "deleted"):
            return
        if assign == old:
            if self.reported is not None:
                self._report(self.reported)
            return
        self.work.record.assign = assign
        self._changed.set()

    async def run(self) -> None:
        """Until the sandbox is gone."""
        with bind(sandbox=self.work.id):
            if self.work.machine is None and self.work.record.state == "creating" and self.assign.desired == "running":
                await self._create()
            elif self.work.machine is not None:
                self.tell("running")
            while not self.gone:
                if self.assign.desired == "deleted":
                    await self._destroy("deleted")
                else:
                    await self._watch()

    async def _create(self) -> None:
        making = spawn(f"create {self.work.id}", self._make())
        while not making.done():
            waiting = spawn(f"change {self.work.id}", self._deleted())
            await asyncio.wait({making, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if self.assign.desired == "deleted":
                await cancel(making)

    async def _deleted(self) -> None:
        while self.assign.desired != "deleted":
            self._changed.clear()
            await self._changed.wait()

    async def _make(self) -> None:
        try:
            await create(self.work, lambda phase: self.tell("creating", phase=phase))
        except StepFailed as error:
            get_logger().error("create failed", action="create_failed", phase=error.phase, reason=error.reason)
            await self._destroy("failed", error.reason, error.phase)
            return
        get_logger().info("running", action="sandbox_running", timings=self.work.record.timings)
        self.tell("running")

    async def _watch(self) -> None:
        if self.work.machine is None:
            await self._destroy("failed", "the machine was not there after the worker's restart", "reclaim")
            return
        ended = spawn(f"wait {self.work.id}", self.work.machine.wait())
        deleted = spawn(f"change {self.work.id}", self._deleted())
        try:
            await asyncio.wait({ended, deleted}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done() and self.assign.desired != "deleted":
                await self._destroy("failed", f"the machine ended: {ended.result().reason}", "running")
        finally:
            await cancel(ended, deleted)

    async def _destroy(self, state: str, reason: str | None = None, phase: str | None = None) -> None:
        if state == "failed":
            self.tell(state, reason=reason, phase=phase)
        while True:
            try:
                await destroy(self.work)
            except StepFailed:
                await asyncio.sleep(RETRY_S)
            else:
                break
        self.gone = True
        if state == "deleted" or self.assign.desired == "deleted":
            self.tell("deleted")

    def tell(self, state: str, *, reason: str | None = None, phase: str | None = None) -> None:
        """Report what is observed."""
        self.reported = SandboxReport(
            sandbox=self.work.id, epoch=self.assign.epoch, state=state, reason=reason, phase=phase,  # type: ignore[arg-type]
            timings=self.work.record.timings if state == "running" else {},
            isolation=self.work.parts.driver.isolation, started_from="boot",
        )  # fmt: skip
        self._report(self.reported)


class Executor:
    """All sandboxes of the node."""

    def __init__(self, parts: Parts, report: Reporter) -> None:
        self.parts = parts
        self._report = report
        self.keepers: dict[str, Keeper] = {}
        # Failed here: asked for again with the same epoch, the failure is told again, never a new machine made.
        self._failed: dict[str, SandboxReport] = {}

    def adopt(self, record: Sandbox, machine: Machine | None) -> None:
        """Go on with a sandbox of an earlier life."""
        self._keep(Keeper(self.parts, record, self._report, machine))

    def assign(self, assign: Assign) -> None:
        """Take an assignment; what is not here and should not be is reported deleted at once."""
        keeper = self.keepers.get(assign.sandbox)
        if keeper is not None:
            keeper.take(assign)
        elif assign.desired == "deleted":
            self._failed.pop(assign.sandbox, None)
            self._report(SandboxReport(sandbox=assign.sandbox, epoch=assign.epoch, state="deleted"))
        elif (failed := self._failed.get(assign.sandbox)) is not None and failed.epoch == assign.epoch:
            self._report(failed)
        else:
            self._keep(Keeper(self.parts, Sandbox(assign=assign), self._report))

    def explained(self, sandboxes: set[str]) -> None:
        """Remove what the controller does not know to be here."""
        for name, keeper in self.keepers.items():
            if name not in sandboxes:
                keeper.take(keeper.assign.model_copy(update={"desired": "deleted", "epoch": keeper.assign.epoch + 1}))

    def present(self) -> list[Present]:
        """For hello."""
        return [Present(id=k, epoch=v.assign.epoch, state=v.work.record.state) for k, v in self.keepers.items()]

    def running(self, sandbox: str) -> Keeper | None:
        """The keeper of a sandbox whose machine was handed out."""
        keeper = self.keepers.get(sandbox)
        return keeper if keeper is not None and keeper.work.record.state == "running" else None

    def _keep(self, keeper: Keeper) -> None:
        self.keepers[keeper.work.id] = keeper
        keeper.task = spawn(f"keep {keeper.work.id}", keeper.run())
        keeper.task.add_done_callback(lambda _: self._ended(keeper))

    def _ended(self, keeper: Keeper) -> None:
        self.keepers.pop(keeper.work.id, None)
        if keeper.reported is not None and keeper.reported.state == "failed":
            self._failed[keeper.work.id] = keeper.reported

    async def close(self) -> None:
        """Stop the tasks; machines that run go on and are adopted by the next worker."""
        await cancel(*(keeper.task for keeper in self.keepers.values() if keeper.task is not None))
