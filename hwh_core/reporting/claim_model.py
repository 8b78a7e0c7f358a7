"""What a claim is: its definition in the registry, the outcome of testing it, and the record in claims.json."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .intervals import Interval, Verdict, together
from .results import Results

Scale = Literal["N", "S", "C", "W", "M", "B"]
Ends = Annotated[list[float | None], Field(min_length=2, max_length=2)]


class ClaimRecord(BaseModel):
    """One object of claims.json. ``ours`` and ``ci`` are mappings by part where a statement has several parts."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(pattern=r"^[NSCWMB]\d{1,2}b?(-[a-z0-9]+)?$")
    statement: str = Field(min_length=10)
    paper: str | None
    ours: float | dict[str, float | None] | None
    tolerance: str
    ci: Ends | dict[str, Ends | None] | None
    n_seeds: int = Field(ge=0)
    n_samples: int = Field(ge=0)
    metric: str = Field(min_length=3)
    scale: Scale
    claim_scale: str = Field(min_length=1)
    verdict: Verdict
    evidence: str | None
    note: str
    parts: dict[str, Verdict] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _verdicts_rest_on_numbers(self) -> ClaimRecord:
        decided = self.verdict in ("reproduced", "not_reproduced")
        if decided and (self.ours is None or self.ci is None or self.evidence is None):
            raise ValueError(f"claim {self.id}: verdict {self.verdict} needs ours, ci and evidence")
        if self.verdict == "not_testable" and not self.note:
            raise ValueError(f"claim {self.id}: verdict not_testable needs a note that says what is missing")
        return self


@dataclass(frozen=True)
class Part:
    """One tested part of a statement; ``interval`` None where nothing could be measured."""

    label: str
    interval: Interval | None
    verdict: Verdict
    note: str = ""


@dataclass(frozen=True)
class Outcome:
    """The result of testing a claim."""

    verdict: Verdict
    parts: Sequence[Part] = ()
    n_seeds: int = 0
    n_samples: int = 0
    evidence: str | None = None
    note: str = ""


@dataclass(frozen=True)
class Claim:
    """A claim of the registry; ``evaluate`` reads result files and never raises for models that are absent."""

    id: str
    statement: str
    paper: str | None
    tolerance: str
    metric: str
    scale: Scale
    claim_scale: str
    evaluate: Callable[[Results], Outcome] = field(repr=False)


def not_testable(why: str) -> Outcome:
    """The outcome of a claim whose model, scale or data is absent."""
    return Outcome("not_testable", note=why)


def from_parts(
    parts: Sequence[Part], *, evidence: str | None, n_samples: int = 0, note: str = "", report_only: bool = False
) -> Outcome:
    """Combine parts: all must hold. ``report_only`` claims carry numbers but are never decided."""
    verdict = together([part.verdict for part in parts])
    if report_only and verdict != "not_testable":
        verdict = "inconclusive"
    notes = [note, *_reasons(parts)]
    seeds = [part.interval.n_seeds for part in parts if part.interval is not None]
    return Outcome(
        verdict=verdict,
        parts=tuple(parts),
        n_seeds=min(seeds, default=0),
        n_samples=n_samples,
        evidence=evidence if seeds else None,
        note="; ".join(text for text in notes if text),
    )


def _reasons(parts: Sequence[Part]) -> list[str]:
    """Notes of parts, each reason once with the parts that it holds for."""
    by_reason: dict[str, list[str]] = {}
    for part in parts:
        if part.note:
            by_reason.setdefault(part.note, []).append(part.label)
    texts = []
    for reason, labels in by_reason.items():
        if 1 < len(labels) == len(parts):
            labels = ["all numbers"]
        texts.append(f"{' / '.join(labels)}: {reason}")
    return texts


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _ends(interval: Interval | None) -> list[float | None] | None:
    return None if interval is None else [_finite(interval.low), _finite(interval.high)]


def record(claim: Claim, outcome: Outcome) -> ClaimRecord:
    """The validated record of a claim and its outcome."""
    measured = [part for part in outcome.parts if part.interval is not None]
    ours: float | dict[str, float | None] | None = None
    ci: list[float | None] | dict[str, list[float | None] | None] | None = None
    if len(outcome.parts) == 1 and measured:
        ours, ci = _finite(measured[0].interval.estimate), _ends(measured[0].interval)
    elif measured:
        ours = {p.label: None if p.interval is None else _finite(p.interval.estimate) for p in outcome.parts}
        ci = {p.label: _ends(p.interval) for p in outcome.parts}
    return ClaimRecord(
        id=claim.id,
        statement=claim.statement,
        paper=claim.paper,
        ours=ours,
        tolerance=claim.tolerance,
        ci=ci,
        n_seeds=outcome.n_seeds,
        n_samples=outcome.n_samples,
        metric=claim.metric,
        scale=claim.scale,
        claim_scale=claim.claim_scale,
        verdict=outcome.verdict,
        evidence=outcome.evidence,
        note=outcome.note,
        parts={part.label: part.verdict for part in outcome.parts} if len(outcome.parts) > 1 else {},
    )
