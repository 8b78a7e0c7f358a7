"""Models whose scores are known beforehand, in all needle tasks: one copies, one sees N tokens and no more."""

from __future__ import annotations

from itertools import pairwise

import pytest
from oracle_models import copy_model

from hwh_core.config.evaluation import SEVERAL_ANSWERS
from hwh_core.evaluation.niah import NiahGenerator, enumeration
from hwh_core.evaluation.niah_lm_eval import LmEvalSamples
from hwh_core.evaluation.niah_scoring import score_samples
from hwh_core.evaluation.ruler_source import ruler_tasks

DEPTHS = (0, 30, 50, 100)
ONE_ANSWER = [variant for variant in ruler_tasks() if variant not in SEVERAL_ANSWERS]
METRICS = ("teacher_forced_exact", "ruler_contains")
# A preset refuses several answers with teacher_forced_exact: no model can know their order.
SCORED = [(variant, metric) for variant in ONE_ANSWER for metric in METRICS]
SCORED += [(variant, "ruler_contains") for variant in SEVERAL_ANSWERS]


def room(variant: str) -> int:
    """Tokens for the answer: one of four values that is begun anew halfway takes 80."""
    return 100 if variant in SEVERAL_ANSWERS else 40


@pytest.fixture(scope="module")
def grids(tokenizer, haystack, punkt):
    """Prompts of every variant: at two lengths and all depths, and last the first two that lm-eval makes."""
    grids = {}
    for variant, task in ruler_tasks().items():
        made = NiahGenerator(tokenizer, haystack, max_new_tokens=room(variant), seed=3, variant=variant)
        lengths = (700, 1000) if variant in SEVERAL_ANSWERS else (420, 600)
        theirs = LmEvalSamples(task, tokenizer, haystack.words)
        grids[variant] = [*made.grid(lengths, DEPTHS, 1), *theirs.make([1700], 2)]
    return grids


def scores(grids, tokenizer, variant, metric, window=None):
    return score_samples(copy_model(tokenizer, window), tokenizer, grids[variant], metric, 4096, room(variant))


def reaches(sample, tokenizer, order):
    """Tokens that must be in sight for each value: from its needle to its last token but one behind the prompt.

    ``order``: of the values in the answer. The last token of a value is written when the others already stand there.
    """
    answer = f" {enumeration([sample.values[number] for number in order])}"
    ends = [answer.index(value) + len(value) for value in sample.values]
    written = [len(tokenizer.encode(answer[:end], add_special_tokens=False)) for end in ends]
    return [distance + count - 1 for distance, count in zip(sample.needle_distances, written, strict=True)]


@pytest.mark.parametrize(("variant", "metric"), SCORED)
def test_the_copy_model_scores_everything_at_every_depth_and_length(variant, metric, grids, tokenizer):
    assert scores(grids, tokenizer, variant, metric) == [1.0] * len(grids[variant])


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("variant", ONE_ANSWER)
def test_a_model_that_sees_n_tokens_fails_exactly_beyond(variant, metric, grids, tokenizer):
    needed = [reaches(sample, tokenizer, [0])[0] for sample in grids[variant]]
    # Exactly what a prompt of the middle and one of lm-eval's need, and one token less.
    for reach in (sorted(needed)[len(needed) // 2], needed[-1]):
        for window in (reach - 1, reach):
            expected = [reach <= window for reach in needed]
            assert scores(grids, tokenizer, variant, metric, window) == expected


@pytest.mark.parametrize("variant", SEVERAL_ANSWERS)
def test_of_several_values_those_within_n_tokens_are_given(variant, grids, tokenizer):
    seen = set()
    for sample in grids[variant]:

        def score(window, sample=sample):
            model = copy_model(tokenizer, window)
            return score_samples(model, tokenizer, [sample], "ruler_contains", 4096, room(variant))[0]

        # Values of one key in the order of the text, those of several keys in that of the question.
        order = range(4)
        if variant == "multivalue":
            order = sorted(order, key=lambda number: -sample.needle_distances[number])
        needed = max(reaches(sample, tokenizer, order))
        assert score(needed) == 1.0
        assert score(needed - 1) < 1.0
        # The next needle is just out of sight; none in sight goes out of it while an answer is written.
        for given, (near, far) in enumerate(pairwise([0, *sorted(sample.needle_distances)])):
            if far - near >= len(sample.answer):
                assert score(far - 1) == given / 4
                seen.add(given)
    assert seen == {0, 1, 2, 3}
