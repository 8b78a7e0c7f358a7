"""The README: links lead somewhere, commands exist and take the options shown, presets are the ones that are there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from hwh_core import cli
from hwh_core.config import load_preset

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {"README.md": README, "config/README.md": (ROOT / "config" / "README.md").read_text(encoding="utf-8")}
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def commands(program: str) -> list[str]:
    """Lines of code blocks and inline code that call a program, without comments and placeholders."""
    blocks = re.findall(r"^```sh\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    lines = [line.split(" #")[0].strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"(?<!`)`([^`\n]+)`(?!`)", README)
    return [line for line in lines if re.match(rf"(\w+=\S+ )*{program}( |$)", line)]


@pytest.mark.parametrize("page", sorted(PAGES))
def test_links_lead_to_files_of_the_repository(page):
    links = [link for link in re.findall(r"\]\(([^)]+)\)", PAGES[page]) if "://" not in link]
    missing = [link for link in links if not (ROOT / page).parent.joinpath(link.split("#")[0]).exists()]
    assert missing == []


def test_the_picture_is_a_real_result():
    picture = re.search(r"!\[[^\]]+\]\((results/reference/[^)]+\.png)\)", README)
    assert (ROOT / picture.group(1)).read_bytes().startswith(b"\x89PNG")
    assert (ROOT / picture.group(1)).with_suffix(".csv").is_file()


def test_paths_that_are_named_exist():
    named = set(re.findall(r"`((?:config|workflow|requirements|scripts|hwh_core|kernels|\.ci)/[\w./-]*)`", README))
    named |= set(re.findall(r"(?:--configfile|--workflow-profile) (\S+)", README))
    assert len(named) > 5
    assert [name for name in sorted(named) if not (ROOT / name.rstrip("`")).exists()] == []


def test_make_targets_exist():
    called = commands("make")
    assert len(called) > 6
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, flags=re.MULTILINE))
    for line in called:
        for word in shlex.split(line)[1:]:
            assert "=" in word or word in targets, line


def test_hwh_commands_take_the_options_shown():
    called = commands("hwh")
    assert {line.split()[1] for line in called} >= {"probe", "band", "report", "verify"}
    for line in called:
        words = shlex.split(line.replace("<preset>", "laptop"))[1:]
        assert cli.build_parser(words[0]).parse_args(words).command == words[0]


def test_every_preset_is_in_the_table():
    table = dict(re.findall(r"^\| `(\w+)` \| `config/(\w+\.yaml)`", README, flags=re.MULTILINE))
    assert table == {load_preset(path).preset: path.name for path in (ROOT / "config").glob("*.yaml")}


def test_settings_for_figures_name_rules_of_the_workflow():
    rules = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "workflow").rglob("*.smk"))
    rules += (ROOT / "workflow" / "Snakefile").read_text(encoding="utf-8")
    for target in ("fetch", "claims"):
        assert re.search(rf"^rule {target}:", rules, flags=re.MULTILINE)
        assert target in README
