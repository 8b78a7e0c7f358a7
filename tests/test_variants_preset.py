"""The preset of variants: three that need no code, on the batches and with the evaluation of the laptop preset."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest
import yaml

from hwh_core.architectures import layers_of_shape
from hwh_core.config import load_preset
from hwh_core.reporting import table_variants
from hwh_core.reporting.results import Results

ROOT = Path(__file__).resolve().parents[1]
VARIANTS = load_preset(ROOT / "config" / "variants.yaml")
LAPTOP = load_preset(ROOT / "config" / "config.yaml")
REFERENCE = ROOT / "results" / "reference" / "variants"
NAMES = ("hwh_std", "hwh_delta", "hwh_late", "hwh_grouped")
(SCALE,) = VARIANTS.hwh.scales


def test_batches_sizes_and_evaluation_are_those_of_the_laptop_preset():
    (laptop,) = LAPTOP.hwh.scales
    for key in ("seed", "data", "tokenizers", "evaluation"):
        assert getattr(VARIANTS, key) == getattr(LAPTOP, key), key
    for key in ("tokenizer", "length", "qk_norm", "shape", "training", "retrieval_mix"):
        assert getattr(SCALE, key) == getattr(laptop, key), key
    assert SCALE.claim_scale == "none", "a variant fills no row of the ledger"


def test_each_variant_is_trained_with_the_seeds_of_the_control():
    assert [(m.architecture, m.seed) for m in SCALE.models] == [(name, seed) for name in NAMES for seed in (0, 1)]


def test_variants_are_those_that_the_reference_of_keys_shows():
    text = (ROOT / "config" / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```yaml\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    told = [variant.model_dump() for variant in VARIANTS.hwh.architectures]
    shown = yaml.safe_load(example)["hwh"]["architectures"]
    assert [{key: variant[key] for key in one} for variant, one in zip(told, shown, strict=True)] == shown


def groups(name: str) -> list[tuple[tuple[str, int, int], ...]]:
    """Kind, query heads and key heads of every group, by layer."""
    layers = layers_of_shape(VARIANTS.hwh.shape_of(SCALE, name).model_dump(), name)
    return [tuple((group.kind, group.heads, group.key_value_heads) for group in layer) for layer in layers]


def test_each_variant_differs_from_the_control_in_what_it_is_for():
    control = groups("hwh_std")
    renamed = [tuple((k.replace("gated_deltanet", "deltanet"), *n) for k, *n in layer) for layer in control]
    assert groups("hwh_delta") == renamed != control
    full = [sum(heads for kind, heads, _ in layer if kind == "full_attention") for layer in groups("hwh_late")]
    assert full == [0, 0, 0, 1, 1, 2, 4, 4]
    assert groups("hwh_grouped") == [(("full_attention", 2, 1), ("sliding_window", 6, 2))] * 8


@pytest.mark.parametrize("model", [model.name for model in SCALE.models])
def test_the_run_that_is_kept_had_the_batches_and_prompts_of_the_laptop_run(model):
    """What the README says of the run holds only if all models were given the same."""
    seed = model.rpartition("_s")[2]
    own, control = (REFERENCE / "hwh" / SCALE.name / name for name in (model, f"hwh_std_s{seed}"))
    laptop = REFERENCE.parent / "laptop" / "hwh" / SCALE.name / "hwh_std_s0"
    for name, column in (("scores.csv", "rows_sha256"), ("niah_cells.csv", "prompts_sha256")):
        read = [pd.read_csv(folder / name)[column].tolist() for folder in (own, control, laptop)]
        assert read[0] == read[1] == read[2] != []
    metrics = [json.loads((folder / "metrics.json").read_text(encoding="utf-8")) for folder in (own, control, laptop)]
    batches = [entry["fingerprint"]["data"] for entry in metrics]
    assert batches[0] == batches[1]
    assert (batches[0] == batches[2]) == (seed == "0")
    assert metrics[0]["tokens"] == metrics[2]["tokens"]


def test_the_table_of_variants_shows_what_the_run_that_is_kept_measured():
    assert VARIANTS.targets.comparisons == ["variants"]
    rows = {labels[1]: (labels, cells) for labels, cells in table_variants.make(Results(REFERENCE, VARIANTS)).rows}
    assert list(rows) == ["HwH-std", "hwh_delta", "hwh_late", "hwh_grouped"]
    assert [labels[2:] for labels, _ in rows.values()] == [
        ("-", "-"), ("HwH-std", "HwH-std"), ("HwH-std", "HwH-std"), ("HwH-swa", "HwH-std"),
    ]  # fmt: skip
    metrics = {
        model.name: json.loads((REFERENCE / "hwh" / SCALE.name / model.name / "metrics.json").read_text())
        for model in SCALE.models
    }
    for name, (_, cells) in zip(NAMES, rows.values(), strict=True):
        own = [metrics[f"{name}_s{seed}"]["held_out_loss"] for seed in (0, 1)]
        base = [metrics[f"hwh_std_s{seed}"]["held_out_loss"] for seed in (0, 1)]
        assert cells["held-out loss"].ours == pytest.approx(sum(own) / 2)
        assert cells["SD over seeds"].ours == pytest.approx(abs(own[0] - own[1]) / 2**0.5)
        assert cells["parameters (millions)"].ours == metrics[f"{name}_s0"]["parameters"] / 1e6
        if name != "hwh_std":
            differences = [a - b for a, b in zip(own, base, strict=True)]
            # Student's t of one degree of freedom at 97.5%, times the standard error of a mean of two.
            half = 12.7062 * abs(differences[0] - differences[1]) / 2
            cell = cells["loss difference, paired"]
            assert (cell.ours, cell.high - cell.ours) == pytest.approx((sum(differences) / 2, half), rel=1e-4)
        needles = [cell for column, cell in cells.items() if column.startswith("NIAH-S2")]
        assert [(cell.ours, cell.n_seeds) for cell in needles] == [(0.0, 2), (0.0, 2)]


def test_losses_in_the_readme_are_those_of_the_run_that_is_kept():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    told = re.search(r"^\| HwH-std \| DeltaNet .*\n\|[-|]+\n\| (.*) \|$", readme, re.MULTILINE)
    folders = {model.name: REFERENCE / "hwh" / SCALE.name / model.name for model in SCALE.models}
    losses = {n: json.loads((folder / "metrics.json").read_text())["held_out_loss"] for n, folder in folders.items()}
    assert told[1].split(" | ") == [f"{losses[f'{name}_s0']:.3f}, {losses[f'{name}_s1']:.3f}" for name in NAMES]
    needles = [pd.read_csv(folder / "niah_cells.csv")["mean"].sum() for folder in folders.values()]
    assert needles == [0.0] * len(SCALE.models)
