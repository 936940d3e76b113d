"""``space run`` and ``space shell``: a sandbox for one command, gone afterwards."""

import contextlib
import sys
from typing import Annotated, Any

import typer

from space.cli import context
from space.cli.api_client import Api, Json
from space.cli.output import err, progress, show_json
from space.cli.problems import PLATFORM_EXIT, CliError
from space.cli.session import Session, terminal_size, wants_stdin
from space.cli.shared import connect, pairs

Sandbox = Annotated[str | None, typer.Option("--sandbox", "-s", help="Use this sandbox and keep it.")]
Template = Annotated[str | None, typer.Option("--template", help="Template of the new sandbox.")]
Cwd = Annotated[str | None, typer.Option("--cwd", "-w", help="Directory in the machine.")]
Env = Annotated[list[str] | None, typer.Option("--env", "-e", help="NAME=VALUE, repeatable.")]
User = Annotated[str | None, typer.Option("--user", "-u", help="User in the machine.")]
Timeout = Annotated[str | None, typer.Option("--timeout", help="Kill the command after, e.g. 30s.")]
Life = Annotated[str, typer.Option("--life", help="Deadline of a new sandbox.")]
Keep = Annotated[bool, typer.Option("--keep", help="Do not delete the new sandbox.")]
Terminal = Annotated[bool, typer.Option("--tty", "-t", help="Give the command a terminal.")]


def create_sandbox(api: Api, body: Json, *, quiet: bool = False) -> Json:
    """Create a sandbox and wait until it runs; one that does not come up is deleted again."""
    with progress("starting a sandbox", quiet=quiet) as told:
        made = api.call("POST", "/v1/sandboxes", body)
        identifier = made["sandbox"]["id"]
        try:
            api.wait_operation(made["operation"], told)
        except BaseException:
            with contextlib.suppress(CliError):
                api.call("DELETE", f"/v1/sandboxes/{identifier}")
            raise
        return api.call("GET", f"/v1/sandboxes/{identifier}")


def tell_once_about_emulation(sandbox: Json) -> None:
    """Say at the first run on emulation what it does not promise."""
    marker = context.context_file().with_name("told-emulated")
    if sandbox.get("isolation") != "emulated" or marker.exists():
        return
    took = (sandbox.get("timings") or {}).get("total") or (sandbox.get("timings") or {}).get("boot")
    measured = f" (this one took {took} ms to start)" if took else ""
    err.print(
        "space: isolation: emulated. This host has no usable KVM: machines run in software emulation, several times "
        f"slower{measured}, and QEMU promises no isolation there. `space doctor kvm` says more. (Said once.)",
        markup=False,
    )
    with contextlib.suppress(OSError):
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()


def execute(api: Api, sandbox: str, spec: Json, *, terminal: bool) -> int:
    """Start a command, follow it to its end, give its exit code."""
    stdin = terminal or wants_stdin()
    body = {k: v for k, v in spec.items() if v not in (None, {}, [])} | {"stdin": stdin}
    if terminal:
        body["tty"] = terminal_size()
    made = api.call("POST", f"/v1/sandboxes/{sandbox}/commands", body)
    return Session(api, sandbox, made["command"]["id"], made["attachment"]).follow(stdin=stdin, terminal=terminal)


def _in_sandbox(sandbox: str | None, template: str | None, life: str, keep: bool, spec: Json, *, terminal: bool) -> int:
    if terminal and not sys.stdin.isatty():
        raise CliError("-t needs a terminal on stdin", "leave -t out, or run it in a terminal", exit_code=PLATFORM_EXIT)
    try:
        with connect() as api:
            if sandbox is not None:
                return execute(api, sandbox, spec, terminal=terminal)
            made = create_sandbox(api, {"template": template or api.context.template, "timeout": life})
            try:
                tell_once_about_emulation(made)
                return execute(api, made["id"], spec, terminal=terminal)
            finally:
                if keep:
                    err.print(f"space: kept {made['id']}", markup=False)
                else:
                    api.call("DELETE", f"/v1/sandboxes/{made['id']}")
    except CliError as error:
        error.exit_code = PLATFORM_EXIT if error.exit_code == 1 else error.exit_code
        raise


def run(  # noqa: PLR0917 - typer reads options from the parameters
    command: Annotated[list[str], typer.Argument(help="The command and its arguments; no shell is added.")],
    sandbox: Sandbox = None,
    template: Template = None,
    cwd: Cwd = None,
    env: Env = None,
    user: User = None,
    timeout: Timeout = None,
    life: Life = "5m",
    keep: Keep = False,
    tty: Terminal = False,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Start it in --sandbox and return.")] = False,
    json: Annotated[bool, typer.Option("--json", help="With --detach: print the command as JSON.")] = False,
) -> None:
    """Run one command in a machine of its own: space run -- python3 -c 'print(1)'.

    The exit code is the command's; 125 when the platform failed, 126 and 127 as in a shell, 128+n after a signal.
    """
    spec: dict[str, Any] = {
        "command": command, "cwd": cwd, "env": pairs(env or [], "--env"), "user": user, "timeout": timeout,
    }  # fmt: skip
    if detach:
        raise typer.Exit(_start_detached(sandbox, spec, json=json))
    raise typer.Exit(_in_sandbox(sandbox, template, life, keep, spec, terminal=tty))


def _start_detached(sandbox: str | None, spec: Json, *, json: bool) -> int:
    if sandbox is None:
        raise CliError("--detach needs --sandbox", "space sandbox create", exit_code=2)
    with connect() as api:
        body = {k: v for k, v in spec.items() if v not in (None, {}, [])} | {"detach": True}
        made = api.call("POST", f"/v1/sandboxes/{sandbox}/commands", body)["command"]
    if json:
        show_json(made)
    else:
        sys.stdout.write(made["id"] + "\n")
    return 0


def shell(
    sandbox: Sandbox = None,
    template: Template = None,
    user: User = None,
    life: Life = "1h",
    keep: Keep = False,
) -> None:
    """Open a terminal in a machine."""
    spec = {"command": ["/bin/bash", "-l"], "user": user, "env": {"TERM": "xterm-256color"}}
    raise typer.Exit(_in_sandbox(sandbox, template, life, keep, spec, terminal=True))
