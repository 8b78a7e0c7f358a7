"""Models of a hub: what a refusal, a cut connection or a wrong name ends in, and names without a commit."""

from __future__ import annotations

import json

import pytest
from mock_hub import COMMIT, mock_hub

SNAPSHOT = (
    "import sys; from hwh_core.scripting import run; from hwh_core.probes.pretrained import hub_snapshot; "
    "run(lambda: print(hub_snapshot(*sys.argv[1:])))"
)
ROWS = "import sys; from hwh_core.scripting import run; from hwh_core.probes.samples import {}; run(lambda: {})"
SMALL = ("--num-samples", 2, "--length", 64, "--queries", 8, "--windows", 8, "--window", 8, "--sinks", 1, 4)


def one_line(done) -> str:
    """The one sentence in which a program failed; downloads may have shown their progress."""
    assert done.returncode == 1, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return errors[0]


@pytest.fixture
def hub():
    weights = {"config.json": b"{}", "model.safetensors": bytes(20_000)}
    with mock_hub({"some/model": dict(weights), "some/gated": dict(weights)}) as server:
        server.gated.add("some/gated")
        yield server


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ("some/gated", COMMIT),
            ["some/gated at", "accept its licence on {hub}/some/gated", "a token in HF_TOKEN"],
        ),
        (("some/nothing", COMMIT), ["check the name", "private", "HF_TOKEN"]),
        (("some/model", COMMIT[::-1]), [COMMIT[::-1], "no such revision", "{hub}/some/model/commits/main"]),
        (("some/mo--del", COMMIT), ["some/mo--del", "malformed", "expected owner/name"]),
    ],
)
def test_a_refusal_of_the_hub_says_what_to_do(hub, tmp_path, arguments, told):
    line = one_line(hub.run(tmp_path, "-c", SNAPSHOT, *arguments))
    for words in told:
        assert words.format(hub=hub.address) in line


def test_without_network_and_without_a_copy(hub, tmp_path):
    line = one_line(hub.run(tmp_path, "-c", SNAPSHOT, "some/model", COMMIT, HF_HUB_OFFLINE="1"))
    assert "HF_HUB_OFFLINE=1 keeps it from the network" in line


@pytest.mark.parametrize("endpoint", ["hub.example", "ftp://hub.example"])
def test_an_endpoint_that_is_none_is_named(hub, tmp_path, endpoint):
    line = one_line(hub.run(tmp_path, "-c", SNAPSHOT, "some/model", COMMIT, HF_ENDPOINT=endpoint))
    assert "check HF_ENDPOINT" in line


def test_a_hub_that_does_not_answer_is_named(hub, tmp_path):
    line = one_line(hub.run(tmp_path, "-c", SNAPSHOT, "some/model", COMMIT, HF_ENDPOINT="http://127.0.0.1:1"))
    assert "some/model" in line
    assert "check network" in line


def test_a_download_that_is_cut_ends_in_a_sentence_and_goes_on(hub, tmp_path):
    hub.cut.add("model.safetensors")
    line = one_line(hub.run(tmp_path, "-c", SNAPSHOT, "some/model", COMMIT))
    assert "some/model" in line
    assert "the connection failed or was cut" in line
    assert "give the same command again" in line
    hub.cut.clear()
    hub.asked.clear()
    done = hub.run(tmp_path, "-c", SNAPSHOT, "some/model", COMMIT)
    assert done.returncode == 0, done.stderr
    assert not [path for path in hub.asked if path.startswith("GET") and path.endswith("config.json")]
    assert hub.asked


def test_a_name_without_commit_is_taken_at_the_newest_one(hub, random_llama, corpus, tmp_path):
    """Printed, recorded, and the same afterwards by its commit without network."""
    hub.models["some/llama"] = {path.name: path.read_bytes() for path in random_llama.iterdir()}
    text, out = tmp_path / "mine.txt", tmp_path / "out"
    text.write_text("\n".join(corpus.texts), encoding="utf-8")
    options = ("--samples", f"text:{text}", "--out", out, *SMALL)
    done = hub.run(tmp_path, "-m", "hwh_core.cli", "probe", "some/llama", *options)
    assert done.returncode == 0, done.stderr
    assert f"some/llama: taken at the newest commit of main, some/llama@{COMMIT}" in done.stdout
    manifest = json.loads((out / "probe.npz.manifest.json").read_text())
    assert manifest["settings"]["model"] == f"some/llama@{COMMIT}"
    pinned = f"some/llama@{COMMIT}"
    again = hub.run(tmp_path, "-m", "hwh_core.cli", "probe", pinned, *options, HF_HUB_OFFLINE="1")
    assert again.returncode == 0, again.stderr
    assert "holds this probe already" in again.stdout


@pytest.mark.parametrize(
    ("model", "offline", "told"),
    [
        ("some/nothing", "0", ["no such folder", "check the name", "HF_TOKEN"]),
        ("some/model@v9", "0", ["v9", "no such revision"]),
        ("some/model", "1", ["HF_HUB_OFFLINE=1", "some/model@<commit>", "/some/model/commits/main"]),
        ("some/model/folder", "0", ["no such folder or .gguf file", "owner/name@<commit>", "/owner/name/commits/main"]),
        ("some/mo--del", "0", ["malformed"]),
    ],
)
def test_names_that_the_hub_does_not_know(hub, tmp_path, model, offline, told):
    options = ("--samples", "ruler", "--out", tmp_path / "out")
    line = one_line(hub.run(tmp_path, "-m", "hwh_core.cli", "probe", model, *options, HF_HUB_OFFLINE=offline))
    for words in [model.partition("@")[0], *told]:
        assert words in line
    assert not (tmp_path / "out").exists()


def test_data_sets_of_the_hub_say_the_same(hub, tmp_path):
    """Samples and sources fetch single files: a refusal asks for the same there."""
    line = one_line(
        hub.run(tmp_path, "-c", ROWS.format("HUB_FILES, fetch_hub_file", "fetch_hub_file(HUB_FILES['nq'])"))
    )
    assert "sentence-transformers/natural-questions" in line
    assert "check the name, or, for a private one, give a token in HF_TOKEN" in line
