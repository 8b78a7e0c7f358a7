"""Claims S1 and S2: planted bands and heads, from synthetic.json (written by scripts/synthetic_check.py)."""

from __future__ import annotations

from .claim_model import Claim, Outcome, Part, from_parts
from .intervals import exact, verdict
from .results import Results

FILE = "synthetic.json"


def s1(results: Results) -> Outcome:
    """Every planted band is found within half a group, among groups that turn far enough to leave a trace in RPD."""
    found = results.json(FILE)["S1"]
    share = exact(found["recovered"] / found["n"])
    parts = [Part("share of planted bands recovered", share, verdict(share, low=1.0, trained=False))]
    if found["max_abs_error"] is not None:
        error = exact(found["max_abs_error"])
        parts.append(Part("largest error (groups)", error, verdict(error, high=0.5, trained=False)))
    whole = found["all_groups_of_the_range"]
    note = (
        f"counted are groups that turn at least {found['minimum_angle']:g} rad over the probe; of all groups of the "
        f"search range {whole['recovered']} of {whole['n']} were found: a rotation that hardly turns leaves no RPD"
    )
    return from_parts(parts, evidence=FILE, n_samples=int(found["n"]), note=note)


def s2(results: Results) -> Outcome:
    """Every planted retrieval or positional head gets its class."""
    found = results.json(FILE)["S2"]
    share = exact(found["right"] / found["n"])
    part = Part("share", share, verdict(share, low=1.0, trained=False))
    return from_parts([part], evidence=FILE, n_samples=int(found["n"]))


CLAIMS = [
    Claim("S1", "A planted band (turning >= 1 rad over the probe) is recovered by the extractor", None, "0.5 group",
          "error of the peak (groups)", "S",
          "synthetic heads", s1),
    Claim("S2", "Planted retrieval and positional heads get their class", None, "100%", "share of planted heads", "S",
          "synthetic heads", s2),
]  # fmt: skip
