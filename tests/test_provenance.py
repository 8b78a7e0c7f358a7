"""Code hashes: an edit changes the hash of what runs it and of nothing else, a comment of nothing; and manifests."""

from __future__ import annotations

import ast
import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwh_core import provenance
from hwh_core.files import read_json, sha256_of

FILES = {
    "hwh_core/__init__.py": '"""The package."""\n',
    "hwh_core/base.py": '"""Base."""\n\n\ndef value():\n    """One."""\n    return 1\n',
    "hwh_core/middle.py": "from .base import value\n\n\ndef twice():\n    return 2 * value()\n",
    "hwh_core/lazy.py": "LAZY = 1\n",
    "hwh_core/unused.py": "UNUSED = 1\n",
    "hwh_core/sub/page.txt": "A page of words.\n",
    "hwh_core/sub/other.txt": "No module loads this.\n",
    "hwh_core/sub/__init__.py": "from ..base import value\n",
    "hwh_core/sub/leaf.py": 'import math\n\nDATA_FILES = ("page*",)\nLEAF = math.pi\n',
    "kernels/__init__.py": "",
    "kernels/fast.py": "FAST = 1\n",
    "scripts/one.py": (
        "from hwh_core.middle import twice\n\n\ndef main():\n    from hwh_core import lazy\n    print(twice(), lazy)\n"
    ),
    "scripts/two.py": "import hwh_core.sub.leaf\nfrom hwh_kernels import fast\n\nprint(hwh_core.sub.leaf.LEAF, fast)\n",
    "scripts/three.py": "print(3)\n",
}
SCRIPTS = ("scripts/one.py", "scripts/two.py", "scripts/three.py")
USERS = {
    "hwh_core/__init__.py": {"scripts/one.py", "scripts/two.py"},
    "hwh_core/base.py": {"scripts/one.py", "scripts/two.py"},
    "hwh_core/middle.py": {"scripts/one.py"},
    "hwh_core/lazy.py": {"scripts/one.py"},
    "hwh_core/unused.py": set(),
    "hwh_core/sub/__init__.py": {"scripts/two.py"},
    "hwh_core/sub/leaf.py": {"scripts/two.py"},
    "hwh_core/sub/page.txt": {"scripts/two.py"},
    "hwh_core/sub/other.txt": set(),
    "kernels/fast.py": {"scripts/two.py"},
    "scripts/one.py": {"scripts/one.py"},
    "scripts/three.py": {"scripts/three.py"},
}


def forget() -> None:
    """Drop what the process remembers of sources, as a new process would."""
    remembered = (provenance._tree, provenance.syntax_hash, provenance._imports, provenance.code_hash)
    for function in (*remembered, provenance.equivalents):
        function.cache_clear()


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A small project in place of this one."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setattr(
        provenance, "PACKAGES", {"hwh_core": tmp_path / "hwh_core", "hwh_kernels": tmp_path / "kernels"}
    )
    forget()
    yield tmp_path
    forget()


def hashes() -> dict[str, str]:
    forget()
    return {script: provenance.code_hash(script) for script in SCRIPTS}


@pytest.mark.parametrize("edited", sorted(USERS))
def test_edit_changes_the_hash_of_what_runs_it_and_of_nothing_else(project, edited):
    before = hashes()
    with open(project / edited, "a", encoding="utf-8") as stream:
        stream.write("EDITED = True\n")
    after = hashes()
    assert {script for script in SCRIPTS if before[script] != after[script]} == USERS[edited]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    return 1\n", "    # why one\n    return 1\n"),
        ("    return 1\n", "    return 1  # one\n"),
        ('    """One."""\n', '    """Another sentence\n    over two lines."""\n'),
        ('    """One."""\n', ""),
        ('"""Base."""\n', '"""Other words."""\n\n\n\n'),
        ("def value():\n", "def value(\n):\n"),
        ("return 1", "return (1)"),
    ],
)
def test_comment_docstring_and_layout_keep_every_hash(project, old, new):
    before = hashes()
    source = project / "hwh_core" / "base.py"
    text = source.read_text(encoding="utf-8")
    assert old in text
    source.write_text(text.replace(old, new), encoding="utf-8")
    assert hashes() == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return 1", "return 2"),
        ("return 1", "return 1.0"),
        ("return 1", "return True"),
        ("def value", "async def value"),
        ("    return 1", '    text = """One."""\n    return 1'),
    ],
)
def test_any_change_of_meaning_changes_the_hash(project, old, new):
    before = hashes()
    source = project / "hwh_core" / "base.py"
    source.write_text(source.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    assert hashes()["scripts/one.py"] != before["scripts/one.py"]


def test_restored_code_has_its_old_hash(project):
    before = hashes()
    source = project / "hwh_core" / "base.py"
    text = source.read_text(encoding="utf-8")
    source.write_text("VALUE = 3\n" + text, encoding="utf-8")
    assert hashes() != before
    source.write_text(text, encoding="utf-8")
    assert hashes() == before


def test_every_data_file_is_named_by_the_module_that_loads_it():
    """Or, as task files of the evaluation, by the rule that reruns for it: an edit there must not go unseen."""
    package = provenance.ROOT / "hwh_core"
    named = {module: provenance.data_files(module) for module in package.rglob("*.py")}
    for module, found in named.items():
        assert found or "DATA_FILES" not in module.read_text(encoding="utf-8") or module.name == "provenance.py", module
    rules = "".join(path.read_text(encoding="utf-8") for path in (provenance.ROOT / "workflow/rules").glob("*.smk"))
    by_rules = [provenance.ROOT.glob(pattern) for pattern in re.findall(r"parts\(\"([^\"]+)\"\)", rules)]
    seen = {file for found in (*named.values(), *by_rules) for file in found}
    files = {path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert files
    # What says which code counts as which is no part of any result.
    assert files - {provenance.EQUIVALENTS} <= seen


@pytest.mark.parametrize(
    ("edited", "program"),
    [("templates/claims.md.jinja", "make_claims"), ("templates/table.md.jinja", "make_table"),
     ("templates/atlas.js", "make_atlas"), ("hwh.mplstyle", "draw_figure")],
)  # fmt: skip
def test_templates_belong_to_the_programs_that_fill_them(monkeypatch, edited, program):
    before = {name: provenance.code_hash(f"scripts/{name}.py") for name in ("train", "evaluate", program)}
    other = provenance.ROOT / "hwh_core/reporting" / edited
    sha256 = provenance.sha256_of
    monkeypatch.setattr(provenance, "sha256_of", lambda path: "edited" if path == other else sha256(path))
    forget()
    after = {name: provenance.code_hash(f"scripts/{name}.py") for name in before}
    forget()
    assert {name for name in before if before[name] != after[name]} == {program}


def test_hashes_do_not_depend_on_fields_that_newer_versions_of_python_add(monkeypatch):
    """Python 3.12 gave functions and classes ``type_params``, which are empty in code that 3.11 reads."""
    forget()
    before = provenance.code_hash("scripts/train.py")
    for kind in (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
        fields = [name for name in kind._fields if name != "type_params"]
        monkeypatch.setattr(kind, "_fields", (*fields, "type_params", "new_in_a_later_version"))
        monkeypatch.setattr(kind, "type_params", [], raising=False)
        monkeypatch.setattr(kind, "new_in_a_later_version", None, raising=False)
    forget()
    assert provenance.code_hash("scripts/train.py") == before
    monkeypatch.undo()
    forget()


@pytest.mark.parametrize("edited", ["hwh_core/data/retrieval_mix.py", "hwh_core/retrieval_split.py"])
def test_code_of_the_retrieval_mix_belongs_to_trainings_with_one(monkeypatch, edited):
    def of(mix) -> str:
        forget()
        return provenance.program_hash("scripts/train.py", {"retrieval_mix": mix} if mix else {"model": {}})

    plain, mixed = of(None), of({"sequence_share": 0.5})
    own = provenance.syntax_hash
    other = provenance.ROOT / edited

    class Edited:
        cache_clear = staticmethod(own.cache_clear)

        def __call__(self, path):
            return "edited" if path == other else own(path)

    monkeypatch.setattr(provenance, "syntax_hash", Edited())
    assert of(None) == plain
    assert of({"sequence_share": 0.5}) != mixed
    monkeypatch.undo()
    forget()


def test_only_narrows_the_hash(project):
    def narrowed() -> str:
        forget()
        return provenance.code_hash("scripts/one.py", only=("scripts/one.py", "hwh_core/middle.py"))

    before = narrowed()
    (project / "hwh_core" / "base.py").write_text("def value():\n    return 5\n", encoding="utf-8")
    assert narrowed() == before
    (project / "hwh_core" / "middle.py").write_text("def twice():\n    return 2\n", encoding="utf-8")
    assert narrowed() != before


def test_closure_of_the_real_project_knows_its_own_modules():
    verification = provenance.ROOT / "hwh_core" / "verification.py"
    closure = {path.name for path in provenance.import_closure(verification, ends=provenance.PLUMBING)}
    assert {"verification.py", "preset.py", "files.py", "provenance.py", "scripting.py", "__init__.py"} <= closure
    # The schema of presets asks which architectures there are; what a program computes does not depend on it.
    assert not {"rope.py", "heads.py", "architectures.py"} & closure
    assert "heads.py" in {path.name for path in provenance.import_closure(verification)}


@pytest.mark.parametrize("prefix", provenance.PLUMBING)
def test_plumbing_names_what_exists(prefix):
    """A file that is moved or cut in parts must not begin to rerun results for want of its new name here."""
    path = provenance.ROOT / prefix
    assert path.is_dir() if prefix.endswith("/") else path.is_file()


@given(st.text(st.characters(codec="utf-8", exclude_characters="\r\n\x0c\x00"), max_size=40))
def test_no_comment_changes_the_hash(text):
    folder = Path(provenance.ROOT) / "hwh_core"
    source = (folder / "files.py").read_text(encoding="utf-8")
    tree = provenance._DropDocstrings()
    plain = provenance.ast.dump(tree.visit(provenance.ast.parse(source)))
    commented = provenance.ast.dump(tree.visit(provenance.ast.parse(f"{source}\n# {text}\n")))
    assert plain == commented


def test_manifest_records_inputs_settings_code_and_machine(tmp_path):
    source, artifact = tmp_path / "input.txt", tmp_path / "result.csv"
    source.write_text("1", encoding="utf-8")
    artifact.write_text("2", encoding="utf-8")
    settings = {"band": {"prominence": 0.15}}
    path = provenance.write_manifest(
        artifact, inputs=[source], settings=settings, seed=7, started=time.time() - 2, extra={"backend": "torch"},
        script="requirements/update.py",
    )  # fmt: skip
    manifest = read_json(path)
    assert path.name == "result.csv.manifest.json"
    assert manifest["artifact"] == "result.csv"
    assert manifest["sha256"] == sha256_of(artifact)
    assert manifest["inputs"] == {str(source): sha256_of(source)}
    assert manifest["settings"] == settings
    assert manifest["script"] == "requirements/update.py"
    assert manifest["code_hash"] == provenance.code_hash("requirements/update.py")
    assert manifest["seed"] == 7
    assert manifest["backend"] == "torch"
    assert 2 <= manifest["wall_seconds"] < 60
    assert manifest["versions"]["numpy"]
    assert manifest["machine"]["cores"] >= 1


def test_a_clock_that_is_set_back_makes_no_negative_duration(tmp_path, monkeypatch):
    artifact = tmp_path / "result.csv"
    artifact.write_text("2", encoding="utf-8")
    started, now = time.time() - 2, time.time
    monkeypatch.setattr(provenance.time, "time", lambda: now() - 3600)
    path = provenance.write_manifest(artifact, inputs=[], settings={}, started=started, script="requirements/update.py")
    assert 2 <= read_json(path)["wall_seconds"] < 60


def test_manifest_of_a_program_outside_the_project_has_no_code_hash(tmp_path):
    artifact = tmp_path / "result.csv"
    artifact.write_text("2", encoding="utf-8")
    outside = tmp_path / "mine.py"
    outside.write_text("print()", encoding="utf-8")
    manifest = read_json(
        provenance.write_manifest(artifact, inputs=[], settings={}, started=time.time(), script=str(outside))
    )
    assert manifest["script"] == "mine.py"
    assert manifest["code_hash"] is None


def declare(project, monkeypatch, **entry) -> None:
    """Declare one file of the small project equivalent to an earlier form."""
    path = project / "equivalent_code.json"
    path.write_text(json.dumps([{"why": "faster", "shown_by": "a test", **entry}]), encoding="utf-8")
    monkeypatch.setattr(provenance, "EQUIVALENTS", path)


def test_a_declared_edit_counts_as_what_was_before_and_the_next_edit_does_not(project, monkeypatch):
    before, file = hashes(), project / "hwh_core" / "base.py"
    was = provenance.syntax_hash(file)
    file.write_text("def value():\n    return 2 + 1\n", encoding="utf-8")
    assert hashes()["scripts/one.py"] != before["scripts/one.py"]
    declare(project, monkeypatch, file="hwh_core/base.py", was=was, now=provenance.syntax_hash(file))
    assert hashes() == before
    assert provenance.standing_in("scripts/one.py") == {"hwh_core/base.py"}
    assert provenance.standing_in("scripts/three.py") == set()
    # Of this file alone: another with the same text is not meant.
    other = project / "hwh_core" / "middle.py"
    kept = other.read_text(encoding="utf-8")
    other.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    assert hashes()["scripts/one.py"] != before["scripts/one.py"]
    other.write_text(kept, encoding="utf-8")
    file.write_text("def value():\n    return 4\n", encoding="utf-8")
    assert hashes()["scripts/one.py"] != before["scripts/one.py"]
    assert provenance.standing_in("scripts/one.py") == set()


def test_a_declaration_for_some_programs_leaves_the_others_as_they_are(project, monkeypatch):
    before, file = hashes(), project / "hwh_core" / "base.py"
    was = provenance.syntax_hash(file)
    file.write_text("def value():\n    return 2 + 1\n", encoding="utf-8")
    undeclared = hashes()
    changed = [script for script in SCRIPTS if undeclared[script] != before[script]]
    one, other = changed[:2]
    both = provenance.code_hash(one, other)
    now = provenance.syntax_hash(file)
    declare(project, monkeypatch, file="hwh_core/base.py", was=was, now=now, only_for=[one])
    assert hashes() == undeclared | {one: before[one]}
    assert provenance.standing_in(one) == {"hwh_core/base.py"}
    assert provenance.standing_in(other) == set()
    assert provenance.code_hash(one, other) == both, "a hash of several programs needs a declaration for all of them"
    declare(project, monkeypatch, file="hwh_core/base.py", was=was, now=now, only_for=[one, other])
    assert hashes() == undeclared | {one: before[one], other: before[other]}
    assert provenance.code_hash(one, other) != both


def test_a_file_that_was_not_there_can_be_declared(project, monkeypatch):
    before, file = hashes(), project / "hwh_core" / "base.py"
    was, added = provenance.syntax_hash(file), project / "hwh_core" / "added.py"
    added.write_text("VALUE = 3\n", encoding="utf-8")
    file.write_text("from .added import VALUE\n\n\ndef value():\n    return VALUE\n", encoding="utf-8")
    forget()
    path = project / "equivalent_code.json"
    entries = [("hwh_core/base.py", was, file), ("hwh_core/added.py", None, added)]
    path.write_text(
        json.dumps(
            [
                {"file": name, "was": old, "now": provenance.syntax_hash(new), "why": "split", "shown_by": "a test"}
                for name, old, new in entries
            ]
        ),
        encoding="utf-8",
    )
    monkeypatch.setattr(provenance, "EQUIVALENTS", path)
    assert hashes() == before


def test_every_declaration_is_of_the_present_code_and_names_a_test_that_is_there():
    forget()
    entries = provenance.equivalents()
    assert len({entry.file for entry in entries}) == len(entries)
    for entry in entries:
        assert provenance.syntax_hash(provenance.ROOT / entry.file) == entry.now != entry.was, (
            f"{entry.file} was edited since it was declared equivalent: show again that no result changes and write "
            "its present syntax_hash as `now`, or remove the entry"
        )
        file, _, name = entry.shown_by.partition("::")
        assert f"def {name}(" in (provenance.ROOT / file).read_text(encoding="utf-8")
        assert entry.why
        assert all((provenance.ROOT / program).is_file() for program in entry.only_for)
