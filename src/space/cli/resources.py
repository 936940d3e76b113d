"""``space sandbox``, ``command``, ``template``, ``key`` and ``node``: the API's resources, listed and changed."""

import sys
from typing import Annotated, Any

import typer

from space.cli.output import err, progress, show_fields, show_json, show_table
from space.cli.problems import CliError
from space.cli.run import create_sandbox
from space.cli.session import Session
from space.cli.shared import JsonFlag, connect, pairs

sandbox_app = typer.Typer(no_args_is_help=True, help="Sandboxes: list, create, look at, remove.")
command_app = typer.Typer(no_args_is_help=True, help="Commands of a sandbox.")
template_app = typer.Typer(no_args_is_help=True, help="Templates that sandboxes start from.")
key_app = typer.Typer(no_args_is_help=True, help="API keys (operators).")
node_app = typer.Typer(no_args_is_help=True, help="Nodes (operators).")

SandboxId = Annotated[str, typer.Argument(help="sbx…")]
CommandId = Annotated[str, typer.Argument(help="cmd…")]
Limit = Annotated[int, typer.Option("--limit", min=1, help="At most so many, newest first.")]


def _list(path: str, columns: list[str], *, json: bool, limit: int | None = None, **query: object) -> None:
    with connect() as api:
        items = list(api.pages(path, limit, **query))
    if json:
        show_json(items)
    else:
        show_table(items, columns)


def _show(path: str, *, json: bool) -> None:
    with connect() as api:
        item = api.call("GET", path)
    if json:
        show_json(item)
    else:
        show_fields(item)


@sandbox_app.command("ls")
def sandbox_ls(
    state: Annotated[str | None, typer.Option(help="Only this state.")] = None,
    limit: Limit = 50,
    json: JsonFlag = False,
) -> None:
    """List sandboxes, newest first."""
    columns = ["id", "name", "state", "template", "isolation", "created_at", "expires_at"]
    _list("/v1/sandboxes", columns, json=json, limit=limit, state=state)


@sandbox_app.command("create")
def sandbox_create(  # noqa: PLR0917 - typer reads options from the parameters
    template: Annotated[str | None, typer.Option(help="Template, name:tag.")] = None,
    name: Annotated[str | None, typer.Option(help="A name for people.")] = None,
    timeout: Annotated[str, typer.Option(help="Deadline, e.g. 30m.")] = "5m",
    env: Annotated[list[str] | None, typer.Option("--env", "-e", help="NAME=VALUE, repeatable.")] = None,
    metadata: Annotated[list[str] | None, typer.Option("--metadata", help="NAME=VALUE, repeatable.")] = None,
    vcpus: Annotated[int | None, typer.Option(help="Virtual CPUs; with --memory-mib.")] = None,
    memory_mib: Annotated[int | None, typer.Option(help="Memory.")] = None,
    disk_mib: Annotated[int | None, typer.Option(help="Disk.")] = None,
    json: JsonFlag = False,
) -> None:
    """Create a sandbox, wait until it runs and print its id."""
    resources = {"vcpus": vcpus, "memory_mib": memory_mib, "disk_mib": disk_mib}
    resources = {k: v for k, v in resources.items() if v is not None}
    with connect() as api:
        body: dict[str, Any] = {"template": template or api.context.template, "timeout": timeout}
        optional = {
            "name": name, "env": pairs(env or [], "--env"), "metadata": pairs(metadata or [], "--metadata"),
            "resources": resources,
        }  # fmt: skip
        body |= {k: v for k, v in optional.items() if v}
        made = create_sandbox(api, body)
    if json:
        show_json(made)
    else:
        sys.stdout.write(made["id"] + "\n")


@sandbox_app.command("get")
def sandbox_get(sandbox: SandboxId, json: JsonFlag = False) -> None:
    """Show one sandbox."""
    _show(f"/v1/sandboxes/{sandbox}", json=json)


@sandbox_app.command("rm")
def sandbox_rm(
    sandboxes: Annotated[list[str], typer.Argument(help="sbx…, several allowed.")], json: JsonFlag = False
) -> None:
    """Delete sandboxes and wait until they are gone."""
    gone = []
    with connect() as api, progress("deleting", quiet=json) as told:
        for sandbox in sandboxes:
            answer = api.call("DELETE", f"/v1/sandboxes/{sandbox}")
            gone.append(api.wait_operation(answer["operation"], told))
    if json:
        show_json(gone)


@command_app.command("ls")
def command_ls(sandbox: SandboxId, limit: Limit = 50, json: JsonFlag = False) -> None:
    """List a sandbox's commands, newest first."""
    columns = ["id", "state", "exit_code", "signal", "command", "created_at"]
    _list(f"/v1/sandboxes/{sandbox}/commands", columns, json=json, limit=limit)


@command_app.command("get")
def command_get(sandbox: SandboxId, command: CommandId, json: JsonFlag = False) -> None:
    """Show one command."""
    _show(f"/v1/sandboxes/{sandbox}/commands/{command}", json=json)


@command_app.command("logs")
def command_logs(sandbox: SandboxId, command: CommandId) -> None:
    """Print a command's kept output and follow it to its end; the exit code is the command's."""
    with connect() as api:
        fresh = api.call("POST", f"/v1/sandboxes/{sandbox}/commands/{command}/attachments")
        session = Session(api, sandbox, command, fresh.get("attachment", fresh), follow_only=True)
        raise typer.Exit(session.follow(stdin=False, terminal=False))


@template_app.command("ls")
def template_ls(json: JsonFlag = False) -> None:
    """List templates."""
    _list("/v1/templates", ["name", "digest", "size_mib", "nodes"], json=json)


@template_app.command("build")
def template_build(
    name: Annotated[str, typer.Argument(help="Only seed:latest can be built so far.")] = "seed:latest",
    json: JsonFlag = False,
) -> None:
    """Build the seed template on this host (root). Recipes come with a later issue."""
    if name not in ("seed", "seed:latest"):
        raise CliError(f"cannot build {name}", "only seed:latest can be built so far; recipes are not there yet")
    from space.supervisor import template

    manifest = template.build_here()
    if json:
        show_json(manifest)


@key_app.command("create")
def key_create(
    name: Annotated[str, typer.Option(help="What it is for.")],
    role: Annotated[str, typer.Option(help="operator or member.")] = "member",
    json: JsonFlag = False,
) -> None:
    """Make a key and print it, this once."""
    with connect() as api:
        made = api.call("POST", "/v1/keys", {"name": name, "role": role})
    if json:
        show_json(made)
        return
    sys.stdout.write(str(made.get("key") or made.get("token")) + "\n")
    err.print("space: shown this once; only its hash is kept", markup=False)


@key_app.command("ls")
def key_ls(json: JsonFlag = False) -> None:
    """List keys, without their secret."""
    _list("/v1/keys", ["id", "name", "role", "created_at", "revoked_at"], json=json)


@key_app.command("rm")
def key_rm(key: Annotated[str, typer.Argument(help="key…")]) -> None:
    """Revoke a key."""
    with connect() as api:
        api.call("DELETE", f"/v1/keys/{key}")


@node_app.command("ls")
def node_ls(json: JsonFlag = False) -> None:
    """List nodes with what they have and when they were last seen."""
    _list("/v1/nodes", ["id", "name", "state", "machine", "capacity", "last_seen_at"], json=json)
