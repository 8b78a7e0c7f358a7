"""Needle prompts as files, and by several processes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hwh_core.data.documents import DocumentWriter
from hwh_core.data.tokenizer import save_trained, tokenizer_fingerprint, train_bpe
from hwh_core.evaluation.errors import EvaluationError
from hwh_core.evaluation.grids import GridInputs, make_grids
from hwh_core.evaluation.prompts import (
    NiahSample,
    PromptSet,
    read_prompts,
    require_tokenizer,
    write_prompts,
)
from hwh_core.evaluation.settings import niah_settings

SAMPLE = NiahSample(
    length=64, depth=None, sample=3, prompt=[5, 6, 7], answer=[8], values=("1", "2"), needle_distances=(3, 2),
    fill_error=0,
)  # fmt: skip
PROMPTS = PromptSet([SAMPLE, replace(SAMPLE, depth=50, sample=4)], "essays", "abc")

CONFIG = {
    "variant": "single_2",
    "additional": [{"variant": "multikey_1", "wording": "ruler", "lengths": [700], "samples": 1}],
    "haystack": "held_out_prose",
    "lengths": [500, 700],
    "depths": [0, 100],
    "samples_per_cell": 2,
    "max_new_tokens": 16,
    "metric": "teacher_forced_exact",
}


def test_prompts_are_read_as_written(tmp_path):
    write_prompts(PROMPTS, tmp_path / "niah.parquet")
    assert read_prompts(tmp_path / "niah.parquet") == PROMPTS


def test_files_that_hold_no_prompts_are_named(tmp_path):
    import pandas

    pandas.DataFrame({"a": [1]}).to_parquet(tmp_path / "other.parquet")
    with pytest.raises(EvaluationError, match=r"other\.parquet holds no needle prompts"):
        read_prompts(tmp_path / "other.parquet")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1")
    for name in ("cut.parquet", "none.parquet"):
        with pytest.raises(EvaluationError, match=f"{name} cannot be read"):
            read_prompts(tmp_path / name)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prompts")
    text = " ".join(
        f"The {number}th house in the street had {number * 7} windows. It was old." for number in range(400)
    )
    with open(folder / "held_out.jsonl.zst", "wb") as stream:
        writer = DocumentWriter(stream)
        writer.write({"id": "a", "source": "prose", "title": "", "text": text})
        writer.close()
    tokenizer = train_bpe(folder / "held_out.jsonl.zst", vocab_size=280, training_bytes=10_000)
    save_trained(tokenizer, folder / "tokenizer")
    return GridInputs(folder / "tokenizer", folder / "held_out.jsonl.zst", "prose", None, 0, False, False)


def test_prompts_do_not_depend_on_the_number_of_processes(inputs):
    config = niah_settings(CONFIG)
    alone, shared = (make_grids(config, inputs, workers=workers) for workers in (1, 2))
    assert alone == shared
    assert list(alone) == ["niah", "niah_multikey_1_ruler"]
    cells = [(sample.length, sample.depth, sample.sample) for sample in alone["niah"].samples]
    assert cells == [(length, depth, sample) for length in (500, 700) for depth in (0, 100) for sample in (0, 1)]
    assert alone["niah"].tokenizer_fingerprint == tokenizer_fingerprint(inputs.tokenizer)


def test_prompts_of_another_tokenizer_are_refused(inputs):
    require_tokenizer([PromptSet([], "", tokenizer_fingerprint(inputs.tokenizer))], inputs.tokenizer)
    with pytest.raises(EvaluationError, match=r"another tokenizer \(fingerprint abc\)"):
        require_tokenizer([PROMPTS], inputs.tokenizer)


def test_a_source_that_the_documents_lack_ends_all(inputs):
    config = niah_settings(CONFIG)
    with pytest.raises(EvaluationError, match="no documents of the source 'poems'"):
        make_grids(config, inputs._replace(prose_source="poems"))
    with pytest.raises(EvaluationError, match="--documents and held_out_prose_source are needed"):
        make_grids(config, inputs._replace(documents=None))
