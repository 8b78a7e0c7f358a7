"""Soak test: trainings, downloads, evaluations, probes and Snakemake are killed at random points and started again.

Each command must then give what it gives undisturbed, weights bit for bit and scores exactly, and leave no unfinished
file. A table of all kills comes last; exit code 1 if anything differed or time was over before the kills were done.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.table import Table
from soak_kinds import Workbench
from soak_trials import Round, Undisturbed, kill_round, undisturbed

# Rounds of a kind among ten: kinds that take minutes come less often.
SHARES = {
    "training": 3, "evaluation": 1, "probe": 1, "download": 1, "tokenization": 1, "workflow": 2, "two processes": 1,
}  # fmt: skip


def plan(kinds: list[str], kills: int, seed: int) -> list[tuple[str, int]]:
    """Rounds (kind, how many kills) in the order in which they are run; all kinds come by before any comes again."""
    generator = random.Random(seed)
    rounds = [(kind, generator.randint(2, 4)) for kind in kinds]
    # Twice as many as are asked for: a command may end before the moment at which it was to be killed.
    while sum(number for _, number in rounds) < 2 * kills:
        batch = [(kind, generator.randint(2, 4)) for kind in kinds for _ in range(SHARES[kind])]
        generator.shuffle(batch)
        rounds += batch
    return rounds


def print_table(rounds: list[Round], console: Console) -> None:
    """One line a kill."""
    table = Table("", "kind", "round", "killed after", "victim", "unfinished files at that moment", "given again")
    trials = [(trial, one.failure) for one in rounds for trial in one.trials]
    for number, (trial, failure) in enumerate(trials, start=1):
        left = ", ".join(Path(name).name for name in trial.left[:3]) + (" ..." if len(trial.left) > 3 else "")
        given_again = "the same" if failure is None else f"FAILED: {failure}"
        table.add_row(
            str(number), trial.kind, str(trial.round), f"{trial.seconds:.2f} s", trial.victim, left, given_again
        )
    console.print(table)


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60, help="kills to be done (default: 60)")
    parser.add_argument("--minutes", type=float, default=25, help="no round is begun after this time (default: 25)")
    parser.add_argument("--seed", type=int, help="of the plan of kills (default: from the clock; printed)")
    parser.add_argument(
        "--kinds", nargs="+", choices=SHARES, default=list(SHARES), help="what is killed (default: all)"
    )
    parser.add_argument("--workers", type=int, default=2, help="rounds at a time (default: 2)")
    options = parser.parse_args()
    seed = int(time.time()) if options.seed is None else options.seed
    began = time.monotonic()
    print(f"seed {seed}; at least {options.kills} kills, no round begun after {options.minutes:g} minutes", flush=True)
    base = Path(tempfile.mkdtemp(prefix="hwh-soak-"))
    bench = Workbench(base / "inputs")
    kinds = [*bench.kinds(base / "undisturbed" / "training" / "out" / "model"), *bench.large_kinds()]
    references: dict[str, Undisturbed] = {}
    locks = {kind.name: threading.Lock() for kind in kinds}
    done: list[Round] = []

    def reference_of(name: str) -> Undisturbed:
        """Made when it is first asked for, so that a kind that takes minutes keeps no other one waiting."""
        with locks[name]:
            if name not in references:
                kind = next(kind for kind in kinds if kind.name == name)
                references[name] = undisturbed(kind, base / "undisturbed" / name, bench.environment)
                print(f"{name}: {references[name].seconds:.1f} s undisturbed", flush=True)
            return references[name]

    def one_round(entry: tuple[int, tuple[str, int]]) -> None:
        number, (name, kills) = entry
        enough = sum(len(one.trials) for one in done) >= options.kills
        if enough or time.monotonic() - began > 60 * options.minutes:
            return
        folder = base / f"round{number}"
        one = kill_round(reference_of(name), number, kills, folder, bench.environment, f"{seed}/{number}")
        done.append(one)
        said = "the same as undisturbed" if one.failure is None else f"FAILED: {one.failure}; see {folder}/said.txt"
        print(f"round {number}: {name}, {len(one.trials)} kills, {said}", flush=True)
        if one.failure is None:
            shutil.rmtree(folder, ignore_errors=True)

    # Others measure the model that this one trains.
    reference_of("training")
    with ThreadPoolExecutor(options.workers) as pool:
        list(pool.map(one_round, enumerate(plan(options.kinds, options.kills, seed), start=1)))
    console = Console() if sys.stdout.isatty() else Console(width=160)
    print_table(done, console)
    kills = sum(len(one.trials) for one in done)
    failed = sum(one.failure is not None for one in done)
    minutes = (time.monotonic() - began) / 60
    print(f"seed {seed}: {kills} kills in {len(done)} rounds, {failed} rounds failed, {minutes:.1f} minutes")
    if not failed:
        shutil.rmtree(base)
    if kills < options.kills:
        print(f"error: {kills} of {options.kills} kills were done; give more --minutes", file=sys.stderr)
    return int(bool(failed) or kills < options.kills)


if __name__ == "__main__":
    sys.exit(main())
