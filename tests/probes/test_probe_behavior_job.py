"""Behaviour scores of the workflow on the samples that a preset names, with the parser of `hwh probe --samples`."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import transformers as tf

from hwh_core.config import BehaviorConfig
from hwh_core.probes.behavior import PER_SAMPLE, behavior_scores
from hwh_core.probes.behavior_job import score_samples
from hwh_core.probes.errors import ProbeError
from hwh_core.probes.jobs import score_behavior
from hwh_core.probes.pretrained import load_model, load_tokenizer
from hwh_core.probes.samples import parse_source, take_samples

ROOT = Path(__file__).resolve().parents[2]
SIZES = {
    "length": 160, "num_samples": 3, "num_queries": 8, "windows": [8, 16], "sinks": [1, 4], "default_window": 8,
    "default_sinks": 4,
}  # fmt: skip


def settings(samples: str | list[str], **behavior) -> dict:
    values = SIZES | {"samples": samples} | behavior
    return {"model": {"name": "random"}, "behavior": values, "held_out_prose_source": "prose", "seed": 0}


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    """SQuAD-style rows in two files."""
    folder = tmp_path_factory.mktemp("questions")
    for part in range(2):
        rows = [
            {"context": f"The sailor of tower {n} carried a lantern. " * 2, "question": f"Who is in tower {n}?"}
            for n in range(12 * part, 12 * part + 12)
        ]
        (folder / f"{part}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return [folder / "0.jsonl", folder / "1.jsonl"]


def test_scores_are_those_of_the_samples_that_hwh_probe_takes(random_llama, questions):
    words = [f"squad:{questions[0]}", str(questions[1])]
    source = parse_source(words)
    scores = score_samples(settings(words), random_llama, None, source.files)
    model, tokenizer = load_model(random_llama), load_tokenizer(random_llama)
    examples, _ = take_samples(source, tokenizer, 160, 3, 0)
    expected = behavior_scores(model, examples, 8, [8, 16], [1, 4])
    for name in PER_SAMPLE:
        np.testing.assert_array_equal(getattr(scores, name), getattr(expected, name), err_msg=name)
    about = scores.description
    assert (about["samples"], about["dropped"], about["num_samples"]) == ("squad", 0, 3)
    assert about["files"] == [str(path) for path in questions]
    assert (about["default_window"], about["default_sinks"], about["length"]) == (8, 4, 160)
    assert about["lengths"] == [160] * 3


def test_synthetic_scores_are_what_they_were(random_llama, corpus):
    found = score_samples(settings("synthetic", length=400), random_llama, corpus.path, [])
    expected = score_behavior(settings("synthetic", length=400), random_llama, corpus.path)
    for name in PER_SAMPLE:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    without_seconds = [{k: v for k, v in s.description.items() if k != "seconds"} for s in (found, expected)]
    assert without_seconds[0] == without_seconds[1]


def test_the_program_scores_files_and_says_which(random_llama, questions, tmp_path, monkeypatch, capsys):
    program = ROOT / "scripts" / "behavior_scores.py"
    given = settings(f"squad:{questions[0]}", num_samples=50)
    del given["held_out_prose_source"]
    arguments = [
        "--settings",
        json.dumps(given),
        "--model",
        random_llama,
        "--files",
        questions[0],
        "--output",
        tmp_path,
    ]
    monkeypatch.setattr(sys, "argv", [str(program), *map(str, arguments)])
    runpy.run_path(str(program), run_name="__main__")
    assert "num_samples: 12 samples instead of 50; there are no more" in capsys.readouterr().out
    with np.load(tmp_path / "behavior.npz") as file:
        assert file["qr"].shape == (12, 2, 6)
        assert (file["qr"] > 0).all()
    manifest = json.loads((tmp_path / "behavior.npz.manifest.json").read_text())
    assert list(manifest["inputs"]) == [str(questions[0])]


def test_what_does_not_fit_is_named(random_llama, questions, tmp_path):
    files = questions[:1]
    named = f"squad:{files[0]}"
    with pytest.raises(ProbeError, match=r"pretrained\.behavior\.samples: no sample of 24 tokens"):
        score_samples(settings(named, length=24), random_llama, None, files)
    with pytest.raises(ProbeError, match=r"pretrained\.behavior\.length: 9000 tokens are more than the 4096"):
        score_samples(settings(named, length=9000), random_llama, None, files)
    with pytest.raises(ProbeError, match="synthetic needs held-out prose"):
        score_samples(settings("synthetic"), random_llama, None, [])
    tf.T5ForConditionalGeneration(tf.T5Config(vocab_size=99, d_model=32, d_ff=48, num_layers=1)).save_pretrained(
        tmp_path
    )
    for samples, read in ((named, files), ("synthetic", [])):
        with pytest.raises(ProbeError, match="is an encoder-decoder"):
            score_samples(settings(samples), tmp_path, tmp_path / "documents", read)


@pytest.mark.parametrize(
    ("samples", "source"),
    [
        ("synthetic", None),
        (["synthetic"], None),
        ("longmemeval", ("longmemeval", ())),
        ("nq:mine.parquet", ("nq", ("mine.parquet",))),
        (["squad:a.json", "b.json"], ("squad", ("a.json", "b.json"))),
        (["ruler"], ("ruler", ())),
    ],
)
def test_presets_name_samples_as_the_command_does(samples, source):
    assert BehaviorConfig(**SIZES, samples=samples).sample_source() == source


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"samples": "local_qa"}, r"samples: 'local_qa' is unknown; expected one of text, ruler, .* or synthetic"),
        ({"samples": "squad"}, r"samples: squad needs files: squad:FILE"),
        ({"samples": ["synthetic", "a.txt"]}, r"samples: 'synthetic' is unknown"),
        ({"samples": "text:a.txt"}, r"samples: text has no evidence, which QRscore needs"),
        ({"samples": []}, r"samples"),
        ({"samples": "squad:a{b}.json"}, r"samples: Snakemake takes braces in 'a\{b\}\.json' for wildcards"),
        ({"samples": "synthetic", "default_window": 9}, r"default_window: 9 is not among \[8, 16\]"),
        ({"samples": "synthetic", "default_sinks": 2}, r"default_sinks: 2 is not among \[1, 4\]"),
        ({"samples": "synthetic", "questions": "a.json"}, r"questions"),
    ],
)
def test_samples_that_a_preset_may_not_name_are_refused(changes, named):
    with pytest.raises(ValueError, match=named):
        BehaviorConfig(**SIZES | changes)
