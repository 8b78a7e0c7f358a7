"""RULER's needle tasks as the installed lm-eval has them: wording, noise and sizes, read from its source.

The modules are parsed, not imported: importing them tries to download a sentence splitter.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from .errors import EvaluationError

MENDING = "lm-eval 0.4.13 is needed (requirements/)"


@dataclass(frozen=True)
class RulerTask:
    """One needle task: what the haystack is made of, kinds of keys and values, and how many of each."""

    name: str
    haystack: str
    """``essay``, ``repeat`` (one line of noise over and over) or ``needle`` (needles that nobody asks for)."""
    key_kind: str
    """``words`` or ``uuids``."""
    value_kind: str
    """``numbers`` or ``uuids``."""
    keys: int = 1
    values: int = 1
    """Values that each key has."""
    queries: int = 1
    """Keys that are asked for."""

    @property
    def answers(self) -> int:
        """Values that must be given."""
        return self.queries * self.values


def package_folder(package: str, extra: str) -> Path:
    """Folder of an installed package, which is not imported. Raises :class:`EvaluationError` naming ``extra``."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise EvaluationError(f"the package {package} is not installed; install {extra} (requirements/)")
    return Path(spec.origin).parent


@cache
def _module(name: str) -> ast.Module:
    path = package_folder("lm_eval", "lm-eval 0.4.13") / "tasks" / "ruler" / name
    if not path.is_file():
        raise EvaluationError(f"{path} does not exist; {MENDING}")
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def _assigned(tree: ast.AST, name: str) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            yield node.value


def _constants(tree: ast.AST, name: str, kind: type) -> Iterator:
    return (value.value for value in _assigned(tree, name) if isinstance(getattr(value, "value", None), kind))


def _first(found: Iterator, module: str, what: str):
    for value in found:
        return value
    raise EvaluationError(f"lm_eval/tasks/ruler/{module} defines no {what}; {MENDING}")


def _functions(module: str) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in _module(module).body if isinstance(node, ast.FunctionDef)}


def needle_text() -> str:
    """The sentence that is hidden, with places for the kind of value, key and value."""
    return _first(_constants(_module("prepare_niah.py"), "NEEDLE", str), "prepare_niah.py", "text NEEDLE")


def template() -> str:
    """The prompt in the plural, with places for the kind of value, context and query."""
    return _first(_constants(_module("niah_utils.py"), "TEMPLATE", str), "niah_utils.py", "text TEMPLATE")


def noise_line() -> str:
    """The line that a haystack of noise repeats."""
    function = _functions("prepare_niah.py").get("get_haystack", ast.parse(""))
    return _first(_constants(function, "haystack", str), "prepare_niah.py", "line of noise")


def answer_prefixes() -> tuple[str, str]:
    """Beginning of the answer for one value and for several, with places for the kind of value and query.

    In lm-eval it is a choice between two f-strings; their places are named anew.
    """
    for node in ast.walk(_module("prepare_niah.py")):
        if not isinstance(node, ast.Dict):
            continue
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == "gen_prefix" and isinstance(value, ast.IfExp):
                return _places(value.body), _places(value.orelse)
    raise EvaluationError(f"lm_eval/tasks/ruler/prepare_niah.py has no answer prefix; {MENDING}")


def _places(text: ast.expr) -> str:
    parts = []
    for part in text.values if isinstance(text, ast.JoinedStr) else []:
        if isinstance(part, ast.Constant):
            parts.append(part.value)
        else:
            named = isinstance(part.value, ast.Name) and part.value.id == "query"
            parts.append("{query}" if named else "{type_needle_v}")
    return "".join(parts)


@cache
def ruler_tasks() -> dict[str, RulerTask]:
    """All needle tasks by name without ``niah_`` (``single_1`` to ``multivalue``)."""
    tasks = {}
    for name, function in _functions("niah_utils.py").items():
        if not name.startswith("niah_"):
            continue
        calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
        made = (call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "generate_samples")
        given = {k.arg: k.value.value for call in made for k in call.keywords if isinstance(k.value, ast.Constant)}
        try:
            queries = given.get("num_needle_q", 1)
            tasks[name.removeprefix("niah_")] = RulerTask(
                name=name,
                haystack=given["type_haystack"],
                key_kind=given["type_needle_k"],
                value_kind=given["type_needle_v"],
                # As many keys as are asked for, at least.
                keys=max(given.get("num_needle_k", 1), queries),
                values=given.get("num_needle_v", 1),
                queries=queries,
            )
        except KeyError as error:
            raise EvaluationError(f"lm_eval/tasks/ruler/niah_utils.py: {name} states no {error}; {MENDING}") from None
    if not tasks:
        raise EvaluationError(f"lm_eval/tasks/ruler/niah_utils.py defines no needle tasks; {MENDING}")
    return tasks


def generation_room() -> int:
    """Tokens that lm-eval leaves for the answer inside the length."""
    function = _functions("prepare_niah.py")["generate_samples"].args
    for argument, default in zip(function.kwonlyargs, function.kw_defaults, strict=True):
        if argument.arg == "tokens_to_generate" and isinstance(default, ast.Constant):
            return default.value
    raise EvaluationError(f"lm_eval/tasks/ruler/prepare_niah.py: generate_samples has no tokens_to_generate; {MENDING}")


def shuffle_seed() -> int:
    """Seed of the order of needles."""
    return _first(_constants(_module("prepare_niah.py"), "RANDOM_SEED", int), "prepare_niah.py", "RANDOM_SEED")


def number_of_depths() -> int:
    """How many evenly spaced percentages a needle's depth is drawn from."""
    for value in _assigned(_module("prepare_niah.py"), "DEPTHS"):
        for node in ast.walk(value):
            if isinstance(node, ast.keyword) and node.arg == "num" and isinstance(node.value, ast.Constant):
                return node.value.value
    raise EvaluationError(f"lm_eval/tasks/ruler/prepare_niah.py has no DEPTHS; {MENDING}")
