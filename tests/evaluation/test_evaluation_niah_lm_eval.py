"""lm-eval's needle samples are made again exactly: compared with its own generator, sample for sample."""

from __future__ import annotations

import importlib
import random
import sys

import pytest

from hwh_core.config import NiahConfig, NiahGrid
from hwh_core.evaluation import niah_lm_eval
from hwh_core.evaluation.errors import EvaluationError
from hwh_core.evaluation.grids import grid_samples
from hwh_core.evaluation.haystacks import prose_haystack
from hwh_core.evaluation.niah_lm_eval import LmEvalSamples
from hwh_core.evaluation.ruler_source import RulerTask, ruler_tasks, template
from hwh_core.evaluation.wording import SortedKeys, key_words

# "blue" goes on with a hyphen where the keys of "blue" do: they stand mixed in the alphabet. One stands twice.
ADJECTIVES = ["tall", "blue", "blue-eyed", "bluer", "old", "old-fashioned", "tall"]
NOUNS = ["eyes", "gate", "harbour", "ear", "fox", "mill", "fence", "abbot"]


@pytest.fixture(scope="module")
def theirs(punkt):
    """lm-eval's generator, imported with short lists of words (its own list of keys takes half a gigabyte)."""
    import wonderwords

    words = type("Words", (), {"_categories": {"nouns": NOUNS, "adjectives": ADJECTIVES, "verbs": ["go"]}})
    name = "lm_eval.tasks.ruler.prepare_niah"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wonderwords, "RandomWord", words)
        patch.delitem(sys.modules, name, raising=False)
        module = importlib.import_module(name)
    yield module
    sys.modules.pop(name, None)


@pytest.fixture
def short_lists(monkeypatch):
    monkeypatch.setattr(niah_lm_eval, "sorted_keys", lambda: SortedKeys(ADJECTIVES, NOUNS))


def test_keys_are_in_the_order_of_lm_evals_list(theirs):
    ours = SortedKeys(ADJECTIVES, NOUNS)
    assert [ours[index] for index in range(len(ours))] == theirs.WORDS
    with pytest.raises(IndexError):
        ours[len(ours)]
    everything = SortedKeys(*key_words())
    some = [everything[index] for index in range(0, len(everything), 9973)]
    assert some == sorted(set(some))
    assert len(everything) == len(key_words()[0]) * len(key_words()[1])


def test_sizes_and_kinds_of_the_tasks_are_read_from_the_installed_package():
    tasks = ruler_tasks()
    names = ["single_1", "single_2", "single_3", "multikey_1", "multikey_2", "multikey_3", "multivalue", "multiquery"]
    assert list(tasks) == names
    assert tasks["single_3"] == RulerTask("niah_single_3", "essay", "words", "uuids")
    assert tasks["multikey_1"] == RulerTask("niah_multikey_1", "essay", "words", "numbers", keys=4)
    assert tasks["multikey_3"] == RulerTask("niah_multikey_3", "needle", "uuids", "uuids")
    assert (tasks["multivalue"].answers, tasks["multivalue"].keys) == (4, 1)
    assert (tasks["multiquery"].answers, tasks["multiquery"].keys) == (4, 4)
    assert tasks["single_1"].haystack == "repeat"


@pytest.mark.parametrize("variant", ruler_tasks())
def test_samples_are_those_of_lm_eval(variant, theirs, short_lists, tokenizer, prose):
    task = ruler_tasks()[variant]
    words = prose_haystack([f"Dr. Holt of St. Martin waits. {text}" for text in prose], "prose").words
    # Lengths at which the haystack grows, does not fit at first, and has to shrink for some samples; 4096 has other
    # steps. With this tokenizer 500 words are about 1,300 tokens.
    lengths = [1700, 2048, 4096] if task.haystack == "essay" else [1024, 1300, 4096]
    lines = {"repeat": theirs.get_haystack("repeat"), "needle": theirs.get_haystack("needle")}
    random.seed(niah_lm_eval.RUN_SEED)
    expected = [
        sample
        for length in lengths
        for sample in theirs.generate_samples(
            lines.get(task.haystack, words),
            TOKENIZER=tokenizer,
            max_seq_length=length,
            template=template(),
            type_haystack=task.haystack,
            type_needle_k=task.key_kind,
            type_needle_v=task.value_kind,
            num_needle_k=task.keys,
            num_needle_v=task.values,
            num_needle_q=task.queries,
            num_samples=3,
        )
    ]
    made = LmEvalSamples(task, tokenizer, words).make(lengths, 3)
    assert len(made) == len(expected) == 9
    for ours, known in zip(made, expected, strict=True):
        assert tokenizer.decode(ours.prompt) == f"{known['input']} {known['gen_prefix']}"
        assert list(ours.values) == known["outputs"]
        assert (ours.length, ours.sample, ours.depth) == (known["max_length"], known["index"], None)
        assert ours.fill_error == known["max_length"] - known["length"]
        for value, distance in zip(ours.values, ours.needle_distances, strict=True):
            hidden = tokenizer.decode(ours.prompt[-distance:]).lstrip()
            assert hidden.startswith(f"One of the special magic {task.value_kind} for ")
            assert hidden.index(value) < hidden.index(f"{value}.") + 1 < 120


def test_the_prompt_is_put_together_as_lm_evals_task_does(theirs, short_lists, tokenizer, prose):
    from datasets import Dataset, DatasetDict
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    import hwh_core.evaluation.ruler_source as source

    words = prose_haystack(prose, "prose").words
    random.seed(0)
    rows = theirs.generate_samples(
        words, TOKENIZER=tokenizer, max_seq_length=1700, template=template(), type_haystack="essay",
        type_needle_k="words", type_needle_v="numbers", num_samples=1,
    )  # fmt: skip
    folder = source.package_folder("lm_eval", "lm-eval") / "tasks" / "ruler"
    config = load_yaml(folder / "niah_single_2.yaml", resolve_func=False)
    data = DatasetDict({"test": Dataset.from_list(rows)})
    kept = {key: config[key] for key in ("doc_to_text", "doc_to_target", "gen_prefix", "target_delimiter")}
    task = ConfigurableTask(
        config={
            **kept, "task": "t", "output_type": "generate_until", "test_split": "test", "num_fewshot": 0,
            "custom_dataset": lambda **_: data, "generation_kwargs": config["generation_kwargs"],
        }
    )  # fmt: skip
    task.build_all_requests()
    (request,) = task.instances
    (sample,) = LmEvalSamples(ruler_tasks()["single_2"], tokenizer, words).make([1700], 1)
    assert tokenizer.decode(sample.prompt) == request.args[0]
    assert request.args[1]["max_gen_toks"] == source.generation_room() == 128


def test_a_length_without_any_sample_is_named(punkt, short_lists, tokenizer, prose):
    maker = LmEvalSamples(ruler_tasks()["single_2"], tokenizer, prose_haystack(prose, "prose").words)
    with pytest.raises(EvaluationError, match="niah_single_2 at length 190: needles, question and 128 tokens"):
        maker.make([190], 2)


def test_a_missing_sentence_splitter_is_named(monkeypatch):
    import nltk

    def nothing(name):
        raise LookupError(name)

    monkeypatch.setattr(nltk.data, "find", nothing)
    with pytest.raises(EvaluationError, match=r"nltk\.downloader punkt_tab"):
        niah_lm_eval.sentence_splitter.__wrapped__()


def test_a_preset_asks_for_either_kind_of_prompts(punkt, short_lists, tokenizer, prose):
    haystack = prose_haystack([f" {text}" for text in prose], "prose")
    config = NiahConfig(
        variant="single_2", haystack="held_out_prose", lengths=[512], depths=[0, 100], samples_per_cell=2,
        max_new_tokens=128, metric="ruler_contains",
    )  # fmt: skip
    exact = grid_samples(NiahGrid(variant="single_3", wording="ruler"), config, tokenizer, haystack, seed=0)
    assert [(s.length, s.depth, s.sample) for s in exact] == [(512, 0, 0), (512, 0, 1), (512, 100, 0), (512, 100, 1)]
    grid = NiahGrid(variant="single_2", wording="ruler", fill="lm_eval", lengths=[2048, 4096], samples=2)
    made = grid_samples(grid, config, tokenizer, haystack, seed=0)
    assert [(s.length, s.depth, s.sample) for s in made] == [
        (length, None, number) for length in (2048, 4096) for number in (0, 1)
    ]
    assert max(s.fill_error for s in made) > 100, "lm-eval leaves room that an exact fill uses"
    assert grid.name == "single_2_ruler_lm_eval"
