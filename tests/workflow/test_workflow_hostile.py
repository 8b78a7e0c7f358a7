"""Texts and paths with words for a shell: presets and checkouts that hold them are planned and run, those are not."""

from __future__ import annotations

import dataclasses
import json

import pytest
import yaml

pytestmark = pytest.mark.workflow

HOSTILE = ('"; touch hacked; "', "$(touch hacked)", "`touch hacked`", "'; touch hacked; '", "x & touch hacked")


def test_texts_and_paths_are_not_run(checkout, tmp_path):
    """A dry run of everything and a real run of two rules."""
    base = tmp_path / "a b 'c' $(touch hacked) ; \"d\""
    base.mkdir()
    checkout = dataclasses.replace(
        checkout, code=checkout.code.rename(base / "code"), folder=checkout.folder.rename(base / "run")
    )
    path = checkout.code / "config" / "smoke.yaml"
    preset = yaml.safe_load(path.read_text())
    source = preset["data"]["sources"][0]
    assert source["paths"] == ["tests/fixtures/text/*.txt"]
    for number, hostile in enumerate(HOSTILE):
        (checkout.code / "tests" / "fixtures" / "text" / f"{hostile} {number}.txt").write_text("Words of a text. " * 40)
    preset["description"] = "\n".join((*HOSTILE, "{input} {params.settings}"))
    source["license"], source["text_column"] = HOSTILE[:2]
    preset["pretrained"]["models"][0]["title"] = HOSTILE[2]
    path.write_text(yaml.safe_dump(preset))
    braces = checkout.code / "tests" / "fixtures" / "text" / "{input}.txt"
    braces.write_text("Words of a text. " * 40)
    refused = checkout.run("-n")
    assert refused.returncode != 0
    assert "{input}.txt: Snakemake takes braces in the name of a file for wildcards" in refused.stdout + refused.stderr
    braces.unlink()
    planned = checkout.run("-n", "-p")
    assert planned.returncode == 0, planned.stderr[-3000:]
    made = checkout.run("results/smoke/data/documents/documents.json")
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-3000:]
    assert not list(tmp_path.rglob("hacked"))
    counts = json.loads((checkout.folder / "results/smoke/data/documents/documents.json").read_text())
    assert counts
