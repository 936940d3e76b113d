"""The host's package sources are read in both of apt's formats, and only Debian's own are used."""

from pathlib import Path

import pytest

from space.templates import sources
from space.templates.errors import TemplateError

ONE_LINE = """\
# deb http://old.example.invalid/debian bookworm main
deb [arch=amd64 signed-by=/usr/share/keyrings/d.gpg] http://mirror.example.invalid/debian bookworm main contrib # ours
deb-src http://mirror.example.invalid/debian bookworm main
deb http://mirror.example.invalid/security bookworm-security main
deb\thttp://mirror.example.invalid/debian   bookworm-backports main
deb file:/srv/flat ./
nonsense
"""
DEB822 = """\
Types: deb deb-src
# a comment inside does not end the stanza
URIs: http://mirror.example.invalid/debian
Suites: bookworm bookworm-updates
Components: main non-free
Signed-By: /usr/share/keyrings/d.gpg

Types: deb
URIs: http://off.example.invalid/debian
Suites: bookworm
Components: main
Enabled: no

Types: deb
URIs: https://vendor.example.invalid/apt
Suites: nodistro
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc
 -----END PGP PUBLIC KEY BLOCK-----
"""


def test_one_line_entries() -> None:
    found = sources.parse_list(ONE_LINE)
    assert [(s.uri, s.suite, s.components) for s in found] == [
        ("http://mirror.example.invalid/debian", "bookworm", ("main", "contrib")),
        ("http://mirror.example.invalid/security", "bookworm-security", ("main",)),
        ("http://mirror.example.invalid/debian", "bookworm-backports", ("main",)),
        ("file:/srv/flat", "./", ()),
    ]
    assert found[0].options == {"arch": "amd64", "signed-by": "/usr/share/keyrings/d.gpg"}


def test_deb822_stanzas_and_an_inline_key() -> None:
    found = sources.parse_deb822(DEB822)
    assert [(s.suite, s.components) for s in found] == [
        ("bookworm", ("main", "non-free")),
        ("bookworm-updates", ("main", "non-free")),
        ("nodistro", ("main",)),
    ]
    assert found[0].options == {"signed-by": "/usr/share/keyrings/d.gpg"}
    assert found[2].options == {}
    assert found[2].key.splitlines()[1:3] == ["", "abc"]
    assert found[2].line("/k.asc") == "deb [signed-by=/k.asc] https://vendor.example.invalid/apt nodistro main"


def test_only_the_release_its_updates_and_security_are_chosen() -> None:
    chosen = sources.choose(sources.parse_list(ONE_LINE) + sources.parse_deb822(DEB822), "bookworm")
    assert [s.suite for s in chosen] == ["bookworm", "bookworm-security", "bookworm-updates"]
    assert {s.components for s in chosen} == {("main",)}


def test_a_host_without_its_release_is_refused() -> None:
    with pytest.raises(TemplateError, match="carries trixie"):
        sources.choose(sources.parse_list(ONE_LINE), "trixie")


def test_files_are_found_as_apt_finds_them(tmp_path: Path) -> None:
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (tmp_path / "sources.list").write_text(ONE_LINE)
    (parts / "debian.sources").write_text(DEB822)
    (parts / "vendor.list.disabled").write_text("deb http://off.example.invalid/debian bookworm main\n")
    found = sources.host_sources(tmp_path)
    assert len(found) == 7
    assert not any("off.example" in s.uri for s in found)


def test_fetch_options_pass_on_proxies_and_nothing_else() -> None:
    dump = (
        'Acquire "";\nAcquire::http "";\nAcquire::http::Proxy "http://proxy.example.invalid:3128";\n'
        'APT::Architecture "amd64";\nAcquire::Retries "3";\n'
    )
    assert sources.fetch_options(dump) == [
        'Acquire::http::Proxy "http://proxy.example.invalid:3128"',
        'Acquire::Retries "3"',
    ]
