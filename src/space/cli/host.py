"""``space up``, ``down``, ``status``, ``doctor`` and ``logs``: the platform on this host."""

import json as json_module
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from space.base.settings import Settings
from space.cli import context
from space.cli.output import err, out, progress, show_json, show_table
from space.cli.problems import CliError
from space.cli.shared import JsonFlag


def _root(what: str) -> None:
    if os.geteuid() != 0:
        raise CliError(f"`space {what}` needs root", f"sudo {sys.argv[0]} {what}", code="needs_root")


def up(
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Go to the background when ready.")] = False,
    json: JsonFlag = False,
) -> None:
    """Start the whole platform on this host: database, api, controller, dataplane, worker."""
    _root("up")
    from space.supervisor import start

    def save(api_url: str, data_plane_url: str, api_token: str, template: str) -> str:
        return str(context.save(context.Context(api_url, data_plane_url, api_token, template)))

    raise typer.Exit(start.up(Settings.load(), detach=detach, json=json, save=save))


def down(
    purge: Annotated[bool, typer.Option(help="Also delete all state: sandboxes, templates, database, keys.")] = False,
    json: JsonFlag = False,
) -> None:
    """Stop the platform and delete its machines."""
    _root("down")
    from space.supervisor import stop

    settings = Settings.load()
    with progress("stopping", quiet=json):
        was_running = stop.down(settings, purge=purge)
    if json:
        show_json({"was_running": was_running, "purged": purge})
    else:
        err.print("space: stopped" if was_running else "space: was not running", markup=False)


def status(json: JsonFlag = False) -> None:
    """Show which parts run on this host."""
    from space.supervisor import stop

    report = stop.status(Settings.load())
    if json:
        show_json(report)
    elif report["running"]:
        out.print(f"running since {report['since']}, API {report['api_url']}", markup=False)
        show_table(report["parts"], ["name", "state", "pid", "user", "restarts"])
    else:
        out.print("not running; start it with `sudo space up -d`", markup=False)
    raise typer.Exit(0 if report["running"] else 3)


def doctor(
    topic: Annotated[str | None, typer.Argument(help="`kvm`: only that, with more words.")] = None,
    json: JsonFlag = False,
) -> None:
    """Say what is missing on this host and the command that mends it."""
    from space.supervisor import checks

    found = [c for c in checks.all_checks(Settings.load().state_dir) if topic in (None, c.name)]
    if not found:
        raise CliError(f"no check is called {topic}", "space doctor", exit_code=2)
    if json:
        show_json([c.as_dict() for c in found])
    else:
        for check in found:
            mark = "ok  " if check.ok else ("FAIL" if check.required else "note")
            out.print(f"{mark} {check.name}: {check.detail}", markup=False)
            if not check.ok and check.fix:
                out.print(f"     {check.fix}", markup=False)
        if topic == "kvm":
            out.print(KVM_WORDS, markup=False)
    raise typer.Exit(0 if all(c.ok or not c.required for c in found) else 1)


KVM_WORDS = """
With KVM the machine's kernel runs on virtualised hardware and QEMU's security support covers the boundary. Without it
QEMU emulates every instruction: several times slower, and QEMU's own policy promises no isolation there. What counts
then is the jail around the machine's process (own uid, empty root, no capabilities, seccomp, cgroup). Every sandbox
says which it got: isolation: kvm or emulated. `space up` boots a guest to find out: /dev/kvm alone proves nothing."""


def logs(
    part: Annotated[
        str | None, typer.Argument(help="api, controller, dataplane, worker, postgres, supervisor.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="So many last lines of each.")] = 50,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line: part and line.")] = False,
) -> None:
    """Print the parts' logs."""
    folder = Settings.load().state_dir / "log"
    try:
        files = sorted(f for f in folder.glob("*.log") if part in (None, f.stem))
    except PermissionError:
        files = []
    if not files:
        raise CliError(f"no log of {part or 'any part'} in {folder}", "space status")
    offsets = {}
    for file in files:
        tail, offsets[file] = _tail(file, lines)
        _print_lines(file.stem, tail, many=len(files) > 1, json=json)
    while follow:
        time.sleep(0.3)
        for file in files:
            offsets[file] = _print_new(file, offsets[file], many=len(files) > 1, json=json)


def _open(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except PermissionError:
        raise CliError(f"cannot read {file}", f"sudo {sys.argv[0]} logs") from None


def _tail(file: Path, lines: int) -> tuple[list[bytes], int]:
    data = _open(file)  # bounded: a log is turned over at 16 MiB
    kept = data.splitlines()[-lines:] if lines else []
    return kept, len(data)


def _print_new(file: Path, offset: int, *, many: bool, json: bool) -> int:
    if file.stat().st_size == offset:
        return offset
    data = _open(file)
    start = offset if len(data) >= offset else 0  # it was turned over
    _print_lines(file.stem, data[start:].splitlines(), many=many, json=json)
    return len(data)


def _print_lines(part: str, lines: list[bytes], *, many: bool, json: bool) -> None:
    for line in lines:
        text = line.decode(errors="replace")
        if json:
            sys.stdout.write(json_module.dumps({"part": part, "line": text}) + "\n")
        else:
            sys.stdout.write(f"{part:<11} {text}\n" if many else f"{text}\n")
    sys.stdout.flush()
