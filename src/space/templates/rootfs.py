"""The seed's root file system: a small Debian from the host's own mirror, then made a sandbox's, then an ext4 image."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from space.base.commands import CommandError, run
from space.templates import sources
from space.templates.errors import TemplateError

Progress = Callable[[str, float], None]

# What an agent's task starts with. No compiler: it would double the size, and a task that needs one is granted
# packages.
PACKAGES = (
    "ca-certificates",
    "curl",
    "file",
    "git",
    "iproute2",
    "jq",
    "less",
    "libnss-myhostname",  # the name a sandbox gets at adopt resolves without a line in /etc/hosts; sudo asks for it
    "openssh-client",
    "procps",
    "python3",
    "python3-pip",
    "python3-venv",
    "sudo",
    "unzip",
    "vim-tiny",
    "xz-utils",
)
# Nobody reads manuals in a sandbox, C.UTF-8 needs no translations; leaving them out saves a third of the unpacking.
EXCLUDED = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/lintian/*")

SIZE_MIB = 2048  # 0.25 GiB used: room to work in, while the file is sparse and costs what is written
BUILD_TIMEOUT_S = 900.0  # measured 30 s on two cores with a near mirror; a far one may be thirty times slower
TAIL_LINES = 12
# Children of one fixed name: the same content gives the same file system.
UUID_SPACE = uuid.UUID("5d5c0f0e-6f0a-5c1a-9b0c-53504143452e")

# What mmdebstrap says when a phase begins, and how far the whole is then; measured.
PHASES = (
    ("running apt-get update", "package lists", 0.02),
    ("downloading packages", "download", 0.10),
    ("extracting archives", "unpack", 0.28),
    ("installing essential", "essential packages", 0.40),
    ("installing remaining", "packages", 0.55),
    ("cleaning package lists", "clean", 0.95),
)

PIP_WRAPPER = """\
#!/bin/sh
# Runs the real pip and, where it failed in a sandbox without a network, says what would help.
/usr/bin/{name} "$@"
code=$?
if [ "$code" -ne 0 ] && [ "$(cat /run/space/network 2>/dev/null || echo none)" = none ]; then
    case "${{1:-}}" in
    install | download | wheel | index | search)
        echo "space: this sandbox has no network; create it with the grant python-packages" \\
            "(space run --grant python-packages …)" >&2
        ;;
    esac
fi
exit "$code"
"""
PIP_CONF = """\
# Packages come through the sandbox's network policy or not at all: waiting helps nobody.
[global]
retries = 0
timeout = 5
disable-pip-version-check = true
# The machine is the environment; there is nothing else in it to protect from pip.
break-system-packages = true
root-user-action = ignore
"""
APT_CONF = """\
// Packages come through the sandbox's network policy or not at all: waiting helps nobody.
Acquire::Retries "0";
Acquire::http::Timeout "5";
Acquire::https::Timeout "5";
APT::Install-Recommends "false";
"""
FILES: dict[str, tuple[str, int]] = {
    "etc/hostname": ("sandbox\n", 0o644),
    "etc/hosts": ("127.0.0.1\tlocalhost\n127.0.1.1\tsandbox\n::1\tlocalhost ip6-localhost\n", 0o644),
    "etc/machine-id": ("", 0o444),  # each sandbox gets its own at adopt
    "etc/resolv.conf": ("nameserver 10.77.0.1\noptions timeout:1 attempts:1\n", 0o644),
    "etc/fstab": ("# The agent mounts everything.\n", 0o644),
    "etc/default/locale": ("LANG=C.UTF-8\n", 0o644),
    "etc/environment": ("LANG=C.UTF-8\n", 0o644),
    "etc/sudoers.d/user": ("user ALL=(ALL:ALL) NOPASSWD: ALL\n", 0o440),
    "etc/pip.conf": (PIP_CONF, 0o644),
    "etc/apt/apt.conf.d/90space": (APT_CONF, 0o644),
    "etc/dpkg/dpkg.cfg.d/90space": ("".join(f"path-exclude={pattern}\n" for pattern in EXCLUDED), 0o644),
    "etc/apt/sources.list": ("# Filled in by a grant; a sandbox without one has no package source.\n", 0o644),
    "usr/local/bin/pip": (PIP_WRAPPER.format(name="pip"), 0o755),
    "usr/local/bin/pip3": (PIP_WRAPPER.format(name="pip3"), 0o755),
}
# What two sandboxes must never share, what names the machine that built it, and what is only weight.
REMOVED = (
    "etc/apt/apt.conf.d/99mmdebstrap",
    "etc/apt/auth.conf",
    "etc/apt/auth.conf.d/*",
    "etc/apt/sources.list.d/*",
    "etc/dpkg/dpkg.cfg.d/99mmdebstrap",  # would leave a sandbox's own packages half written after a checkpoint
    "etc/ssh/ssh_host_*",
    "root/.bash_history",
    "tmp/*",
    "var/cache/apt/*.bin",
    "var/cache/apt/archives/*.deb",
    "var/cache/debconf/*-old",
    "var/cache/ldconfig/aux-cache",
    "var/lib/apt/lists/*",
    "var/lib/dbus/machine-id",
    "var/lib/dpkg/*-old",
    "var/lib/systemd/random-seed",
    "var/log/*.log",
    "var/log/apt/*",
)


async def build_tree(work: Path, progress: Progress) -> tuple[Path, list[str]]:
    """Make the tree in `work`, an empty folder of ours; gives it and its packages as sorted `name=version`."""
    tree = work / "tree"
    chosen = sources.choose(sources.host_sources(), sources.host_codename())
    lines = []
    for number, source in enumerate(chosen):
        keyring = work / f"key-{number}.asc"
        if source.key:
            keyring.write_text(source.key)
        lines.append(source.line(str(keyring) if source.key else ""))
    (work / "sources.list").write_text("\n".join(lines) + "\n")
    options = sources.fetch_options((await run(["apt-config", "dump"])).text)
    await _mmdebstrap(_command(work, tree, options), work, progress)
    listing = await run(["dpkg-query", f"--admindir={tree}/var/lib/dpkg", "-W", "-f", "${Package}=${Version}\n"])
    progress("settle", 0.96)
    await run(["chroot", tree, "useradd", "--create-home", "--uid", "1000", "--shell", "/bin/bash", "user"])
    await asyncio.to_thread(_settle, tree)
    return tree, sorted(listing.text.split())


def _command(work: Path, tree: Path, options: Sequence[str]) -> list[str]:
    command = [
        # Its own mount and process namespaces: when the first process in it ends, every mount and child ends with it.
        *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"),
        *("mmdebstrap", "--mode=root", "--format=directory", "--variant=minbase"),
        f"--include={','.join(PACKAGES)}",
        '--aptopt=APT::Install-Recommends "false"',
        "--dpkgopt=force-unsafe-io",  # what is half written after a crash is thrown away
        "--skip=cleanup/reproducible",
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in EXCLUDED),
        *(f"--aptopt={option}" for option in options),
    ]
    # A mirror with a password: apt in the tree reads its own folder. Removed again by REMOVED.
    secrets = [name for name in ("auth.conf", "auth.conf.d") if Path("/etc/apt", name).exists()]
    command += [f'--setup-hook=cp -a /etc/apt/{name} "$1"/etc/apt/' for name in secrets]
    return [*command, sources.host_codename(), str(tree), str(work / "sources.list")]


async def _mmdebstrap(command: Sequence[str], work: Path, progress: Progress) -> None:
    temporary = work / "tmp"
    temporary.mkdir()
    # The tree must not depend on the caller's umask, language or proxy variables other than what apt knows.
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "TMPDIR": str(temporary),
        "LC_ALL": "C.UTF-8",
        "HOME": "/root",
    }
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            umask=0o022,
            start_new_session=True,
        )
    except OSError as error:
        raise TemplateError(
            "packages", f"could not start {command[0]}: {error.strerror}", "apt-get install util-linux"
        ) from error
    tail: list[str] = []
    try:
        async with asyncio.timeout(BUILD_TIMEOUT_S):
            assert process.stderr is not None
            while line := await process.stderr.readline():
                _follow(line.decode(errors="replace").strip(), tail, progress)
            code = await process.wait()
    except TimeoutError:
        raise TemplateError(
            "packages", f"not finished after {BUILD_TIMEOUT_S:g} s", "is the mirror reachable?"
        ) from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await asyncio.shield(process.wait())
    if code:
        hint = "apt-get install mmdebstrap" if code == 127 else "is the mirror reachable, are its lists fresh?"
        raise TemplateError("packages", f"mmdebstrap failed with exit code {code}:\n" + "\n".join(tail), hint)


def _follow(line: str, tail: list[str], progress: Progress) -> None:
    tail.append(line)
    del tail[:-TAIL_LINES]
    for beginning, phase, fraction in PHASES:
        if line.startswith(f"I: {beginning}"):
            progress(phase, fraction)


def _settle(tree: Path) -> None:
    """Make the tree a sandbox's: our files in, secrets, caches and names of this machine out."""
    for pattern in REMOVED:
        for path in tree.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    for name, (text, mode) in FILES.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # A package may have made it a link, which would lead out of the tree.
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(mode)
    (tree / "home/user").chmod(0o755)
    # The machine's own name must not be asked of a network that may not be there.
    switch = tree / "etc/nsswitch.conf"
    switch.write_text(re.sub(r"(?m)^hosts:.*$", "hosts:          files myhostname dns", switch.read_text()))


async def make_image(tree: Path, image: Path, packages: Sequence[str]) -> None:
    """An ext4 image of `tree`, owners kept, sparse; its UUID follows from the packages."""
    identity = str(uuid.uuid5(UUID_SPACE, "\n".join(packages)))
    try:
        await run(
            [
                *("mkfs.ext4", "-q", "-F", "-L", "space-root", "-U", identity, "-m", "0", "-d", tree),
                # The tables are written now, not by every guest; hash_seed is random otherwise.
                *("-E", f"lazy_itable_init=0,lazy_journal_init=0,nodiscard,hash_seed={identity},root_owner=0:0"),
                *(image, f"{SIZE_MIB}M"),
            ],
            timeout=300,
        )
    except CommandError as error:
        raise TemplateError("image", str(error)) from error
