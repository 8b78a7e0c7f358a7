"""The wording of RULER's needle tasks, read from the source of the installed lm-eval.

The modules are parsed, not imported: importing them tries to download a sentence splitter.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from .errors import EvaluationError


@dataclass(frozen=True)
class Wording:
    """Texts with the places {type_needle_v}, {key}, {value}, {context} and {query}, already in the singular."""

    name: str
    needle: str
    template: str
    answer_prefix: str


def _package_folder(package: str, extra: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise EvaluationError(f"the package {package} is not installed; install {extra} (requirements/)")
    return Path(spec.origin).parent


def _constant(tree: ast.Module, name: str, path: Path) -> str:
    for node in tree.body:
        if (
            isinstance(node, ast.Assign)
            and any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
            and isinstance(node.value, ast.Constant)
        ):
            return node.value.value
    raise EvaluationError(f"{path} defines no text {name}; lm-eval 0.4.13 is needed (requirements/)")


def _singular_answer_prefix(tree: ast.Module, path: Path) -> str:
    """The answer prefix for one answer: an f-string under the key ``gen_prefix``, its places named anew."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Dict):
            continue
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == "gen_prefix" and isinstance(value, ast.IfExp):
                parts = []
                for part in value.body.values if isinstance(value.body, ast.JoinedStr) else []:
                    if isinstance(part, ast.Constant):
                        parts.append(part.value)
                    else:
                        parts.append("{query}" if isinstance(part.value, ast.Name) else "{type_needle_v}")
                return "".join(parts)
    raise EvaluationError(f"{path} has no answer prefix for one answer; lm-eval 0.4.13 is needed (requirements/)")


@cache
def ruler_wording() -> Wording:
    """RULER's wording for one needle and one question, as lm-eval has it."""
    folder = _package_folder("lm_eval", "lm-eval 0.4.13") / "tasks" / "ruler"
    trees = {}
    for name in ("prepare_niah.py", "niah_utils.py"):
        path = folder / name
        if not path.is_file():
            raise EvaluationError(f"{path} does not exist; lm-eval 0.4.13 is needed (requirements/)")
        trees[name] = ast.parse(path.read_text(encoding="utf-8"))
    template = _constant(trees["niah_utils.py"], "TEMPLATE", folder / "niah_utils.py")
    # With a single answer RULER puts the instructions in the singular by these replacements.
    for plural, singular in (("Some", "A"), ("are all", "is"), ("are", "is")):
        template = template.replace(plural, singular)
    return Wording(
        "ruler",
        _constant(trees["prepare_niah.py"], "NEEDLE", folder / "prepare_niah.py"),
        template,
        _singular_answer_prefix(trees["prepare_niah.py"], folder / "prepare_niah.py"),
    )


def second_wording() -> Wording:
    """Another wording of the same task (ours), in no training text: what a model can do with other words than RULER's.

    The kind of value is part of the sentences; the place {type_needle_v} does not occur.
    """
    return Wording(
        "second",
        "The registration mark of {key} reads {value}.",
        "Somewhere in the passage below a registration mark is written down. Keep it in mind, it will be asked for.\n"
        "{context}\nWhich registration mark belongs to {query} according to the passage?",
        "According to the passage, the registration mark of {query} reads",
    )


def wording_named(name: str) -> Wording:
    """The wording that a preset names. Raises :class:`EvaluationError` for an unknown name."""
    wordings = {"ruler": ruler_wording, "second": second_wording}
    if name not in wordings:
        raise EvaluationError(f"niah.additional: wording {name!r} is unknown; known are {', '.join(wordings)}")
    return wordings[name]()


@cache
def key_words() -> tuple[list[str], list[str]]:
    """Adjectives and nouns of RULER's word keys: the lists of the package wonderwords, sorted, read as text."""
    folder = _package_folder("wonderwords", "wonderwords 3.0.1, of lm-eval's extra 'ruler'") / "assets"
    lists = []
    for name in ("adjectivelist.txt", "nounlist.txt"):
        words = (folder / name).read_text(encoding="utf-8").split("\n")
        lists.append(sorted({word.strip() for word in words if word.strip()}))
    return lists[0], lists[1]
