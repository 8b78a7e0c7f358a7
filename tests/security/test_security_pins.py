"""What is fetched is pinned: no branch for a commit, no second line for pip, no option for git."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from hwh_core.config import ConfigError, validate_preset
from hwh_core.config.data import GitSource
from hwh_core.data.errors import DataError
from hwh_core.data.source_git import git_documents

COMMIT, SHA256 = "0" * 40, "0" * 64
PYPI = {
    "kind": "pypi", "name": "wheel", "package": "some-text", "version": "1.0", "filename": "some_text-1.0-any.whl",
    "sha256": SHA256, "members": ["*"], "license": "MIT",
}  # fmt: skip
HUB = {"kind": "hub", "name": "hub", "repository": "owner/data", "revision": COMMIT, "license": "MIT"}
GIT = {
    "kind": "git", "name": "git", "repository": "https://host/x.git", "commit": COMMIT, "pattern": "*",
    "manifest": "m.txt", "license": "MIT",
}  # fmt: skip
LINE = "1.0\n--index-url https://elsewhere"


def with_source(preset, source):
    preset["data"]["sources"].append(source)


def with_model(preset, source):
    preset["pretrained"]["models"] = [{"name": "m", "title": "M", "source": source}]


def with_tokenizer(preset, source):
    preset["tokenizers"].append(source)


MODEL = {key: HUB[key] for key in ("kind", "repository", "revision", "license")}
GGUF = {"kind": "gguf_wheel", "member": "m.gguf"} | {
    key: PYPI[key] for key in PYPI if key not in ("members", "name", "kind")
}
TOKENIZER = {key: HUB[key] for key in ("kind", "name", "repository", "revision")}


@pytest.mark.parametrize(
    ("add", "good", "key", "value"),
    [
        *((with_source, HUB, "revision", value) for value in ("main", "v1.0", COMMIT[:7], COMMIT.replace("0", "g"))),
        *((with_model, MODEL, "revision", value) for value in ("main", "refs/pr/1")),
        (with_tokenizer, TOKENIZER, "revision", "main"),
        (with_source, GIT, "commit", "HEAD"),
        (with_source, GIT, "repository", "--upload-pack=touch hacked"),
        (with_source, GIT, "repository", " -x"),
        *((with_source, PYPI, key, LINE) for key in ("package", "version", "filename")),
        (with_source, PYPI, "package", "--index-url=https://elsewhere"),
        (with_source, PYPI, "filename", "../outside.whl"),
        (with_source, PYPI, "sha256", SHA256[:12]),
        (with_model, GGUF, "version", LINE),
        *((with_model, MODEL, "repository", value) for value in ("../outside", "/etc", "owner/name/more", "-x")),
    ],
)  # fmt: skip
def test_other_pins_are_refused(minimal_preset, add, good, key, value):
    fine = copy.deepcopy(minimal_preset)
    add(fine, good)
    validate_preset(fine, "test")
    add(minimal_preset, good | {key: value})
    with pytest.raises(ConfigError, match=f"{key}.*pattern") as caught:
        validate_preset(minimal_preset, "test")
    assert ("40 hexadecimal digits of a commit, which stand on" in str(caught.value)) is (key in ("revision", "commit"))


def test_a_repository_is_no_option_of_git(tmp_path: Path):
    """Also where no schema stands before it: git takes it for an address, which leads nowhere."""
    (tmp_path / "m.txt").write_text(f"{SHA256}  a.txt\n")
    values = GIT | {"repository": f"--upload-pack=touch {tmp_path / 'hacked'};", "manifest": str(tmp_path / "m.txt")}
    source = GitSource.model_construct(**values)
    with pytest.raises(DataError, match="git fetch failed"):
        list(git_documents(source, tmp_path, tmp_path / "downloads"))
    assert not (tmp_path / "hacked").exists()
    assert not [path for path in (tmp_path / "downloads").iterdir() if not path.name.startswith(".")]
