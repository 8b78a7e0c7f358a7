"""The `hwh` command: one module in ``hwh_core/commands`` a subcommand.

A command module offers ``add_parser(subparsers)`` and ``run(args) -> int | None``; the first line of its docstring is
its help. Only the module of the command that was asked for is imported, so `hwh band` never loads torch.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import pkgutil
import sys
from pathlib import Path

from . import commands, scripting


def command_names() -> list[str]:
    """Names of all subcommands, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(commands.__path__) if not module.name.startswith("_"))


def _summary(name: str) -> str:
    """First line of a command module's docstring, read without importing it."""
    source = Path(commands.__path__[0]) / f"{name}.py"
    docstring = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0].rstrip(".")


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """The parser; only the options of ``command`` are known, the other subcommands stand in the list of help."""
    parser = argparse.ArgumentParser(
        prog="hwh", description="Tools around the reproduction of 'Modern Transformers Are Implicit Hybrids'."
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in command_names():
        if name == command:
            importlib.import_module(f"{commands.__name__}.{name}").add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=_summary(name))
    return parser


def _asked(arguments: list[str]) -> str | None:
    """The subcommand among the arguments: the first that is no option."""
    return next((argument for argument in arguments if not argument.startswith("-")), None)


def main(arguments: list[str] | None = None) -> None:
    """Run one subcommand and exit with its code."""
    given = sys.argv[1:] if arguments is None else arguments
    args = build_parser(_asked(given)).parse_args(given)
    module = importlib.import_module(f"{commands.__name__}.{args.command}")
    code: list[int | None] = []
    scripting.run(lambda: code.append(module.run(args)))
    sys.exit(code[0] or 0)


if __name__ == "__main__":
    main()
