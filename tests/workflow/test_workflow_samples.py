"""Samples of the behaviour scores as a preset names them: a file of questions, and a data set of the hub."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from hwh_core.config import load_preset
from hwh_core.probes.samples import HUB_FILES

pytestmark = pytest.mark.workflow
ROWS = [
    {"context": f"The sailor of tower {n} carried a lantern over the river. ", "question": f"Who is in tower {n}?"}
    for n in range(40)
]


def name_samples(checkout, samples: str) -> Path:
    """Have the smoke preset name other samples; gives the folder of its pretrained model, relative to the results."""
    path = checkout.code / "config" / "smoke.yaml"
    (model,) = load_preset(path).pretrained.models
    text, count = re.subn(r"(?m)^    samples: .*$", f"    samples: {samples}", path.read_text())
    assert count == 1
    path.write_text(text)
    return Path("results/smoke/pretrained", model.name)


def done(result) -> str:
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout + result.stderr


def test_a_local_file_of_questions_is_scored(checkout):
    """In SQuAD's own layout, beside the working folder of the workflow; an edit there is seen."""
    paragraphs = [{"context": row["context"], "qas": [{"id": "1", "question": row["question"]}]} for row in ROWS]
    file = checkout.folder / "my questions.json"
    model = name_samples(checkout, '["squad:my questions.json"]')
    heads = str(model / "heads.csv")
    missing = checkout.run("-n", heads)
    assert missing.returncode != 0
    assert "my questions.json" in missing.stdout + missing.stderr
    file.write_text(json.dumps({"version": "1.1", "data": [{"title": "towers", "paragraphs": paragraphs}]}))
    done(checkout.run(heads))
    folder = checkout.folder / model
    about = json.loads((folder / "behavior.json").read_text())
    assert (about["samples"], about["files"], about["num_samples"]) == ("squad", ["my questions.json"], 3)
    with np.load(folder / "behavior.npz") as scores:
        assert (scores["qr"] > 0).all()
    manifest = json.loads((folder / "behavior.npz.manifest.json").read_text())
    assert list(manifest["inputs"]) == ["my questions.json"]
    assert "held_out_prose_source" not in manifest["settings"]
    assert "Nothing to be done" in done(checkout.run("-n", heads))
    file.write_text(file.read_text().replace("lantern", "letter"))
    planned = done(checkout.run("-n", heads))
    assert re.search(r"^behavior_scores +1$", planned, re.MULTILINE)
    assert not re.search(r"^probe_pretrained ", planned, re.MULTILINE)


def test_a_data_set_of_the_hub_comes_with_fetch(checkout, tmp_path, monkeypatch):
    """From a cache in the hub's layout; the job that reads it has no hub."""
    pin = HUB_FILES["nq"]
    snapshot = tmp_path / "hub" / f"datasets--{pin.repository.replace('/', '--')}" / "snapshots" / pin.revision
    (snapshot / pin.file).parent.mkdir(parents=True)
    pairs = [{"query": row["question"], "answer": row["context"]} for row in ROWS]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(pairs), snapshot / pin.file)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = name_samples(checkout, "nq")
    done(checkout.run("fetch"))
    (fetched,) = (checkout.folder / "resources" / "samples").glob("nq-*.parquet")
    assert fetched.read_bytes() == (snapshot / pin.file).read_bytes()
    manifest = json.loads(fetched.with_name(f"{fetched.name}.manifest.json").read_text())
    assert manifest["settings"]["revision"] == pin.revision
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "empty"))
    done(checkout.run(str(model / "behavior.npz")))
    about = json.loads((checkout.folder / model / "behavior.json").read_text())
    assert (about["samples"], about["num_samples"]) == ("nq", 3)
    assert about["files"] == [fetched.relative_to(checkout.folder).as_posix()]


def test_the_paper_preset_fetches_its_samples_and_a_misspelt_kind_is_named(checkout):
    planned = done(checkout.run("-n", "fetch", preset="paper"))
    assert re.search(r"^fetch_samples +1$", planned, re.MULTILINE)
    assert re.search(r"resources/samples/longmemeval-[0-9a-f]{8}\.json", planned)
    name_samples(checkout, "squat:my.json")
    refused = checkout.run("-n")
    assert refused.returncode != 0
    assert "'squat:my.json' is unknown; expected one of text, ruler, squad" in refused.stdout + refused.stderr
    assert "Traceback" not in refused.stdout + refused.stderr
