"""Presets as Snakemake reads them: dry runs, and bad input in one clear sentence."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.workflow


def refusal(checkout) -> str:
    """What a dry run prints that is refused, without a way through the code."""
    result = checkout.run("-n")
    output = result.stdout + result.stderr
    assert result.returncode != 0
    assert "Traceback" not in output
    return output


@pytest.mark.parametrize("preset", [None, "variants", "single_gpu", "paper"])
def test_dry_run_of_every_preset(checkout, preset):
    result = checkout.run("-n", preset=preset)
    assert result.returncode == 0, result.stderr[-3000:]
    assert "train_hwh" in result.stdout + result.stderr


def test_misspelt_key_is_named(checkout):
    path = checkout.code / "config" / "smoke.yaml"
    path.write_text(path.read_text().replace("minimum_bytes:", "minimum_byte:"))
    output = refusal(checkout)
    assert "data.minimum_byte" in output
    assert "smoke.yaml" in output


def test_a_key_that_stands_twice_is_named(checkout):
    path = checkout.code / "config" / "smoke.yaml"
    path.write_text(path.read_text() + "\nseed: 7\n")
    output = refusal(checkout)
    assert "smoke.yaml: key 'seed' stands twice in one section, in lines 3 and " in output


def test_a_figure_whose_models_are_missing_is_named_without_the_way_through_the_code(checkout):
    path = checkout.code / "config" / "smoke.yaml"
    path.write_text(path.read_text().replace("figures: [2,", "figures: [5, 2,"))
    output = refusal(checkout)
    assert "figure 5 cannot be made with preset 'smoke': it lacks " in output
    assert "hwh_core/chains.py" not in output


def test_missing_preset_is_named(checkout):
    result = checkout.run("-n", preset="no_such_preset")
    assert result.returncode != 0
    assert "no_such_preset.yaml" in result.stdout + result.stderr


def test_a_failing_job_says_why_and_leaves_no_output(checkout):
    path = checkout.code / "config" / "smoke.yaml"
    text = path.read_text()
    bad = checkout.code / "tests" / "fixtures" / "text" / "not_utf8.txt"
    bad.write_bytes(b"caf\xe9 au lait, and much more that is not UTF-8 \xff\n")
    result = checkout.run("results/smoke/data/documents/documents.json")
    output = result.stdout + result.stderr
    assert "tests/fixtures/text" in text
    assert result.returncode != 0
    assert "not_utf8.txt" in output
    assert "UTF-8" in output
    assert not list((checkout.folder / "resources" / "sources").glob("*.zst"))


def test_sources_of_one_name_in_two_presets_have_files_of_their_own(checkout):
    """A pin that was edited is seen even without Snakemake's records, and costs no other preset its file."""
    path = checkout.code / "config" / "smoke.yaml"
    first = checkout.run("fetch")
    assert first.returncode == 0, first.stderr[-3000:]
    made = {file.name for file in (checkout.folder / "resources" / "sources").glob("*.zst")}
    text = path.read_text()
    assert text.count("license: Apache-2.0 (made") == 1
    path.write_text(text.replace("license: Apache-2.0 (made", "license: another (made"))
    second = checkout.run("fetch")
    assert second.returncode == 0, second.stderr[-3000:]
    after = {file.name for file in (checkout.folder / "resources" / "sources").glob("*.zst")}
    assert made < after
