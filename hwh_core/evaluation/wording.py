"""The words of needle prompts: RULER's, a second wording of ours, and the lists that keys are drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby

from ..data.retrieval_wording import FACTS, KINDS, QUESTIONS
from . import ruler_source
from .errors import EvaluationError


@dataclass(frozen=True)
class Wording:
    """Texts with the places {type_needle_v}, {key}, {value}, {context} and {query}.

    ``template`` and ``answer_prefix`` are in the singular; ``several``: both for more than one answer, or None where
    only one can be asked for.
    """

    name: str
    needle: str
    template: str
    answer_prefix: str
    several: tuple[str, str] | None = None

    def asking(self, answers: int) -> tuple[str, str]:
        """Template and answer prefix for so many answers."""
        if answers == 1:
            return self.template, self.answer_prefix
        if self.several is None:
            raise EvaluationError(f"niah: the wording {self.name!r} has no form for {answers} answers; use 'ruler'")
        return self.several


@cache
def ruler_wording() -> Wording:
    """RULER's wording, as lm-eval has it."""
    plural = singular = ruler_source.template()
    # With a single answer RULER puts the instructions in the singular by these replacements.
    for many, one in (("Some", "A"), ("are all", "is"), ("are", "is")):
        singular = singular.replace(many, one)
    prefix, prefix_of_several = ruler_source.answer_prefixes()
    return Wording("ruler", ruler_source.needle_text(), singular, prefix, (plural, prefix_of_several))


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


def trained_wording() -> Wording:
    """One that models with a retrieval mix are trained on, for one answer: without it nobody could tell whether a model
    does not retrieve or does not take up the other wordings. Keys, values and prose are of the evaluation's side."""
    kind, fact, question = KINDS[0], FACTS[0], QUESTIONS[1]
    needle = fact.replace("{kind}", kind)
    asking, _, answering = question.replace("{kind}", kind).replace("{key}", "{query}").partition("? ")
    return Wording("trained", needle, f"{{context}} {asking}?", answering.removesuffix(" {value}."))


def wording_named(name: str) -> Wording:
    """The wording that a preset names. Raises :class:`EvaluationError` for an unknown name."""
    wordings = {"ruler": ruler_wording, "second": second_wording, "trained": trained_wording}
    if name not in wordings:
        raise EvaluationError(f"niah.additional: wording {name!r} is unknown; known are {', '.join(wordings)}")
    return wordings[name]()


@cache
def key_words() -> tuple[list[str], list[str]]:
    """Adjectives and nouns of RULER's word keys: the lists of the package wonderwords, sorted, read as text."""
    folder = ruler_source.package_folder("wonderwords", "wonderwords 3.0.1, of lm-eval's extra 'ruler'") / "assets"
    lists = []
    for name in ("adjectivelist.txt", "nounlist.txt"):
        words = (folder / name).read_text(encoding="utf-8").split("\n")
        lists.append(sorted({word.strip() for word in words if word.strip()}))
    return lists[0], lists[1]


class SortedKeys(Sequence[str]):
    """All keys adjective-noun in alphabetical order, each once, as lm-eval draws from them; millions, made when asked.

    Keys of two adjectives stand apart in that order, unless one adjective goes on with a hyphen where the other ends
    ("blue", "blue-eyed"): only these few are put together and sorted.
    """

    def __init__(self, adjectives: Sequence[str], nouns: Sequence[str]) -> None:
        self.nouns = sorted(set(nouns))
        self.blocks: list[tuple[str, list[str] | None]] = []
        beginnings = sorted(f"{adjective}-" for adjective in set(adjectives))
        root = ""

        def owner(beginning: str) -> str:
            nonlocal root
            root = root if root and beginning.startswith(root) else beginning
            return root

        for first, members in groupby(beginnings, owner):
            together = list(members)
            mixed = None
            if len(together) > 1:
                mixed = sorted({beginning + noun for beginning in together for noun in self.nouns})
            self.blocks.append((first, mixed))

    def _size(self, block: tuple[str, list[str] | None]) -> int:
        return len(self.nouns) if block[1] is None else len(block[1])

    def __len__(self) -> int:
        return sum(map(self._size, self.blocks))

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        for block in self.blocks:
            if index < self._size(block):
                beginning, mixed = block
                return beginning + self.nouns[index] if mixed is None else mixed[index]
            index -= self._size(block)
        raise IndexError(index)
