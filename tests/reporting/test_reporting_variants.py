"""The table of variants: what is held against what, pairs of seeds, what is missing, and the files that it reads."""

from __future__ import annotations

import json
import math

import pytest
import report_preset as presets
import report_tree as tree

from hwh_core.config import PresetConfig, validate_preset
from hwh_core.estimate import target_folders
from hwh_core.reporting import comparisons, requirements
from hwh_core.reporting.results import Results
from hwh_core.reporting.selection import ReportError
from hwh_core.reporting.table_variants import make
from hwh_core.reporting.tables import make_and_write
from hwh_core.resources import canonical
from hwh_core.verification import settings_differences

VARIANTS = [
    {"name": "own", "base": "hwh_std", "recurrence": "deltanet"},
    {"name": "swa_like", "base": "hwh_swa", "attention_output_norm": True},
]
LOSSES = {("hwh_std", 0): 4.0, ("hwh_std", 1): 4.4, ("own", 0): 3.9, ("own", 1): 4.2, ("swa_like", 0): 4.5}


def with_variants(architectures: list[str], seeds: int = 2, targets: list[str] | None = None) -> PresetConfig:
    data = presets.preset(scales=[]).model_dump(mode="json")
    data["hwh"] |= {"architectures": VARIANTS, "scales": [presets.scale(architectures, seeds=seeds)]}
    data["targets"]["comparisons"] = targets or []
    return validate_preset(data, "imagined preset")


def written(root, preset: PresetConfig) -> Results:
    tree.write_hwh(root, preset)
    for scale in preset.hwh.scales:
        for model in scale.models:
            loss = LOSSES.get((model.architecture, model.seed), 5.0)
            tree.put_json(
                root / "hwh" / scale.name / model.name / "metrics.json",
                {"tokens": 1, "parameters": 1_900_000 + len(model.architecture), "held_out_loss": loss},
            )
    return Results(root, preset)


def rows_of(table) -> dict:
    return {labels[1]: (labels, cells) for labels, cells in table.rows}


def test_differences_are_paired_by_seed(tmp_path):
    """Losses of 4.0 and 4.4 against 3.9 and 4.2: the pairs differ by 0.1 and 0.2, the means by seeds by far more."""
    table = make(written(tmp_path, with_variants(["transformer", "hwh_std", "own"])))
    rows = rows_of(table)
    assert list(rows) == ["HwH-std", "own"], "what is neither a variant nor held against is in other tables"
    (labels, own), (_, base) = rows["own"], rows["HwH-std"]
    assert labels == ("tiny", "own", "HwH-std", "HwH-std")
    difference = own["loss difference, paired"]
    assert difference.ours == pytest.approx(-0.15)
    assert difference.high - difference.ours == pytest.approx(12.7062 * 0.05, rel=1e-4)
    assert base["loss difference, paired"].ours == "-"
    assert base["held-out loss"].ours == pytest.approx(4.2)
    assert base["SD over seeds"].ours == pytest.approx(0.4 / math.sqrt(2))
    assert base["held-out perplexity"].ours == pytest.approx(math.exp(4.2))
    assert own["parameters (millions)"].ours == pytest.approx(1.900003)
    assert own["NIAH-S2 up to L (%)"].ours == 100
    assert own["NIAH-S2 beyond L (%)"].n_seeds == 2
    assert not any("does not train" in note for note in table.notes)


def test_a_seed_that_one_of_the_two_lacks_is_left_out_of_the_difference(tmp_path):
    data = with_variants(["hwh_std", "own"]).model_dump(mode="json")
    data["hwh"]["scales"][0]["models"] = [m for m in data["hwh"]["scales"][0]["models"] if m["name"] != "own-s1"]
    _, own = rows_of(make(written(tmp_path, validate_preset(data, "imagined preset"))))["own"]
    difference = own["loss difference, paired"]
    assert (difference.ours, difference.n_seeds) == (pytest.approx(-0.1), 1)
    assert difference.low is difference.high is None, "one seed says nothing of the spread over seeds"
    assert own["SD over seeds"].ours == "-"


def test_a_variant_whose_base_is_not_trained_is_held_against_the_control(tmp_path):
    table = make(written(tmp_path, with_variants(["hwh_std", "swa_like"], seeds=1)))
    labels, cells = rows_of(table)["swa_like"]
    assert labels[2:] == ("HwH-swa", "HwH-std")
    assert cells["loss difference, paired"].ours == pytest.approx(0.5)
    assert sum("swa_like is made from HwH-swa, which scale tiny does not train" in note for note in table.notes) == 1


def test_a_variant_without_anything_to_hold_against_has_no_difference(tmp_path):
    table = make(written(tmp_path, with_variants(["gdn", "swa_like"], seeds=1)))
    labels, cells = rows_of(table)["swa_like"]
    assert labels[2:] == ("HwH-swa", "-")
    assert cells["loss difference, paired"].ours == "-"
    assert any(note.endswith("it is held against nothing.") for note in table.notes)


def test_a_scale_that_is_a_variation_as_a_whole_follows_and_says_how_it_differs(tmp_path):
    """Needles of the retrieval mix are shown as well; a scale of a claim without variants has tables of its own."""
    data = with_variants(["hwh_std", "own"], seeds=1).model_dump(mode="json")
    longer, claimed = presets.scale(["hwh_std"], "none", name="longer"), presets.scale(["hwh_std"], "380M")
    longer["training"] |= {"steps": 2 * longer["training"]["steps"]}
    longer["shape"] |= {"gdn_head_dim": 8}
    data["hwh"]["scales"] += [longer, claimed | {"name": "claimed"}]
    data["evaluation"]["niah"]["additional"] = [{"variant": "single_2", "wording": "trained"}]
    preset = validate_preset(data, "imagined preset")
    results = written(tmp_path, preset)
    for scale in preset.hwh.scales:
        for model in scale.models:
            folder = tmp_path / "hwh" / scale.name / model.name
            (folder / "niah_single_2_trained_cells.csv").write_bytes((folder / "niah_cells.csv").read_bytes())
    table = make(results)
    assert [labels[:2] for labels, _ in table.rows] == [("tiny", "HwH-std"), ("tiny", "own"), ("longer", "HwH-std")]
    _, cells = table.rows[-1]
    assert cells["loss difference, paired"].ours == "-"
    assert cells["NIAH-S2, trained wording beyond L (%)"].ours == 100
    steps = longer["training"]["steps"]
    (note,) = [note for note in table.notes if note.startswith("Scale longer differs from scale tiny in: ")]
    assert note.endswith(f"shape.gdn_head_dim 8 (there 16), training.steps {steps} (there {steps // 2}).")
    inputs = comparisons.table_inputs(preset, "variants")
    assert {path.relative_to(tmp_path).as_posix() for path in results.used} == set(inputs)
    assert set(inputs) <= set(requirements.claims_inputs(preset))


def test_the_table_reads_what_the_workflow_gives_it_and_nothing_that_the_ledger_does_not(tmp_path):
    preset = with_variants(["transformer", "hwh_std", "own"])
    results = written(tmp_path, preset)
    paths = make_and_write("variants", results, tmp_path / "tables/table_variants")
    assert sorted(path.suffix for path in paths) == [".csv", ".md", ".tex"]
    inputs = comparisons.table_inputs(preset, "variants")
    assert {path.relative_to(tmp_path).as_posix() for path in results.used} == set(inputs)
    assert set(inputs) <= set(requirements.claims_inputs(preset)), "chains of measurements know of no comparison"
    assert not any("transformer" in path for path in inputs)
    manifest = json.loads((tmp_path / "tables/table_variants.csv.manifest.json").read_text(encoding="utf-8"))
    assert settings_differences(manifest["settings"], preset.model_dump(mode="json")) == []
    assert target_folders(preset, ["table_variants"]) == {
        f"hwh/tiny/{n}-s{s}" for n in ("hwh_std", "own") for s in (0, 1)
    }


def test_presets_without_variants_say_what_they_lack(tmp_path):
    with pytest.raises(ReportError, match=r"table variants cannot be made.*lacks a trained model of a variant"):
        comparisons.table_inputs(presets.preset(), "variants")
    with pytest.raises(ReportError, match=r"table 5 cannot be made with preset.*hwh_swa"):
        comparisons.table_inputs(presets.preset(), 5)
    with pytest.raises(ReportError, match=r"table variant is none of this report's.*'heads', 'variants'"):
        make_and_write("variant", Results(tmp_path, presets.preset()), tmp_path / "x")


@pytest.mark.parametrize("content", [{"parameters": 5}, {"parameters": 5, "held_out_loss": None}])
def test_a_model_without_a_loss_is_named(tmp_path, content):
    results = written(tmp_path, with_variants(["hwh_std", "own"]))
    path = tmp_path / "hwh/tiny/own-s0/metrics.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ReportError, match=r"own-s0/metrics\.json: held_out_loss is None, expected a number"):
        make(results)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"held_out_windows": 3}, "windows of held-out text of hwh_std-s0 and own-s1 differ"),
        ({"fingerprint": {"data": "other"}}, "training data of hwh_std-s1 and own-s1 differ"),
    ],
)
def test_losses_of_other_text_are_refused(tmp_path, changes, told):
    results = written(tmp_path, with_variants(["hwh_std", "own"]))
    path = tmp_path / "hwh/tiny/own-s1/metrics.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ReportError, match=rf"scale 'tiny': {told} by their metrics\.json"):
        make(results)


def test_a_seed_twice_is_refused(tmp_path):
    data = with_variants(["hwh_std", "own"]).model_dump(mode="json")
    again = {"name": "again", "architecture": "own", "seed": 0, "rope_theta": 20000.0}
    data["hwh"]["scales"][0]["models"].append(again)
    with pytest.raises(ReportError, match="architecture 'own' with seed 0 twice"):
        make(written(tmp_path, validate_preset(data, "imagined preset")))


def test_the_key_is_written_only_where_it_is_set():
    """Settings of presets without comparisons stay what they were, and with them what was made."""
    assert "comparisons" not in canonical(presets.preset())
    assert '"comparisons": ["variants"]' in canonical(with_variants(["own"], targets=["variants"]))
