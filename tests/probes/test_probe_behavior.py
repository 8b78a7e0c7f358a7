"""QRscore, LDscore and the contexts that they are measured on."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
import transformers as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hwh_core.probes.behavior import behavior_scores, calibrated_qr_score, ld_score, qr_score
from hwh_core.probes.contexts import synthetic_examples, truncate
from hwh_core.probes.errors import ProbeError
from hwh_core.probes.jobs import score_behavior
from hwh_core.probes.pretrained import load_model, load_tokenizer

LENGTH, QUERIES = 600, 128
POSITIONS = torch.arange(LENGTH - QUERIES, LENGTH)


def uniform_attention() -> torch.Tensor:
    """Every query attends to all keys that it sees alike: [2, Q, T]."""
    p = (torch.arange(LENGTH)[None, :] <= POSITIONS[:, None]).double()
    return (p / p.sum(-1, keepdim=True)).expand(2, -1, -1)


@pytest.mark.parametrize(("window", "sinks"), [(64, 1), (128, 4), (256, 16)])
def test_ld_of_uniform_attention(window, sinks):
    score, undefined = ld_score(uniform_attention(), POSITIONS, window, sinks)
    expected = (window / (POSITIONS + 1.0 - sinks)).mean()
    assert score.tolist() == pytest.approx([float(expected)] * 2)
    assert undefined == 0


def test_ld_with_all_mass_on_the_sinks_is_undefined():
    p = torch.zeros(2, QUERIES, LENGTH)
    p[..., 2] = 1.0
    score, undefined = ld_score(p, POSITIONS, 128, 4)
    assert all(math.isnan(value) for value in score.tolist())
    assert undefined == 2 * QUERIES
    score, undefined = ld_score(p, POSITIONS, 128, 1)
    assert (score.tolist(), undefined) == ([0.0, 0.0], 0)


def test_ld_of_the_diagonal_is_1():
    p = torch.zeros(1, QUERIES, LENGTH)
    p[0, torch.arange(QUERIES), POSITIONS] = 1.0
    assert ld_score(p, POSITIONS, 64, 4)[0].tolist() == [1.0]


def test_ld_window_is_half_open():
    """(i - W, i]: the key W back is outside, the key W - 1 back inside."""
    p = torch.zeros(1, QUERIES, LENGTH)
    p[0, torch.arange(QUERIES), POSITIONS - 63] = 1.0
    assert ld_score(p, POSITIONS, 64, 4)[0].tolist() == [1.0]
    assert ld_score(p, POSITIONS, 63, 4)[0].tolist() == [0.0]


def test_ld_means_over_defined_queries_only():
    p = torch.zeros(1, QUERIES, LENGTH)
    p[0, :, 0] = 1.0
    p[0, 5, 0], p[0, 5, POSITIONS[5]] = 0.5, 0.5
    score, undefined = ld_score(p, POSITIONS, 64, 4)
    assert (score.tolist(), undefined) == ([1.0], QUERIES - 1)


def test_qr_is_the_mass_on_gold():
    p = uniform_attention()
    gold = torch.arange(100, 120)
    expected = float((20 / (POSITIONS + 1.0)).mean())
    assert qr_score(p, gold).tolist() == pytest.approx([expected] * 2)
    assert float(qr_score(p, torch.arange(LENGTH))[0]) == pytest.approx(1.0)


def test_calibration_takes_the_null_off_and_drops_low_outliers():
    gold = torch.arange(10, 30)
    attention, null = torch.full((1, 40), 0.02), torch.full((1, 40), 0.01)
    assert float(calibrated_qr_score(attention, null, gold)) == pytest.approx(20 * 0.01)
    attention[0, 15] = 0.0  # difference -0.01: beyond mean - 2 sd of the document
    assert float(calibrated_qr_score(attention, null, gold)) == pytest.approx(19 * 0.01)
    assert float(calibrated_qr_score(attention, null, torch.tensor([12]))) == pytest.approx(0.01)
    attention[0, 35] = 0.9  # not a gold token
    assert float(calibrated_qr_score(attention, null, gold)) == pytest.approx(19 * 0.01)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.integers(1, 400), st.integers(1, 30), st.integers(0, 400), st.integers(40, 300))
def test_truncation_keeps_gold_whole_and_its_relative_place(before, size, after, budget):
    context = list(range(before + size + after))
    cut = truncate(context, [(before, before + size)], budget)
    if size > budget / 2:
        assert cut is None
        return
    kept, [(start, stop)] = cut
    assert kept[start:stop] == context[before : before + size]
    assert len(kept) == min(budget, len(context))
    assert kept == list(range(kept[0], kept[0] + len(kept))), "one contiguous piece around the gold tokens"
    if len(context) > budget:
        assert start == math.floor((budget - size) * before / (before + after) + 0.5)
        assert abs(start / (budget - size) - before / (before + after)) <= 1 / (budget - size)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 5)), min_size=2, max_size=4), st.integers(0, 60))
def test_truncation_with_several_spans_shrinks_the_filler_between(pieces, tail):
    gold, position = [], 0
    for filler, size in pieces:
        gold.append((position + filler, position + filler + size))
        position += filler + size
    context = list(range(position + tail))
    kept, spans = truncate(context, gold, 45)
    assert len(kept) == min(45, len(context))
    assert kept == sorted(set(kept))
    for old, new in zip(gold, spans, strict=True):
        assert kept[new[0] : new[1]] == context[old[0] : old[1]]


@pytest.mark.parametrize("gold", [[], [(3, 3)], [(5, 8), (7, 9)], [(8, 12)], [(-1, 2)]])
def test_impossible_spans(gold):
    with pytest.raises(ValueError, match="gold: spans"):
        truncate(list(range(10)), gold, 5)


@pytest.fixture(scope="module")
def tokenizer(corpus):
    return tf.AutoTokenizer.from_pretrained(corpus.tokenizer)


def test_synthetic_contexts(corpus, tokenizer):
    examples = synthetic_examples(corpus.texts, tokenizer, 500, 6, seed=3)
    assert len({tuple(example.context) for example in examples}) == 6
    for example in examples:
        assert len(example.prompt()) == 500
        fact = tokenizer.decode([example.context[i] for i in example.gold_positions()])
        assert "One of the special magic numbers for" in fact
        key = fact.split(" for ")[1].split(" is")[0]
        question = tokenizer.decode(example.question)
        assert key in question
        assert fact.rstrip(".").split()[-1] not in question, "the answer stands in the context alone"
        assert "N/A" in tokenizer.decode(example.null_question)
        assert example.prompt()[: len(example.context)] == example.prompt(null=True)[: len(example.context)]
    again = synthetic_examples(corpus.texts, tokenizer, 500, 6, seed=3)
    assert [e.prompt() for e in again] == [e.prompt() for e in examples]
    assert [e.prompt() for e in synthetic_examples(corpus.texts, tokenizer, 500, 6, seed=4)] != [
        e.prompt() for e in examples
    ]
    places = [
        example.gold[0][0] / len(example.context) for example in synthetic_examples(corpus.texts, tokenizer, 500, 24, 0)
    ]
    assert min(places) < 0.25
    assert max(places) > 0.6


def test_synthetic_contexts_need_room(corpus, tokenizer):
    with pytest.raises(ProbeError, match="length: 120 tokens leave"):
        synthetic_examples(corpus.texts, tokenizer, 120, 1, seed=0)


def test_scores_of_a_model_are_those_of_its_own_attention(corpus, random_llama):
    tokenizer, model = load_tokenizer(random_llama), load_model(random_llama)
    [example] = synthetic_examples(corpus.texts, tokenizer, 300, 1, seed=0)
    scores = behavior_scores(model, [example], 32, [16, 64], [1, 4], progress=False)
    assert scores.qr.shape == (1, 2, 6)
    assert scores.ld.shape == (1, 2, 6, 2, 2)
    model.set_attn_implementation("eager")
    attention = model(torch.tensor([example.prompt()]), output_attentions=True).attentions
    empty = model(torch.tensor([example.prompt(null=True)]), output_attentions=True).attentions
    gold = torch.from_numpy(example.gold_positions())
    for layer in range(2):
        p = attention[layer][0, :, -32:]
        np.testing.assert_allclose(scores.qr[0, layer], p[..., gold].sum(-1).mean(-1), rtol=1e-4)
        positions = torch.arange(p.shape[-1])[-32:]
        np.testing.assert_allclose(scores.ld[0, layer, :, 1, 0], ld_score(p, positions, 64, 1)[0], rtol=1e-4)
        expected = calibrated_qr_score(p.mean(1), empty[layer][0, :, -32:].mean(1), gold)
        np.testing.assert_allclose(scores.qr_calibrated[0, layer], expected, rtol=1e-2, atol=1e-7)


def behavior_settings(**behavior):
    values = {
        "length": 300, "num_samples": 2, "num_queries": 32, "windows": [16, 64], "sinks": [1, 4], "default_window": 64,
        "default_sinks": 4, "samples": "synthetic", "calibrate": True,
    } | behavior  # fmt: skip
    return {"model": {"name": "random"}, "behavior": values, "held_out_prose_source": "prose", "seed": 0}


def test_behavior_job_and_its_files(corpus, random_llama, tmp_path):
    scores = score_behavior(behavior_settings(), random_llama, corpus.path)
    scores.save(tmp_path / "behavior.npz")
    with np.load(tmp_path / "behavior.npz") as file:
        assert set(file.files) == {"qr", "qr_calibrated", "ld", "windows", "sinks"}
        assert file["windows"].tolist() == [16, 64]
    record = json.loads((tmp_path / "behavior.json").read_text())
    assert record["samples"] == "synthetic"
    assert record["num_samples"] == 2
    assert record["undefined"]["ld_scores_total"] == 2 * 2 * 6 * 4
    raw = score_behavior(behavior_settings(calibrate=False), random_llama, corpus.path)
    np.testing.assert_array_equal(raw.qr, scores.qr)
    assert np.isnan(raw.qr_calibrated).all()


def test_behavior_job_refuses_what_does_not_fit(corpus, random_llama):
    with pytest.raises(ProbeError, match=r"default_window: 128 is not among \[16, 64\]"):
        score_behavior(behavior_settings(default_window=128), random_llama, corpus.path)
    with pytest.raises(ProbeError, match="'local_qa' needs a file of questions"):
        score_behavior(behavior_settings(samples="local_qa"), random_llama, corpus.path)
    with pytest.raises(ProbeError, match="more than the 4096 positions"):
        score_behavior(behavior_settings(length=9000), random_llama, corpus.path)
