"""What all sections of a preset are made of: strict models, and the kinds of values that several sections share."""

from __future__ import annotations

from collections.abc import Sequence
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=80)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
# Of a branch or tag nobody knows tomorrow what it was today.
COMMIT_PATTERN = r"^[0-9a-f]{40}$"
Commit = Annotated[str, Field(pattern=COMMIT_PATTERN)]
# What goes to pip, git or a hub as an argument: no options, no second line, no path of this machine.
Package = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")]
Version = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.!+_-]*$")]
Filename = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.!+_-]*$")]
Repository = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$")]
PositiveInt = Annotated[int, Field(gt=0)]
# Generators of numpy take no negative seed; 32 bits are what every one of them takes.
Seed = Annotated[int, Field(ge=0, lt=2**32)]

Entries = TypeVar("Entries", bound=Sequence)
Entry = TypeVar("Entry")


def each_once(values: Entries) -> Entries:
    """``values``, none of which stands there twice; raises ValueError naming the first that does."""
    for index, value in enumerate(values):
        if value in values[:index]:
            raise ValueError(f"{value!r} stands there twice, expected every entry once; remove one of them")
    return values


# A repeated entry would be measured, drawn or counted twice without a word: n of a mean doubles, and its error shrinks.
EACH_ONCE = AfterValidator(each_once), Field(json_schema_extra={"uniqueItems": True})
DistinctOrEmpty = Annotated[list[Entry], *EACH_ONCE]
Distinct = Annotated[list[Entry], Field(min_length=1), *EACH_ONCE]
DistinctTuple = Annotated[tuple[Entry, ...], Field(min_length=1), *EACH_ONCE]


def _kinds(annotation: Any) -> set[Any]:
    """Plain types among the values of a field's type, without those of entries of lists; of a literal, its values'."""
    if get_origin(annotation) is Literal:
        return {type(value) for value in get_args(annotation)}
    if get_origin(annotation) in (Annotated, Union, UnionType):
        return set().union(*map(_kinds, get_args(annotation)))
    return {annotation}


class Strict(BaseModel):
    """Base of all configuration models.

    Unknown keys are errors, numbers are finite and never a boolean, values are immutable.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _booleans_are_no_numbers(cls, values: Any) -> Any:
        # Python counts true as 1, and YAML reads an unquoted yes or on as true.
        for key, value in values.items() if isinstance(values, dict) else ():
            kinds = _kinds(cls.model_fields[key].annotation) if key in cls.model_fields else set()
            if isinstance(value, bool) and kinds & {int, float} and bool not in kinds:
                raise ValueError(f"{key} is {str(value).lower()}, expected a number; correct it")
        return values


Named = TypeVar("Named", bound=Strict)


def trained_once(models: list[Named]) -> list[Named]:
    """``models``, none of which is another one under a second name; raises ValueError naming both.

    Models with one and the same name are left to the check of names.
    """
    seen: list[tuple[str, dict]] = []
    for model in models:
        settings = model.model_dump()
        name = settings.pop("name")
        for other, same in seen:
            if same == settings and other != name:
                raise ValueError(
                    f"{other!r} and {name!r} are the same training under two names, which would count as two seeds; "
                    "give one of them another seed, or remove it"
                )
        seen.append((name, settings))
    return models
