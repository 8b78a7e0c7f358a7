"""Facts and questions in the training prose: what is planted, where, how often, and that it is never the test."""

from __future__ import annotations

import random
import re
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from hwh_core.config import RetrievalMixConfig
from hwh_core.data.errors import DataError
from hwh_core.data.loader import BatchLoader
from hwh_core.data.retrieval_mix import Draws, RetrievalMixLoader, draw_slots, is_mixed, key_words
from hwh_core.data.retrieval_wording import FACTS, KINDS, QUESTIONS
from hwh_core.data.sources import write_source
from hwh_core.data.store import TokenStore, write_store
from hwh_core.data.tokenizer import load_backend, save_trained, tokenizer_fingerprint, train_bpe
from hwh_core.retrieval_split import is_for_training

LENGTH, PAIRS = 1024, 3
MIX = RetrievalMixConfig(sequence_share=0.5, pairs_per_sequence=PAIRS, repeat_share=0.4, value_digits=[4, 7])


@pytest.fixture(scope="module")
def prose(tmp_path_factory):
    """``store`` and ``tokenizer`` over made-up sentences of up to 15 words."""
    folder = tmp_path_factory.mktemp("mix")
    generator = random.Random(0)
    words = ["".join(generator.choices("abcdefghijklmnop", k=generator.randint(4, 7))) for _ in range(200)]
    documents = [
        {
            "id": str(number),
            "source": "made-up",
            "title": "",
            "text": " ".join(
                " ".join(generator.choices(words, k=generator.randint(3, 15))).capitalize() + "." for _ in range(150)
            ),
        }
        for number in range(30)
    ]
    write_source(documents, "made-up", folder / "documents.jsonl.zst")
    save_trained(train_bpe(folder / "documents.jsonl.zst", vocab_size=700, training_bytes=10**6), folder / "tokenizer")
    backend, eos_token_id, vocab_size = load_backend(folder / "tokenizer")
    write_store(
        documents,
        backend,
        folder / "store",
        vocab_size=vocab_size,
        eos_token_id=eos_token_id,
        fingerprint=tokenizer_fingerprint(folder / "tokenizer"),
    )
    return SimpleNamespace(
        store=TokenStore.open(folder / "store"), tokenizer=folder / "tokenizer", words=words, backend=backend
    )


def make_loader(prose, batch_size=4, seed=3, mix=MIX, length=LENGTH):
    return RetrievalMixLoader(BatchLoader(prose.store, length, batch_size, seed), mix, prose.tokenizer)


@pytest.fixture(scope="module")
def loader(prose):
    return make_loader(prose)


@pytest.fixture(scope="module")
def planted(loader, prose):
    """``(number, tokens, placements)`` of 120 mixed sequences."""
    windows = BatchLoader(prose.store, LENGTH, 1, 3)
    return [(number, *loader.plant(number, windows.batch(number)[0])) for number in range(1, 241, 2)]


def test_a_batch_depends_on_seed_and_step_alone(loader, prose):
    expected = loader.batch(7)
    loader.batch(8)
    assert expected.shape == (4, LENGTH + 1)
    assert expected.dtype == np.int64
    assert np.array_equal(loader.batch(7), expected)
    assert np.array_equal(make_loader(prose).batch(7), expected)
    assert not np.array_equal(make_loader(prose, seed=4).batch(7), expected)


def test_what_is_planted_depends_on_the_seed_and_the_number(loader, prose, planted):
    keys = [{placement.pair.key for placement in placements} for _, _, placements in planted]
    other = {placement.pair.key for placement in make_loader(prose, seed=4).plant(1, planted[0][1])[1]}
    assert not other & keys[0]
    assert not keys[0] & keys[1]


def test_sequences_do_not_depend_on_the_batch_size(prose):
    small = np.concatenate([make_loader(prose, 2).batch(step) for step in range(6)])
    assert np.array_equal(small, np.concatenate([make_loader(prose, 6).batch(step) for step in range(2)]))


def test_the_share_is_as_stated_and_the_other_sequences_are_those_without_a_mix(loader, prose):
    plain = BatchLoader(prose.store, LENGTH, 4, 3)
    same = np.concatenate([(loader.batch(step) == plain.batch(step)).all(axis=1) for step in range(5)])
    assert same.sum() == 10
    assert np.array_equal(~same, is_mixed(np.arange(20), 0.5))


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 1.0])
def test_any_run_of_sequences_has_the_share(share):
    mixed = is_mixed(np.arange(10_000, 11_000), share)
    for length in (1, 16, 1000):
        counts = np.convolve(mixed, np.ones(length), "valid")
        assert np.abs(counts - share * length).max() <= 1


def test_facts_and_questions_stand_where_they_are_said_to_and_the_rest_is_prose(planted, prose):
    for number, tokens, placements in planted[:30]:
        window = BatchLoader(prose.store, LENGTH, 1, 3).batch(number)[0]
        assert len(tokens) == LENGTH + 1
        is_planted = np.zeros(len(tokens), dtype=bool)
        for placement in placements:
            for start, text in (
                (placement.fact_start, placement.pair.fact),
                (placement.question_start, placement.pair.question),
            ):
                ids = prose.backend.encode(f" {text}", add_special_tokens=False).ids
                assert tokens[start : start + len(ids)].tolist() == ids
                assert not is_planted[start : start + len(ids)].any()
                is_planted[start : start + len(ids)] = True
        rest = tokens[~is_planted]
        assert len(rest) > LENGTH // 4
        assert rest.tolist() == window[: len(rest)].tolist()


def test_every_answer_stands_before_its_question_and_nowhere_else(planted, prose):
    for _, tokens, placements in planted[:30]:
        assert len({placement.pair.key for placement in placements}) == PAIRS
        for placement in placements:
            pair = placement.pair
            assert placement.fact_start < placement.question_start
            assert pair.question.endswith(f"{pair.value}.")
            assert pair.key in pair.question
            before = prose.backend.decode(tokens[: placement.question_start].tolist())
            after = prose.backend.decode(tokens[placement.question_start :].tolist())
            assert before.count(f"{pair.value}.") == after.count(f"{pair.value}.") == 1


def test_places_are_sentence_ends(planted, prose):
    for _, tokens, placements in planted[:30]:
        starts = [start for p in placements for start in (p.fact_start, p.question_start)]
        texts = [prose.backend.decode(tokens[:start].tolist()) for start in starts if start]
        assert all(text.endswith((".", "<|endoftext|>")) or not text for text in texts)


def test_distances_are_uniform_over_all_prose_of_the_sequence():
    """Deciles of 20,000 drawn distances, within 5 standard errors; the fact lies anywhere that the distance leaves."""
    draws = Draws(1)
    slots = np.asarray([draw_slots(1500, draws) for _ in range(20_000)])
    distances = slots[:, 1] - slots[:, 0]
    counts = np.histogram(distances, bins=10, range=(0, 1501))[0]
    assert np.abs(counts - 2000).max() < 5 * np.sqrt(2000)
    assert slots.min() == 0
    assert slots.max() == 1500
    near = slots[distances < 150, 0]
    assert abs(near.mean() - 712) < 60


def test_distances_of_real_sequences_reach_through_the_sequence(planted):
    distances = np.asarray([p.question_start - p.fact_start for _, _, placements in planted for p in placements])
    counts = np.histogram(distances, bins=4, range=(0, LENGTH))[0]
    assert counts.min() > 0.1 * len(distances)
    assert counts.sum() == len(distances)


def test_repeats_and_digits_have_the_stated_shares(planted):
    pairs = [placement.pair for _, _, placements in planted for placement in placements]
    repeats = np.mean([pair.repeated for pair in pairs])
    assert abs(repeats - 0.4) < 5 * np.sqrt(0.24 / len(pairs))
    assert all((pair.question == pair.fact) == pair.repeated for pair in pairs)
    assert {len(pair.value) for pair in pairs} == {4, 7}


def test_keys_and_values_are_of_the_training_side_and_words_of_the_store(planted, prose):
    known = {word.lower() for word in prose.words}
    for _, _, placements in planted:
        for pair in (placement.pair for placement in placements):
            assert is_for_training(pair.key)
            assert is_for_training(pair.value)
            assert set(pair.key.split("-")) <= known


def test_words_are_whole_words_of_the_text(prose):
    words = key_words(prose.store, prose.backend)
    assert words == sorted(set(words))
    assert len(words) > 150
    assert set(words) <= set(prose.words)


def test_fingerprint_changes_with_the_mix(loader, prose):
    others = [
        make_loader(prose, mix=MIX.model_copy(update={key: value})).fingerprint
        for key, value in (("sequence_share", 0.4), ("pairs_per_sequence", 2), ("repeat_share", 0.3),
                           ("value_digits", [4]))
    ]  # fmt: skip
    others += [make_loader(prose, seed=4).fingerprint, BatchLoader(prose.store, LENGTH, 4, 3).fingerprint]
    assert loader.fingerprint == make_loader(prose).fingerprint
    assert len({loader.fingerprint, *others}) == 7


def test_what_does_not_fit_is_refused_before_the_training(prose):
    with pytest.raises(DataError, match=r"pairs_per_sequence = 8: .* more than 512 of its 1024"):
        make_loader(prose, mix=MIX.model_copy(update={"pairs_per_sequence": 8}))


def runs_of_four(texts):
    """All runs of four words that hold no place, in lower case."""
    found = set()
    for text in texts:
        for part in re.split(r"\{\w+\}", text):
            words = re.findall(r"[a-z]+", part.lower())
            found |= {tuple(words[i : i + 4]) for i in range(len(words) - 3)}
    return found


def test_no_wording_of_the_evaluation_is_trained_on():
    from hwh_core.evaluation.wording import ruler_wording, second_wording

    trained = runs_of_four([*FACTS, *QUESTIONS])
    whole = {re.sub(r"\{\w+\}", "#", text) for text in (*FACTS, *QUESTIONS)}
    kinds = set(KINDS)
    evaluated = []
    for words in (ruler_wording(), second_wording()):
        texts = [words.needle, *words.template.split("{context}"), words.answer_prefix]
        evaluated.append(runs_of_four(texts))
        assert not trained & evaluated[-1]
        assert not whole & {re.sub(r"\{\w+\}", "#", text).strip() for text in texts}
        assert not any(kind in text for kind in kinds for text in texts)
    assert not evaluated[0] & evaluated[1]
    assert all(evaluated)


def test_the_split_halves_keys_and_values_and_never_changes():
    values = [str(number) for number in range(1000, 5000)]
    share = np.mean([is_for_training(value) for value in values])
    assert abs(share - 0.5) < 5 * 0.5 / np.sqrt(len(values))
    # Written down once: another answer would put what was trained on into the test.
    assert [is_for_training(text) for text in ("1000", "1001", "dark-river", "1234567")] == [False, False, True, False]


def test_draws_are_pinned_and_differ_by_key():
    first, second = Draws(1, 2, 3), Draws(1, 2, 4)
    numbers = [first.below(10**6) for _ in range(200)]
    assert numbers[:2] == [753665, 668442]
    assert numbers != [second.below(10**6) for _ in range(200)]
    assert all(a != b for a, b in pairwise(numbers[:50]))
