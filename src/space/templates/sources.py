"""The host's own package sources, so that templates come from the mirror this host already trusts.

Reads apt's two formats, one line an entry and deb822. Only what carries this Debian release is kept: its main archive,
updates and security; a vendor's repository has no say in what a sandbox is made of.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from space.templates.errors import TemplateError

# apt's own rule for names in sources.list.d.
LIST_NAME = re.compile(r"^[A-Za-z0-9_.-]+\.(list|sources)$")
# What the seed is made of is all in here; contrib and non-free stay out even where the host uses them.
COMPONENT = "main"


@dataclass(frozen=True)
class Source:
    """One archive, suite and list of components. `options` are apt's, such as signed-by or trusted."""

    uri: str
    suite: str
    components: tuple[str, ...]
    options: dict[str, str] = field(default_factory=dict)
    key: str = ""  # an armoured key given in the entry itself

    def line(self, keyring: str = "") -> str:
        """This source in the one-line format; `keyring` is the file its inline key was written to."""
        options = self.options | ({"signed-by": keyring} if keyring else {})
        shown = "[" + " ".join(f"{name}={value}" for name, value in options.items()) + "] " if options else ""
        return f"deb {shown}{self.uri} {self.suite} {' '.join(self.components)}".rstrip()


_ONE_LINE = re.compile(
    r"^deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)(?P<components>(?:\s+\S+)*)$"
)
# Options of deb822 that also hold for fetching, by their one-line names.
_FIELDS = {
    "signed-by": "signed-by",
    "trusted": "trusted",
    "architectures": "arch",
    "check-valid-until": "check-valid-until",
    "check-date": "check-date",
}


def parse_list(text: str) -> list[Source]:
    """Entries of the one-line format; deb-src and what is no entry are left out."""
    found = []
    for raw in text.splitlines():
        match = _ONE_LINE.match(raw.partition("#")[0].strip())
        if match is None:
            continue
        options = dict(pair.split("=", 1) for pair in (match["options"] or "").split() if "=" in pair)
        found.append(Source(match["uri"], match["suite"], tuple(match["components"].split()), options))
    return found


def parse_deb822(text: str) -> list[Source]:
    """Entries of the deb822 format, one for each pair of archive and suite."""
    found = []
    for stanza in _stanzas(text):
        if "deb" not in stanza.get("types", "").split() or stanza.get("enabled", "yes").lower() in {"no", "false", "0"}:
            continue
        signed = stanza.get("signed-by", "")
        key = _inline_key(signed)
        options = {
            short: ",".join(stanza[name].split())
            for name, short in _FIELDS.items()
            if name in stanza and not (name == "signed-by" and key)
        }
        components = tuple(stanza.get("components", "").split())
        found += [
            Source(uri, suite, components, options, key)
            for uri in stanza.get("uris", "").split()
            for suite in stanza.get("suites", "").split()
        ]
    return found


def _stanzas(text: str) -> Iterator[dict[str, str]]:
    # A comment inside a stanza does not end it, an empty line does.
    kept = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for block in re.split(r"\n[ \t]*\n", kept):
        fields: dict[str, str] = {}
        last = ""
        for line in block.splitlines():
            if line[:1] in {" ", "\t"} and last:
                fields[last] += "\n" + line.strip()
            elif ":" in line:
                name, _, value = line.partition(":")
                last = name.strip().lower()
                fields[last] = value.strip()
        if fields:
            yield fields


def _inline_key(signed: str) -> str:
    if "BEGIN PGP PUBLIC KEY BLOCK" not in signed:
        return ""
    # In deb822 an empty line is written as a single dot.
    return "\n".join("" if line == "." else line for line in signed.strip().splitlines()) + "\n"


def choose(sources: list[Source], codename: str) -> list[Source]:
    """What carries the release itself, its updates and its security fixes, without doubles."""
    suites = {codename, f"{codename}-updates", f"{codename}-security", f"{codename}/updates"}
    chosen: dict[tuple[str, str], Source] = {}
    for source in sources:
        if source.suite in suites and COMPONENT in source.components:
            narrowed = Source(source.uri, source.suite, (COMPONENT,), source.options, source.key)
            chosen.setdefault((source.uri, source.suite), narrowed)
    if not any(source.suite == codename for source in chosen.values()):
        raise TemplateError(
            "sources",
            f"no source in /etc/apt carries {codename} {COMPONENT}",
            "add this host's Debian mirror to /etc/apt",
        )
    return list(chosen.values())


def host_sources(etc_apt: Path = Path("/etc/apt")) -> list[Source]:
    """All sources of this host, in apt's order."""
    found: list[Source] = []
    parts = sorted((etc_apt / "sources.list.d").glob("*")) if (etc_apt / "sources.list.d").is_dir() else []
    for path in [etc_apt / "sources.list", *(part for part in parts if LIST_NAME.match(part.name))]:
        if path.is_file():
            text = path.read_text(errors="replace")
            found += parse_deb822(text) if path.suffix == ".sources" else parse_list(text)
    return found


def host_codename(os_release: Path = Path("/etc/os-release")) -> str:
    """The Debian release of this host."""
    for line in os_release.read_text().splitlines():
        name, _, value = line.partition("=")
        if name == "VERSION_CODENAME":
            return value.strip().strip('"')
    raise TemplateError("sources", f"{os_release} names no release", "templates are built on Debian")


_PASSED_ON = re.compile(r'^Acquire::(?:https?|Retries|Check-Valid-Until)\S* "[^"]+";$')


def fetch_options(dump: str) -> list[str]:
    """Of the output of `apt-config dump`, what decides how packages are fetched: proxies, certificates, retries."""
    return [line.rstrip(";") for line in dump.splitlines() if _PASSED_ON.match(line)]
