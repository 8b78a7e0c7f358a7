"""Needle prompts: exact fill, stored depth, and errors that name the sample."""

from __future__ import annotations

import re

import pytest
from oracle_models import copy_model

from hwh_core.data.retrieval_wording import FACTS, KINDS, QUESTIONS
from hwh_core.evaluation import ruler_source, wording
from hwh_core.evaluation.errors import EvaluationError
from hwh_core.evaluation.haystacks import draw, prose_haystack, split_sentences
from hwh_core.evaluation.niah import NiahGenerator, largest_fitting
from hwh_core.evaluation.niah_scoring import cell_table, prompts_sha256, sample_table, score_samples
from hwh_core.evaluation.wording import second_wording
from hwh_core.retrieval_split import is_for_training

LENGTHS, DEPTHS = (256, 400), (0, 30, 50, 100)


@pytest.fixture(scope="module")
def generator(tokenizer, haystack):
    return NiahGenerator(tokenizer, haystack, max_new_tokens=12, seed=3)


@pytest.fixture(scope="module")
def samples(generator):
    return list(generator.grid(LENGTHS, DEPTHS, 2))


def test_the_wording_is_that_of_the_installed_package_in_the_singular():
    words = wording.ruler_wording()
    assert words.template.count("{context}") == 1
    assert words.template.startswith("A special magic {type_needle_v} is hidden")
    assert "What is the special magic {type_needle_v} for {query}" in words.template
    assert words.needle == "One of the special magic {type_needle_v} for {key} is: {value}."
    assert words.answer_prefix.startswith("The special magic {type_needle_v} for {query}")
    assert words.answer_prefix.endswith(" is")


def test_the_wording_is_read_without_importing_the_package():
    import subprocess
    import sys

    program = (
        "import sys; from hwh_core.evaluation.wording import ruler_wording, key_words; ruler_wording(); key_words(); "
        "print([name for name in ('lm_eval', 'nltk', 'wonderwords', 'datasets', 'torch') if name in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(ruler_source, "find_spec", lambda package: None)
    with pytest.raises(EvaluationError, match=r"package wonderwords is not installed; install wonderwords 3\.0\.1"):
        wording.key_words.__wrapped__()


def test_sentences_joined_give_the_text_back():
    text = 'One ends. "Two?" he said. No. 3 costs 4.5 francs! (Four) goes on'
    sentences = split_sentences(text)
    assert " ".join(sentences) == text
    assert sentences[0] == "One ends."
    assert len(sentences) == 5
    assert split_sentences("") == []


@pytest.mark.parametrize("guess", [0, 1, 5, 37, 99, 100])
@pytest.mark.parametrize("answer", [0, 1, 36, 37, 99, 100])
def test_the_largest_size_that_fits_is_found_from_any_guess(guess, answer):
    counted = []

    def count(size):
        counted.append(size)
        return 10 + 3 * size

    assert largest_fitting(count, 10 + 3 * answer + 2, 100, guess) == answer
    assert all(0 <= size <= 100 for size in counted)
    assert len(counted) <= 16


def test_every_prompt_fills_its_length_to_the_last_word(samples, generator, tokenizer):
    longest_word = max(len(tokenizer.encode(f" {word}")) for word in set(generator.haystack.words))
    for sample in samples:
        assert len(sample.prompt) + 12 + sample.fill_error == sample.length
        assert 0 <= sample.fill_error < longest_word


def test_prompts_hold_needle_question_and_answer_where_they_say(samples, tokenizer):
    for sample in samples:
        text = tokenizer.decode(sample.prompt)
        needle = tokenizer.decode(sample.prompt[-sample.needle_distance :]).lstrip()
        assert needle.startswith("One of the special magic numbers for ")
        key = needle.split(" for ")[1].split(" is:")[0]
        assert f"for {key} is: {sample.values[0]}." in text
        assert text.endswith(f"The special magic number for {key} mentioned in the provided text is")
        assert text.count(sample.values[0]) == 1
        assert tokenizer.decode(sample.answer) == f" {sample.values[0]}"
        assert 10**6 <= int(sample.values[0]) < 10**7


def test_depth_runs_from_the_beginning_to_the_end_by_sentences(samples, tokenizer):
    for sample in samples:
        context = tokenizer.decode(sample.prompt).split("afterwards.\n", 1)[1].split("\nWhat is", 1)[0]
        before, after = context.split("One of the special magic", 1)
        after = after.split(f"{sample.values[0]}.", 1)[1]
        sentences = len(split_sentences(before.strip())) + len(split_sentences(after.strip()))
        assert len(split_sentences(before.strip())) == int(sentences * sample.depth / 100)
        assert (before.strip() == "") == (sample.depth == 0)
        assert (after.strip() == "") == (sample.depth == 100)


def test_a_prompt_depends_on_seed_length_depth_and_sample_alone(generator, tokenizer, haystack, samples):
    again = NiahGenerator(tokenizer, haystack, max_new_tokens=12, seed=3)
    assert again.make(400, 30, 1) == next(s for s in samples if (s.length, s.depth, s.sample) == (400, 30, 1))
    other = NiahGenerator(tokenizer, haystack, max_new_tokens=12, seed=4)
    assert other.make(400, 30, 1).values != again.make(400, 30, 1).values
    assert len({sample.values[0] for sample in samples}) == len(samples)
    # Written down once: a change would silently change every prompt.
    assert draw(1, "a", below=10**9) == 502758271


def test_prompts_without_split_and_distractors_are_pinned(generator, tokenizer):
    """Written down once: another key, number or place would make results of different versions incomparable."""
    sample = generator.make(256, 50, 0)
    assert (sample.values[0], "macho-generator" in tokenizer.decode(sample.prompt)) == ("6286426", True)


def test_what_a_retrieval_mix_may_train_on_is_not_asked(tokenizer, haystack, generator):
    for variant, keys in (("single_2", 1), ("multikey_1", 4)):
        unseen = NiahGenerator(
            tokenizer, haystack, max_new_tokens=12, seed=3, variant=variant, unseen_only=True, wording=second_wording()
        )
        kept = 0
        for sample in range(40):
            where = (512, 50, sample)
            needles, usual = unseen._needles(where, set()), generator._needles(where, set())
            assert len(needles) == keys
            assert not any(is_for_training(text) for needle in needles for text in (needle.key, needle.value))
            if not is_for_training(usual[0].key):
                assert needles[0].key == usual[0].key
                kept += 1
        # Both sides of the split have half of the keys; those that may be asked stay.
        assert 8 <= kept <= 32


def test_multikey_1_hides_three_more_needles_with_other_keys(tokenizer, haystack, samples):
    multikey = NiahGenerator(tokenizer, haystack, max_new_tokens=12, seed=3, variant="multikey_1")
    made = [multikey.make(400, depth, number) for depth in DEPTHS for number in range(3)]
    needle = re.compile(r"One of the special magic numbers for ([^:]+) is: (\d{7})\.")
    first = []
    for sample in made:
        assert len(sample.prompt) + 12 + sample.fill_error == sample.length
        text = tokenizer.decode(sample.prompt)
        found = needle.findall(text)
        assert len(set(found)) == len({key for key, _ in found}) == len({value for _, value in found}) == 4
        asked = text.rpartition("The special magic number for ")[2].removesuffix(" mentioned in the provided text is")
        assert dict(found)[asked] == sample.values[0]
        hidden = tokenizer.decode(sample.prompt[-sample.needle_distance :]).lstrip()
        assert needle.match(hidden).groups() == (asked, sample.values[0])
        first.append(found[0][0] == asked)
        if sample.depth == 0:
            assert first[-1]
    assert {True, False} == set(first)


def test_the_second_wording_asks_the_same_in_other_words(tokenizer, haystack, generator):
    second = NiahGenerator(tokenizer, haystack, max_new_tokens=12, seed=3, wording=second_wording())
    sample, usual = second.make(256, 50, 1), generator.make(256, 50, 1)
    assert (sample.values[0], sample.answer) == (usual.values[0], usual.answer)
    text = tokenizer.decode(sample.prompt)
    key = text.rpartition("the registration mark of ")[2].removesuffix(" reads")
    assert f"The registration mark of {key} reads {sample.values[0]}." in text
    assert text.count(key) == 3
    assert "special magic" not in text
    assert len(sample.prompt) + 12 + sample.fill_error == 256


def test_the_trained_wording_is_one_of_the_mix(tokenizer, haystack):
    words = wording.trained_wording()
    asked = words.template.removeprefix("{context} ")
    said = {
        (fact.replace("{kind}", kind), question.replace("{kind}", kind).replace("{key}", "{query}"))
        for kind in KINDS
        for fact in FACTS
        for question in QUESTIONS
    }
    assert (words.needle, f"{asked} {words.answer_prefix} {{value}}.") in said
    sample = NiahGenerator(tokenizer, haystack, max_new_tokens=12, seed=3, wording=words).make(300, 50, 0)
    text = tokenizer.decode(sample.prompt)
    assert f" is {sample.values[0]}." in text
    assert text.endswith(" is")


def test_unknown_variants_and_wordings_are_named(tokenizer, haystack):
    with pytest.raises(EvaluationError, match=r"niah\.variant: 'multikey_9' is unknown; known are single_1, single_2"):
        NiahGenerator(tokenizer, haystack, max_new_tokens=12, seed=3, variant="multikey_9")
    with pytest.raises(EvaluationError, match=r"wording 'third' is unknown; known are ruler, second, trained"):
        wording.wording_named("third")


def test_the_beginning_token_counts_in_the_budget(tokenizer, haystack, generator):
    with_bos = NiahGenerator(tokenizer, haystack, max_new_tokens=12, seed=3, add_bos=True).make(256, 50, 0)
    assert with_bos.prompt[0] == tokenizer.bos_token_id
    assert len(with_bos.prompt) + 12 + with_bos.fill_error == 256
    assert with_bos.fill_error >= 0
    assert tokenizer.bos_token_id not in generator.make(256, 50, 0).prompt


def test_a_length_that_needle_and_question_do_not_fit_is_named(generator):
    with pytest.raises(EvaluationError, match=r"^NIAH sample 2 at length 64, depth 50%: needle and question take \d+"):
        generator.make(64, 50, 2)


def test_the_least_length_that_the_error_names_works(generator):
    with pytest.raises(EvaluationError) as raised:
        generator.make(64, 50, 2)
    least = int(str(raised.value).rpartition("at least ")[2])
    # Another length draws another needle: only the budget is of interest, so a few tokens are granted.
    assert generator.make(least + 12, 50, 2).fill_error >= 0


def test_an_answer_over_the_limit_is_named(tokenizer, haystack):
    short = NiahGenerator(tokenizer, haystack, max_new_tokens=5, seed=3)
    with pytest.raises(EvaluationError, match=r"NIAH sample 0 at length 256, depth 0%: the answer \d{7} takes"):
        short.make(256, 0, 0)


def test_a_haystack_that_is_too_short_is_named(tokenizer):
    small = NiahGenerator(tokenizer, prose_haystack(["Only a few words."], "x"), max_new_tokens=12, seed=0)
    with pytest.raises(EvaluationError, match=r"sample 0 at length 400, depth 0%: the haystack \(x\) has only 4 words"):
        small.make(400, 0, 0)
    with pytest.raises(EvaluationError, match="holds no words"):
        prose_haystack([" ", ""], "x")


def test_scores_do_not_depend_on_the_batches(samples, tokenizer, tiny_llama):
    for metric in ("teacher_forced_exact", "ruler_contains"):
        results = [
            score_samples(copy_model(tokenizer, 250), tokenizer, samples, metric, b, 12) for b in (1, 2000, 99999)
        ]
        assert results[0] == results[1] == results[2]


def test_a_model_with_a_limit_refuses_longer_prompts(generator, tokenizer, tiny_llama):
    longer = [generator.make(256, 0, 0), generator.make(600, 50, 1)]
    for metric in ("teacher_forced_exact", "ruler_contains"):
        with pytest.raises(EvaluationError, match=r"NIAH sample 1 at length 600, depth 50%: .*limit .* is 512"):
            score_samples(tiny_llama, tokenizer, longer, metric, 4096, 12)
        assert score_samples(tiny_llama, tokenizer, longer[:1], metric, 4096, 12) == [0.0]


def test_an_unknown_metric_is_named(samples, tokenizer):
    with pytest.raises(EvaluationError, match=r"niah\.metric: 'luck' is unknown"):
        score_samples(copy_model(tokenizer), tokenizer, samples, "luck", 4096, 12)


def test_cells_are_means_over_prompts(samples):
    identity = {"scale": "s", "model": "m", "architecture": "transformer", "seed": 0}
    labels = {"metric": "ruler_contains", "haystack": "made-up", "wording": "ruler", "training_length": None}
    table = sample_table(samples, [float(index % 2 == 0) for index in range(len(samples))], identity, labels)
    cells = cell_table(table, "niah_single_2, fill exact", prompts_sha256(samples))
    assert len(cells) == len(LENGTHS) * len(DEPTHS)
    assert list(cells["n"]) == [2] * len(cells)
    assert list(cells["mean"]) == [0.5] * len(cells)
    assert list(cells["stderr"]) == pytest.approx([0.5] * len(cells))
    assert list(cells["length"].unique()) == list(LENGTHS)
    assert set(cells["num_truncated"]) == {0}
    assert cells["num_tokens"].sum() == sum(len(sample.prompt) for sample in samples)
    assert set(cells["prompts_sha256"]) == {prompts_sha256(samples)} != {prompts_sha256(samples[1:])}


UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"


@pytest.mark.parametrize("variant", ruler_source.ruler_tasks())
def test_every_variant_hides_what_it_asks_for_at_exact_length(variant, tokenizer, haystack):
    task = ruler_source.ruler_tasks()[variant]
    generator = NiahGenerator(tokenizer, haystack, max_new_tokens=140, seed=3, variant=variant)
    for depth in (0, 100):
        sample = generator.make(1300, depth, 1)
        text = tokenizer.decode(sample.prompt)
        value = UUID if task.value_kind == "uuids" else r"\d{7}"
        key = UUID if task.key_kind == "uuids" else r"[^:]+"
        needles = re.findall(rf"One of the special magic {task.value_kind} for ({key}) is: ({value})\.", text)
        assert len(needles) == len(set(needles)) >= task.keys * task.values
        assert (len(needles) > task.keys * task.values) == (task.haystack == "needle")
        asked = {value: key for key, value in needles if value in sample.values}
        assert len(sample.values) == len(asked) == task.answers
        query = text.rpartition("What ")[2]
        assert all(query.count(key) == 2 for key in asked.values())
        assert [key in asked.values() for key, _ in needles] == [value in asked for _, value in needles]
        for value, distance in zip(sample.values, sample.needle_distances, strict=True):
            hidden = tokenizer.decode(sample.prompt[-distance:]).lstrip()
            assert hidden.startswith(f"One of the special magic {task.value_kind} for {asked[value]} is: {value}.")
        assert sample.needle_distance == max(sample.needle_distances)
        assert len(sample.prompt) + 140 + sample.fill_error == 1300
        # To the last word of prose, sentence of noise, or needle.
        assert 0 <= sample.fill_error < (90 if task.haystack == "needle" else 12)
        # The first of the needles stands at the depth, the others anywhere.
        if depth == 0 or task.keys * task.values == 1:
            assert needles[0 if depth == 0 else -1][1] == sample.values[0]
        ending = "are" if task.answers > 1 else "is"
        assert text.endswith(f"mentioned in the provided text {ending}")


def test_noise_repeats_one_line_and_the_last_may_be_cut_short(tokenizer, haystack):
    text = tokenizer.decode(
        NiahGenerator(tokenizer, haystack, max_new_tokens=12, seed=3, variant="single_1").make(400, 50, 0).prompt
    )
    lines = text.split("afterwards.\n")[1].split("\nWhat is")[0].split("\n")
    noise = [line for line in lines if "magic" not in line]
    assert set(noise[:-1]) == {ruler_source.noise_line()}
    assert ruler_source.noise_line().startswith(noise[-1])
    assert "magic" in lines[len(noise) // 2]


@pytest.mark.parametrize("variant", ["multivalue", "multiquery", "multikey_3"])
def test_the_share_of_values_that_were_given_is_the_score(variant, tokenizer, haystack, monkeypatch):
    from hwh_core.evaluation import niah_scoring

    generator = NiahGenerator(tokenizer, haystack, max_new_tokens=140, seed=3, variant=variant)
    samples = [generator.make(1000, 50, number) for number in range(2)]
    given = [samples[0].values[:1], samples[1].values]
    monkeypatch.setattr(
        niah_scoring,
        "generate_greedy",
        lambda model, prompts, *_: [
            tokenizer.encode(" and ".join(given[[s.prompt for s in samples].index(p)]).upper()) for p in prompts
        ],
    )
    scores = score_samples(copy_model(tokenizer), tokenizer, samples, "ruler_contains", 4096, 140)
    assert scores == [1 / len(samples[0].values), 1.0]


def test_a_wording_without_plural_refuses_several_answers(tokenizer, haystack):
    with pytest.raises(EvaluationError, match=r"wording 'second' has no form for 4 answers"):
        NiahGenerator(tokenizer, haystack, max_new_tokens=140, seed=3, variant="multivalue", wording=second_wording())
