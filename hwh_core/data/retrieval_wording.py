"""Sentences of the retrieval mix: facts and questions in wordings that no needle evaluation of ours uses.

Places: ``{kind}`` what the value is, ``{key}`` whose it is, ``{value}`` its digits. A test proves that no run of four
words is shared with the wordings of :mod:`hwh_core.evaluation.wording`.
"""

from __future__ import annotations

#: What a value is called; one for all pairs of a sequence, so that the key alone tells them apart.
KINDS = (
    "access code", "ticket number", "lucky number", "room number", "account number", "entry code", "secret number",
    "catalogue number",
)  # fmt: skip
FACTS = (
    "The {kind} of {key} is {value}.",
    "For {key}, the {kind} is: {value}.",
    "Note that {key} has the {kind} {value}.",
    "One {kind} to remember, that of {key}, is: {value}.",
    "As for {key}, the {kind} is {value}.",
    "The {kind} for {key} was: {value}.",
    # With the kind in the plural: a model that reads it in the singular alone finds no value behind a plural, though it
    # finds those of other unknown words.
    "Of all {kind}s, that of {key} is {value}.",
    "Among the {kind}s here, the one for {key} is: {value}.",
    "In the list of {kind}s, {key} has {value}.",
    "Several {kind}s are known. For {key} it is: {value}.",
    "Of the {kind}s, one is that of {key}, namely {value}.",
    "There are {kind}s, and {key} has the {kind} {value}.",
)
#: Every question ends in its answer.
QUESTIONS = (
    "Which {kind} does {key} have? The answer is {value}.",
    "What is the {kind} of {key}? The {kind} of {key} is {value}.",
    "Question: what {kind} has {key}? Answer: {value}.",
    "You have read the {kind} of {key} above. The {kind} of {key} given above is {value}.",
    "What {kind} was named for {key} in this text? The {kind} for {key} named in this text is {value}.",
    "Tell me the {kind} for {key} again. The {kind} for {key} that this text states is {value}.",
)
