"""Build hook: compiles the guest agent into the package, for wheels and for editable installs alike."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def find_go() -> str:
    """The Go compiler: from PATH, else from the scripts directory of the environment that builds."""
    scripts = [sysconfig.get_path("scripts"), str(Path(sys.executable).parent)]
    found = shutil.which("go") or shutil.which("go", path=os.pathsep.join(scripts))
    if found is None:
        # An isolated build puts packages beside the interpreter's own, with their scripts in a sibling `bin`.
        for entry in sys.path:
            candidate = Path(entry).parents[2] / "bin" / "go" if len(Path(entry).parents) > 2 else None
            if candidate is not None and candidate.is_file():
                return str(candidate)
        raise RuntimeError(
            "the guest agent needs a Go compiler (1.24 or newer): none on PATH or in the build environment"
        )
    return found


def build_agent(source: Path, target: Path) -> None:
    """Compile the agent without network, C compiler or paths of this machine in the result."""
    target = target.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    env = {**os.environ, "CGO_ENABLED": "0", "GOOS": "linux", "GOTOOLCHAIN": "local", "GOPROXY": "off", "GOFLAGS": ""}
    env.setdefault("HOME", str(target.parent))
    command = [find_go(), "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", str(part), "."]
    subprocess.run(command, cwd=source, env=env, check=True)
    part.replace(target)


class AgentBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the agent into `src/space/_agent` before the package is collected."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, unless this is a source archive, which carries the agent's source instead."""
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        build_agent(root / "agent", root / "src" / "space" / "_agent" / "space-agent")
