"""The dry pass counts every window of every step, finds repetitions, and runs at the paper's size."""

import json

import numpy as np
import pytest

from hwh_core import cli
from hwh_core.data.dry_pass import dry_pass
from hwh_core.data.loader import BatchLoader
from hwh_core.data.store import DOCUMENT, TokenStore


@pytest.fixture
def store(data):
    return TokenStore.open(data.store)


def test_no_window_comes_twice_within_an_epoch(store):
    loader = BatchLoader(store, 16, 4, seed=1)
    steps = 2 * loader.num_windows // 4 + 1
    found = dry_pass(loader, steps)
    assert found.repeated == 0
    assert found.tokens == steps * 64
    assert found.epochs == pytest.approx(steps * 4 / loader.num_windows)
    # The last step began the third epoch, of which it saw as many windows as were left of it.
    assert found.left == 3 * loader.num_windows - steps * 4


@pytest.mark.parametrize("repeat", ["within a step", "over steps"])
def test_a_repetition_is_counted(store, monkeypatch, repeat):
    loader = BatchLoader(store, 16, 4, seed=1)
    order = loader.windows

    def faulty(step):
        windows = order(step).copy()
        if repeat == "within a step" and step == 2:
            windows[1] = windows[0]
        if repeat == "over steps" and step == 3:
            windows[0] = order(1)[2]
        return windows

    monkeypatch.setattr(loader, "windows", faulty)
    assert dry_pass(loader, 5).repeated == 1


def test_the_papers_size_needs_no_index(tmp_path):
    """100 billion tokens (a file with a hole in place of text): steps are drawn from all of it, none twice."""
    tokens = 100_000_000_000
    (tmp_path / "tokens.bin").touch()
    with open(tmp_path / "tokens.bin", "r+b") as stream:
        stream.truncate(2 * tokens)
    np.save(tmp_path / "documents.npy", np.zeros(2, dtype=DOCUMENT))
    index = {"format": "hwh-token-store", "version": 1, "dtype": "<u2", "tokens": tokens, "documents": 1}
    index |= {"sources": ["text"], "vocab_size": 32000, "eos_token_id": 0, "tokenizer_fingerprint": "", "sha256": ""}
    (tmp_path / "index.json").write_text(json.dumps(index))
    loader = BatchLoader(TokenStore.open(tmp_path), 2048, 256, seed=42)
    found = dry_pass(loader, 1000)
    assert (found.windows, found.repeated) == (48_828_124, 0)
    windows = np.concatenate([loader.windows(step) for step in range(190_000, 190_050)])
    assert windows.min() < 0.01 * found.windows
    assert windows.max() > 0.99 * found.windows
    assert loader.batch(190_000).shape == (256, 2049)


def test_command(data, capsys):
    arguments = ["batches", str(data.store), "--length", "16", "--tokens-per-step", "64", "--seed", "1"]
    with pytest.raises(SystemExit) as ended:
        cli.main([*arguments, "--steps", "3", "--one-epoch"])
    assert ended.value.code == 0
    assert "came twice within an epoch: 0;" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        cli.main([*arguments, "--steps", "500", "--one-epoch"])
    assert ended.value.code == 1
    assert "add text or lower the steps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"--tokens-per-step": 65},
            "--tokens-per-step: 65 is no multiple of --length 16, which a training needs; give 64 or 80",
        ),
        ({"--tokens-per-step": 9}, "--tokens-per-step: 9 is no multiple of --length 16"),
        ({"--length": 0}, "--length: 0 is not a positive number"),
        ({"--steps": 10**9}, "add text or lower the steps to at most"),
    ],
)
def test_what_does_not_go_together_is_told_before_anything_is_counted(data, capsys, monkeypatch, changes, told):
    monkeypatch.setattr("hwh_core.data.dry_pass.dry_pass", lambda *arguments: pytest.fail("batches were counted"))
    options = {"--length": 16, "--tokens-per-step": 64, "--seed": 1, "--steps": 3} | changes
    with pytest.raises(SystemExit) as ended:
        cli.main(
            ["batches", str(data.store), "--one-epoch", *map(str, (part for pair in options.items() for part in pair))]
        )
    assert ended.value.code == 1
    assert told in capsys.readouterr().err


def test_steps_up_to_the_end_of_the_text_are_counted(data, store, capsys):
    """The number that a refusal names is one that fits, and the next one does not."""
    most = BatchLoader(store, 16, 4, seed=1).num_windows // 4
    arguments = ["batches", str(data.store), "--length", "16", "--tokens-per-step", "64", "--seed", "1", "--one-epoch"]
    codes = []
    for steps in (most, most + 1):
        with pytest.raises(SystemExit) as ended:
            cli.main([*arguments, "--steps", str(steps)])
        codes.append(ended.value.code)
    assert codes == [0, 1]
    assert f"lower the steps to at most {most}" in capsys.readouterr().err
