"""Measure every claim again and say which hold: `python benchmarks [SCRIPT ...]`.

Runs the scripts that compare ours with an alternative, one after the other, and prints the table of
the page on benchmarks: each claim, its target (`claims.py`), and `met` or `MISSED`. What could not
be measured is said with the reason. The exit status is 1 unless all are met. All of them take about
an hour; `README.md` has the time of each, and what it needs.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from claims import CLAIMS, matches
from side_by_side import machine

FOLDER = Path(__file__).parent
OPTIONS = {"traces": ["--gb", "1"]}
"""The sizes that are claimed."""
OWN_TABLE = ("memory",)
"""Scripts that compare with no alternative, and print a line on their own target."""
UNKNOWN = "not measured"


def measure(script: str, extra: list[str]) -> dict[str, Any]:
    """Return what a benchmark measured; a failure is a dictionary with `error`."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(FOLDER / f"{script}.py")]
    if script not in OWN_TABLE:
        command += ["--json", *OPTIONS.get(script, []), *extra]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return {"error": f"exit status {done.returncode}: see its messages above"}
    if script in OWN_TABLE:
        return {"verdict": next(line for line in done.stdout.splitlines() if "target:" in line)}
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def rows(script: str, result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines of a benchmark's claims in the table, each with its verdict."""
    if script in OWN_TABLE:
        line = result.get("verdict", result.get("error", ""))
        verdict = next((each for each in ("MISSED", "met") if each in line), UNKNOWN)
        return [(f"| `{script}` | {line} | | | {verdict} |", verdict)]
    measured = result.get("comparisons", ())
    found = [
        (f"| `{script}` | {claim}: {result.get('error', 'no such comparison')} | | | |", UNKNOWN)
        for claim in CLAIMS[script]
        if not any(matches(claim, each["what"], each["against"]) for each in measured)
    ]
    for each in measured:
        if each["target"] is None:
            continue
        low, high = each["interval"]
        sign = "≥" if each["higher_is_better"] else "≤"
        verdict = "met" if each["met"] else "MISSED"
        what = f"{each['what']}, against {each['against']}".replace("|", "/")
        ratio = f"{each['ratio']:.3g} [{low:.3g}, {high:.3g}]"
        target = f"{sign} {each['target']:.3g}"
        found.append((f"| `{script}` | {what} | {ratio} | {target} | {verdict} |", verdict))
    return found


def main() -> int:
    """Run the benchmarks, print the table, and return the exit status."""
    known = [*CLAIMS, *OWN_TABLE]
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("scripts", nargs="*", metavar="SCRIPT", help=", ".join(known))
    options.add_argument("--rounds", help="of each, instead of its own number")
    chosen = options.parse_args()
    if unknown := {*chosen.scripts} - {*known}:
        options.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(known)}")
    extra = ["--rounds", chosen.rounds] if chosen.rounds else []
    verdicts: list[str] = []
    print("| benchmark | ours / the alternative | ratio (95%) | target | |\n|---|---|---|---|---|")
    for script in chosen.scripts or known:
        for line, verdict in rows(script, measure(script, extra)):
            print(line, flush=True)
            verdicts.append(verdict)
    counts = (f"{verdicts.count(each)} {each}" for each in ("met", "MISSED", UNKNOWN))
    loads = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    print(f"\n{', '.join(counts)}. {datetime.now(UTC):%Y-%m-%d}, load {loads} at the end;")
    print(", ".join(f"{key} {value}" for key, value in machine().items()))
    return int(set(verdicts) != {"met"})


if __name__ == "__main__":
    sys.exit(main())
