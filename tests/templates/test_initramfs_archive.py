"""The archive is one that cpio reads, the same each time, and its modules come after what they need."""

import subprocess
from pathlib import Path

import pytest

from space.templates import initramfs
from space.templates.errors import TemplateError

ELF = b"\x7fELF"


def module(depends: str) -> bytes:
    return ELF + b"\0license=GPL\0depends=" + depends.encode() + b"\0name=x\0"


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    kernel = tmp_path / "modules" / "kernel"
    kernel.mkdir(parents=True)
    for name, depends in {
        "a-one": "b_two,c",
        "b_two": "c,built_in",
        "c": "",
        "x": "y",
        "y": "x",
        "z": "missing",
    }.items():
        (kernel / f"{name}.ko").write_bytes(module(depends))
    (tmp_path / "modules" / "modules.builtin").write_text("kernel/fs/built-in.ko\n")
    return tmp_path / "modules"


async def test_each_module_comes_after_what_it_needs(modules: Path) -> None:
    order = await initramfs.load_order(modules, ["a_one", "c"])
    assert [path for path, _ in order] == ["c.ko", "b_two.ko", "a-one.ko"]


@pytest.mark.parametrize(
    ("wanted", "said"), [("x", "x -> y -> x"), ("z", "no module missing"), ("nope", "no module nope")]
)
async def test_an_order_that_cannot_be_is_told(modules: Path, wanted: str, said: str) -> None:
    with pytest.raises(TemplateError, match=said):
        await initramfs.load_order(modules, [wanted])


async def test_cpio_unpacks_what_was_packed(modules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(initramfs.load_order, "__defaults__", (("a_one",),))
    data = await initramfs.build(b"agent", modules)
    assert data == await initramfs.build(b"agent", modules)
    out = tmp_path / "out"
    out.mkdir()
    subprocess.run(["cpio", "-id", "--quiet"], input=data, cwd=out, check=True)
    assert (out / "init").read_bytes() == b"agent"
    assert (out / "init").stat().st_mode & 0o777 == 0o755
    listed = (out / "modules.list").read_text().split()
    assert listed == ["/modules/c.ko", "/modules/b_two.ko", "/modules/a-one.ko"]
    assert all((out / path.lstrip("/")).read_bytes().startswith(ELF) for path in listed)
    assert (out / "dev/console").is_char_device()
    assert (out / "dev/console").stat().st_rdev == 0x501
