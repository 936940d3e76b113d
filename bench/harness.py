"""Runs one benchmark and says row by row whether it holds its bar.

A benchmark is bench/NAME.py with `async def run() -> list[Row]`. Bars stand in bench/bars.toml: `[NAME.ROW]` with `max`
or `min` for the row's value. A row without a bar is only told; a bar without a row fails, so a benchmark cannot pass by
leaving something out. Samples are of one run on one machine: where a bar is a ratio the row carries its own baseline.
"""

import argparse
import asyncio
import importlib.util
import json
import os
import platform
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@dataclass
class Row:
    """One measured thing. `value` is the median of `samples` unless given; `baseline` is what it is compared with."""

    name: str
    unit: str
    samples: list[float] = field(default_factory=list)
    value: float | None = None
    baseline: float | None = None

    def percentile(self, share: float) -> float | None:
        """The nearest-rank percentile of the samples, None without samples."""
        ordered = sorted(self.samples)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    facts = dict(line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line)
    models = [value.strip() for key, value in facts.items() if key.strip() == "model name"]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "kernel": platform.release(),
        "kvm": os.access("/dev/kvm", os.R_OK | os.W_OK),
        "python": platform.python_version(),
    }


def judge(row: Row, bars: dict[str, Any]) -> dict[str, Any]:
    """The row as the document has it: `holds` is None where no bar is set."""
    value = row.value if row.value is not None else row.percentile(0.5)
    bar = bars.get(row.name)
    holds = None
    if bar is not None:
        holds = value is not None and bar.get("min", value) <= value <= bar.get("max", value)
    return {
        "name": row.name,
        "value": value,
        "unit": row.unit,
        "bar": bar,
        "holds": holds,
        "samples": len(row.samples),
        "p50": row.percentile(0.5),
        "p95": row.percentile(0.95),
        "p99": row.percentile(0.99),
        "baseline": row.baseline,
    }


def document(rows: list[Row], bars: dict[str, Any]) -> dict[str, Any]:
    """The whole result; a bar whose row is missing stands in it as a row that does not hold."""
    measured = {row.name for row in rows}
    missing = [Row(name, "missing") for name in bars if name not in measured]
    return {"machine": machine(), "rows": [judge(row, bars) for row in [*rows, *missing]]}


def load(name: str) -> Any:
    """The module bench/NAME.py."""
    sys.modules.setdefault("harness", sys.modules[__name__])
    spec = importlib.util.spec_from_file_location(f"bench_{name}", HERE / f"{name}.py")
    if spec is None or spec.loader is None:
        raise SystemExit(f"no benchmark {name}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _table(result: dict[str, Any]) -> str:
    words = {None: "-", True: "holds", False: "FAILS"}
    lines = []
    for row in result["rows"]:
        value = "missing" if row["value"] is None else f"{row['value']:.2f} {row['unit']}"
        spread = "" if row["p99"] is None else f"p95 {row['p95']:.2f} p99 {row['p99']:.2f} of {row['samples']}"
        bar = "" if row["bar"] is None else ", ".join(f"{key} {limit}" for key, limit in row["bar"].items())
        lines.append(f"{row['name']:<28} {value:<16} {spread:<36} {bar:<14} {words[row['holds']]}")
    return "\n".join(lines)


def main() -> int:
    """Run the benchmark named on the command line."""
    names = sorted(path.stem for path in HERE.glob("*.py") if path.stem != "harness")
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Run a benchmark against its bars.")
    parser.add_argument("name", choices=names)
    parser.add_argument("--json", action="store_true", help="print the document instead of a table")
    arguments = parser.parse_args()
    bars = tomllib.loads((HERE / "bars.toml").read_text()).get(arguments.name, {})
    result = document(asyncio.run(load(arguments.name).run()), bars)
    print(json.dumps(result, indent=2) if arguments.json else _table(result))
    return 1 if any(row["holds"] is False for row in result["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
