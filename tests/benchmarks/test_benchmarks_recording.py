"""What a benchmark that is cut off keeps, how parts become a whole, and which parts are refused."""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace

import pytest

from benchmarks import paper, parallel, recording, train
from benchmarks.recording import Kept, Kind, command_again
from benchmarks.train_plan import full_plan, quick_plan
from hwh_core.scripting import UserError

LINE = "python -m benchmarks.some"


def figure(name, value=1.0, store="a"):
    return {"id": name, "value": value, "unit": "1", "against": None, "sizes": {"store_sha256": store}}


def ids(path):
    return [figure["id"] for figure in json.loads(path.read_text())["figures"]]


def kind(*wanted):
    return Kind("some", ("store_sha256",), complete=lambda found: {*wanted} <= {figure["id"] for figure in found})


def test_a_second_run_goes_on_with_the_part_of_the_first(tmp_path):
    whole, part = tmp_path / "some.json", tmp_path / "some_part.json"
    first = Kept(kind("a", "b"), f"{LINE} --only a", tmp_path, fresh=False)
    first.add([figure("a"), figure("c")])
    assert ids(part) == ["a", "c"], "without its end"
    second = Kept(kind("a", "b"), f"{LINE} --only b", tmp_path, fresh=False, sizes={"store_sha256": "a"})
    second.add([figure("b"), figure("c", 2.0)])
    assert not whole.exists()
    assert second.end() == whole
    assert not part.exists()
    content = json.loads(whole.read_text())
    assert {figure["id"]: figure["value"] for figure in content["figures"]} == {"a": 1.0, "b": 1.0, "c": 2.0}
    assert content["command"] == f"{LINE} --only a; {LINE} --only b"


def test_a_run_of_all_cases_begins_anew_and_leaves_the_last_whole_until_its_end(tmp_path):
    whole, part = tmp_path / "some.json", tmp_path / "some_part.json"
    whole.write_text("the last")
    part.write_text(json.dumps(recording.content_of([figure("a", store="other")], LINE)))
    kept = Kept(kind("a", "b"), LINE, tmp_path, fresh=True, sizes={"store_sha256": "a"})
    kept.add([figure("b")])
    assert (ids(part), whole.read_text()) == (["b"], "the last")
    assert kept.end() == part, "a case is missing"
    assert kept.end(whole=True) == whole


@pytest.mark.parametrize("fresh", [True, False])
def test_a_named_file_is_only_half_full_where_that_was_asked_for(tmp_path, fresh):
    named = tmp_path / "A.json"
    kept = Kept(kind("a", "b"), LINE, named, fresh=fresh)
    kept.add([figure("a")])
    assert named.exists() is not fresh
    assert (tmp_path / "A_part.json").exists() is fresh
    kept.add([figure("b")])
    assert kept.end() == named
    assert [path.name for path in tmp_path.glob("*.json")] == ["A.json"]


@pytest.mark.parametrize("damage", ["card", "versions", "store_sha256"])
def test_what_does_not_go_with_the_part_is_refused_before_anything_is_measured(tmp_path, damage):
    part = tmp_path / "some_part.json"
    content = recording.content_of([figure("a", store="other" if damage == "store_sha256" else "a")], LINE)
    if damage != "store_sha256":
        content[damage] = {"python": "2"}
    part.write_text(json.dumps(content))
    with pytest.raises(UserError, match=f"this run has another {damage} than {part};.*, or move {part} away"):
        Kept(kind("a", "b"), LINE, tmp_path, fresh=False, sizes={"store_sha256": "a"})
    with pytest.raises(UserError, match=f"another {damage} than"):
        recording.joined([("A", content), ("B", recording.content_of([figure("b")], LINE))], ["store_sha256"])
    part.write_text("{")
    with pytest.raises(UserError, match="expected a result file"):
        Kept(kind("a", "b"), LINE, tmp_path, fresh=False)


def test_a_figure_of_another_day_says_so_in_a_joined_result(tmp_path):
    first, second = (recording.content_of([figure(name)], LINE) for name in "ab")
    content = recording.joined([("A", first | {"date": "2026-01-02"}), ("B", second | {"date": "2026-01-03"})])
    assert content["date"] == "2026-01-03"
    assert [entry.get("date") for entry in content["figures"]] == ["2026-01-02", None]
    again = recording.joined(
        [("C", content), ("D", recording.content_of([figure("c")], LINE) | {"date": "2026-01-04"})]
    )
    assert [entry.get("date") for entry in again["figures"]] == ["2026-01-02", "2026-01-03", None]


def test_groups_of_figures_are_kept_one_by_one(tmp_path):
    def groups():
        yield [figure("a")]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recording.record_each("some", groups(), LINE, tmp_path)
    assert ids(tmp_path / "some_part.json") == ["a"]
    assert recording.record_each("some", ([figure(name)] for name in "ab"), LINE, tmp_path) == [
        figure("a"), figure("b"),
    ]  # fmt: skip
    assert [path.name for path in tmp_path.glob("*.json")] == ["some.json"]


@pytest.fixture
def cases_cut_off(monkeypatch):
    """Cases of benchmarks.paper that take no time; the run is cut off in one that is put into the set."""
    cut = set()

    def measured(case, *rest):
        if case.name in cut:
            raise KeyboardInterrupt
        curve = [10.0 - step / 10 for step in range(27)]
        return {"tokens_per_second": 1.0, "rows": 1, "vocab_size": max(512, case.vocab_size)} | {
            "mfu": None, "peak_memory_bytes": None, "loss_curve": curve, "step_seconds": 1.0,
        }  # fmt: skip

    monkeypatch.setattr(paper, "run_process", measured)
    return cut


def run_paper(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["paper", "--quick", *map(str, arguments)])
    return paper.main()


def test_paper_keeps_the_cases_of_a_run_that_is_cut_off(tmp_path, monkeypatch, cases_cut_off):
    names = [case.name for case in paper.paper_plan(quick=True)]
    cases_cut_off.add(names[-1])
    with pytest.raises(KeyboardInterrupt):
        run_paper(monkeypatch, "--output", tmp_path)
    part = tmp_path / "paper_part.json"
    assert [name.removesuffix("_loss_fall") for name in ids(part)[1::2]] == [f"paper.{name}" for name in names[:-1]]
    cases_cut_off.clear()
    assert run_paper(monkeypatch, "--only", names[-1], "--output", tmp_path) == 0
    assert not part.exists()
    assert len(ids(tmp_path / "paper.json")) == 2 * len(names)


def test_paper_joins_parts_of_one_store_alone(tmp_path, monkeypatch, cases_cut_off, capsys):
    names = [case.name for case in paper.paper_plan(quick=True)]
    files = [tmp_path / f"{name}.json" for name in names]
    for name, path in zip(names, files, strict=True):
        assert run_paper(monkeypatch, "--only", f"^{name}$", "--output", path) == 0
    assert run_paper(monkeypatch, "--join", *files[:-1], "--output", tmp_path) == 0
    assert not (tmp_path / "paper.json").exists()
    assert run_paper(monkeypatch, "--join", *files, "--output", tmp_path) == 0
    assert len(ids(tmp_path / "paper.json")) == 2 * len(names)
    content = json.loads(files[0].read_text())
    files[0].write_text(json.dumps(content).replace(content["figures"][0]["sizes"]["store_sha256"], "0"))
    assert run_paper(monkeypatch, "--join", *files, "--output", tmp_path / "other") == 1
    assert f"error: --join: {files[1]} has another store_sha256 than {files[0]}" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_models_of_the_papers_size_whatever_the_text(tmp_path, monkeypatch, cases_cut_off, capsys):
    cases = {case.name: case for case in paper.paper_plan(quick=False)}
    assert {case.vocab_size for case in cases.values()} == {32_000}
    assert paper.case_on(cases["380m_hwh_std"], 16_384) == cases["380m_hwh_std"]
    assert paper.case_on(cases["380m_hwh_std"], 50_000).vocab_size == 50_000
    entries = {"many": 32_001, "enough": 32_000}
    monkeypatch.setattr(
        paper.TokenStore, "open", lambda folder: SimpleNamespace(sha256="0", vocab_size=entries[folder.name])
    )
    for name in entries:
        options = ["--store", tmp_path / name, "--only", "380m_gdn", "--output", tmp_path / f"{name}.json"]
        monkeypatch.setattr(sys, "argv", ["paper", *map(str, options)])
        assert paper.main() == (name == "many")
    assert f"error: --store: {tmp_path / 'many'} has a vocabulary of 32,001 entries" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["enough.json"]


def test_comparisons_are_made_of_cases_that_ran_apart():
    results = {}
    for name, speed in (("380m_2048_hwh_std", 98.0), ("380m_2048_transformer", 100.0)):
        case = next(case for case in full_plan() if case.name == name)
        result = {"tokens_per_second": speed, "step_seconds": 1.0, "spread_seconds": 0.0, "mfu": 0.4, "rows": 1}
        results[name] = train.figures_of(case, result)
    whole = train.with_comparisons([figure for figures in results.values() for figure in figures])
    values = {figure["id"]: figure["value"] for figure in whole}
    assert values["train.380m_2048_hwh_std_over_transformer"] == 0.98
    assert values["train.380m_2048_transformer_mfu"] == 0.4
    assert train.with_comparisons(whole) == whole
    assert len(whole) == 4


def test_train_keeps_the_cases_of_a_run_that_is_cut_off(tmp_path, monkeypatch):
    def measured(case, *rest):
        if case.name == last:
            # The others are through by then; results of a pool come in any order.
            deadline = time.monotonic() + 30
            while not part.exists() or len(ids(part)) < len(names) - 1:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            raise KeyboardInterrupt
        if case.kind == "agreement":
            return {"differences": {"control": 0.1}}
        return {"tokens_per_second": 1.0, "step_seconds": 1.0, "spread_seconds": 0.0, "mfu": None, "rows": 1}

    names, part = [case.name for case in quick_plan()], tmp_path / "train_part.json"
    last = names[-1]
    monkeypatch.setattr(train, "run_case", measured)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(sys, "argv", ["train", "--quick", "--output", str(tmp_path)])
    with pytest.raises(KeyboardInterrupt):
        train.main()
    assert len(ids(part)) == len(names) - 1
    own, last = last, ""
    monkeypatch.setattr(sys, "argv", ["train", "--quick", "--only", own, "--output", str(tmp_path)])
    assert train.main() == 0
    assert len(ids(tmp_path / "train.json")) == len(names)
    assert not part.exists()


def test_a_quick_run_leaves_the_measurements_that_are_kept(tmp_path, monkeypatch):
    def measured(case, *_):
        if case.kind == "agreement":
            return {"differences": {"control": 0.1}}
        return {"tokens_per_second": 1.0, "step_seconds": 1.0, "spread_seconds": 0.0, "mfu": None, "rows": 1}

    kept, quick = tmp_path / "results", tmp_path / "results" / "quick"
    kept.mkdir()
    for name in ("train.json", "train_part.json"):
        (kept / name).write_text("of a card")
    monkeypatch.setattr(recording, "RESULTS", kept)
    monkeypatch.setattr(recording, "QUICK_RESULTS", quick)
    monkeypatch.setattr(train, "run_case", measured)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(sys, "argv", ["train", "--quick"])
    assert train.main() == 0
    assert {path.name: path.read_text() for path in kept.glob("*.json")} == {
        "train.json": "of a card",
        "train_part.json": "of a card",
    }
    assert [path.name for path in quick.iterdir()] == ["train.json"]


def test_every_program_with_tiny_sizes_has_them_written_apart():
    texts = {path.name: path.read_text() for path in recording.RESULTS.parent.glob("*.py")}
    options = ('"--quick", action', '"--output", type=Path, help=')
    programs = [name for name, text in texts.items() if all(option in text for option in options)]
    assert "train.py" in programs
    assert [name for name in programs if "output_of(" not in texts[name]] == []
    assert recording.output_of(None, True) == recording.QUICK_RESULTS
    assert recording.output_of(None, False) is None
    assert recording.output_of(recording.RESULTS, True) == recording.RESULTS


def test_parallel_keeps_what_it_has(tmp_path, monkeypatch):
    def start(way, *rest):
        if way == "fsdp":
            raise KeyboardInterrupt
        found = {"step_seconds": 2.0, "spread_seconds": 0.0, "rows": 4, "processes": 1 if way == "alone" else 2}
        return found | {"tokens_per_second": 8.0, "mfu": None}

    monkeypatch.setattr(parallel, "start", start)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(KeyboardInterrupt):
        parallel.main(["--quick", "--output", str(tmp_path)])
    assert ids(tmp_path / "parallel_part.json") == [
        "paper.ddp2_efficiency", "paper.alone_tokens_per_second", "paper.ddp2_tokens_per_second",
    ]  # fmt: skip
    assert not (tmp_path / "parallel.json").exists()


def test_a_command_names_folders_and_says_nothing_of_where_the_result_went():
    arguments = ["--store", "/data/x", "--only", "a|b c", "--output", "/tmp/y.json", "--steps", "3", "--work=/w"]
    assert command_again("paper", arguments, {"/data/x": "STORE", "/w": "WORK", "None": "STORE"}) == (
        "python -m benchmarks.paper --store STORE --only 'a|b c' --steps 3 --work=WORK"
    )
    assert command_again("paper", ["--output=/tmp/y.json"], {}) == "python -m benchmarks.paper"
