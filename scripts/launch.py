"""Start a program on the GPUs of its job: alone, or with torchrun, one process a GPU, on one or more nodes of SLURM."""

from __future__ import annotations

import argparse
import os

from hwh_core.launching import launch, replace_process
from hwh_core.scripting import run


def main() -> None:
    """Command line; this process becomes the program, torchrun or srun."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", required=True, type=int, help="GPUs of the job on all nodes; 0: one process on a CPU")
    parser.add_argument("--nodes", default=1, type=int, help="nodes of the job")
    parser.add_argument("--rendezvous", help="host:port of the first node; given to the launcher by itself")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="a Python file and its arguments")
    arguments = parser.parse_args()
    if not arguments.program:
        parser.error("the program to start is missing")
    start = launch(arguments.program, arguments.gpus, arguments.nodes, arguments.rendezvous, os.environ)
    replace_process(start)


if __name__ == "__main__":
    run(main)
