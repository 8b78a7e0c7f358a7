"""What all sections of a preset are made of: strict models, and the kinds of values that several sections share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

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


class Strict(BaseModel):
    """Base of all configuration models: unknown keys are errors, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)
