"""Rows of the hub are read at one commit: the preset's, or the one that the first fetch recorded."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote

import pytest

from hwh_core.config import ConfigError, load_preset, validate_preset
from hwh_core.evaluation import hub_rows
from hwh_core.evaluation.errors import EvaluationError
from hwh_core.evaluation.rows import ESSAYS, read_rows

ROOT = Path(hub_rows.__file__).resolve().parents[2]
REPOSITORY = "allenai/winogrande"
FIRST, SECOND, THIRD = "a" * 40, "b" * 40, "c" * 40


@pytest.fixture
def hub(monkeypatch, rows_folder):
    """A hub whose newest commit of a data set is ``hub.newest``; ``hub.asked`` is what was read from it."""
    import datasets
    import huggingface_hub

    class Hub:
        newest: ClassVar[dict[str, str]] = {REPOSITORY: FIRST, "allenai/ai2_arc": THIRD}
        looked_up: ClassVar[list[str]] = []
        asked: ClassVar[list[tuple]] = []

        def dataset_info(self, repository):
            Hub.looked_up.append(repository)
            return type("Info", (), {"sha": Hub.newest[repository]})

    def load_dataset(repository, subset, *, split, revision):
        Hub.asked.append((repository, subset, split, revision))
        name = {"winogrande_xl": "winogrande", "ARC-Easy": "arc_easy", "ARC-Challenge": "arc_challenge"}[subset]
        return datasets.Dataset.from_list(read_rows(rows_folder / f"{name}.jsonl"))

    Hub.newest, Hub.looked_up, Hub.asked = dict(Hub.newest), [], []
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return Hub


def test_rows_are_read_as_the_task_files_name_them(hub, tmp_path, rows_folder):
    record = hub_rows.record_of(tmp_path / "rows")
    ((name, rows, note),) = hub_rows.rows_from_hub(["winogrande"], {}, record)
    assert hub.asked == [(REPOSITORY, "winogrande_xl", "validation", FIRST)]
    assert (name, rows) == ("winogrande", read_rows(rows_folder / "winogrande.jsonl"))
    assert note == f"{REPOSITORY} at {FIRST}"
    assert record == tmp_path / "rows.revisions.json"
    assert json.loads(record.read_text()) == {REPOSITORY: FIRST}


def test_the_first_commit_is_kept_when_the_hub_goes_on(hub, tmp_path):
    record = tmp_path / "rows.revisions.json"
    list(hub_rows.rows_from_hub(["winogrande"], {}, record))
    hub.newest[REPOSITORY] = SECOND
    list(hub_rows.rows_from_hub(["winogrande", "arc_easy", "arc_challenge"], {}, record))
    assert [row[3] for row in hub.asked] == [FIRST, FIRST, THIRD, THIRD]
    assert hub.looked_up == [REPOSITORY, "allenai/ai2_arc"], "one data set is one commit, and a known one is not asked"
    assert json.loads(record.read_text()) == {REPOSITORY: FIRST, "allenai/ai2_arc": THIRD}


def test_a_commit_of_the_preset_needs_no_record(hub, tmp_path):
    record = tmp_path / "rows.revisions.json"
    ((_, _, note),) = hub_rows.rows_from_hub(["winogrande"], {REPOSITORY: SECOND}, record)
    assert note == f"{REPOSITORY} at {SECOND}"
    assert hub.looked_up == []
    assert not record.exists()


def test_commits_are_recorded_before_anything_is_read(hub, tmp_path):
    """A fetch that is killed goes on with the same commits."""
    record = tmp_path / "rows.revisions.json"
    next(hub_rows.rows_from_hub(["winogrande", "arc_easy"], {}, record))
    assert len(hub.asked) == 1
    assert json.loads(record.read_text()) == {REPOSITORY: FIRST, "allenai/ai2_arc": THIRD}


def test_another_commit_than_the_recorded_one_is_refused_by_name(hub, tmp_path):
    record = tmp_path / "rows.revisions.json"
    list(hub_rows.rows_from_hub(["winogrande"], {}, record))
    assert len(list(hub_rows.rows_from_hub(["winogrande"], {REPOSITORY: FIRST}, record))) == 1
    with pytest.raises(EvaluationError, match=f"{REPOSITORY} is pinned to {SECOND}, but .* read at {FIRST}"):
        list(hub_rows.rows_from_hub(["winogrande"], {REPOSITORY: SECOND}, record))
    assert len(hub.asked) == 2, "nothing is read at the other commit"


def test_a_commit_of_a_data_set_that_no_task_reads_is_refused(hub, tmp_path):
    with pytest.raises(EvaluationError, match="no task of this preset reads 'allenai/winograd'; expected one of alle"):
        list(hub_rows.rows_from_hub(["winogrande"], {"allenai/winograd": FIRST}, tmp_path / "r.json"))


@pytest.mark.parametrize("text", ["{", "[]", '{"allenai/winogrande": "main"}', '{"allenai/winogrande": 3}'])
def test_a_damaged_record_is_named(hub, tmp_path, text):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(EvaluationError, match=r"r\.json is no record of commits"):
        list(hub_rows.rows_from_hub(["winogrande"], {}, tmp_path / "r.json"))


def test_essays_have_a_data_set_too():
    assert hub_rows.source_of(ESSAYS) == ("baber/paul_graham_essays", None, "train")


def test_the_config_takes_commits_only(minimal_preset):
    minimal_preset["evaluation"]["rows"] = {"kind": "hub", "revisions": {REPOSITORY: "main"}}
    with pytest.raises(ConfigError, match=r"evaluation\.rows\.hub\.revisions\.allenai/winogrande"):
        validate_preset(minimal_preset, "my.yaml")
    minimal_preset["evaluation"]["rows"] = {"kind": "hub"}
    assert validate_preset(minimal_preset, "my.yaml").evaluation.rows.revisions == {}


def test_commits_of_the_paper_preset_are_of_data_sets_that_its_tasks_read():
    evaluation = load_preset(ROOT / "config" / "paper.yaml").evaluation
    read = {hub_rows.source_of(task.name)[0] for task in evaluation.tasks} | {hub_rows.ESSAYS_SOURCE[0]}
    assert set(evaluation.rows.revisions) < read
    assert {name for name in read if not name.startswith("hazyresearch/")} - set(evaluation.rows.revisions) == {
        hub_rows.ESSAYS_SOURCE[0]
    }


class HubHandler(BaseHTTPRequestHandler):
    """Answers as a hub does: the newest commit of a data set, and its files at every commit that it still has."""

    newest: ClassVar[str] = FIRST
    files: ClassVar[dict[str, dict[str, bytes]]] = {}

    def do_GET(self):
        path = unquote(self.path.partition("?")[0])
        api = f"/api/datasets/{REPOSITORY}"
        commit = next((known for known in self.files if f"/{known}" in path), None)
        if path == api or (commit and path == f"{api}/revision/{commit}"):
            found = {"id": REPOSITORY, "sha": commit or self.newest, "siblings": []}
            return self.answer(json.dumps(found).encode(), "application/json")
        files = self.files.get(commit, {})
        if commit and path == f"{api}/tree/{commit}":
            entries = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in files.items()
            ]
            return self.answer(json.dumps(entries).encode(), "application/json")
        data = files.get(path.removeprefix(f"/datasets/{REPOSITORY}/resolve/{commit}/"))
        if data is None:
            missing = "EntryNotFound" if commit else "RevisionNotFound"
            return self.answer(b"", status=404, **{"X-Error-Code": missing})
        more = {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'}
        return self.answer(data, **more)

    do_HEAD = do_GET

    def answer(self, data, kind="application/octet-stream", status=200, **head):
        self.send_response(status)
        for key, value in {**head, "Content-Type": kind, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *arguments):
        """No log: requests would fill the output of the tests."""


def test_rows_from_a_server_that_goes_on(tmp_path, rows_folder):
    """The program itself: the first fetch records the commit, the next one reads it though there is a newer one."""
    files = "  - split: validation\n    path: v.jsonl\n"
    front = f"---\nconfigs:\n- config_name: winogrande_xl\n  data_files:\n{files}---\n"
    lines = (rows_folder / "winogrande.jsonl").read_bytes().splitlines(keepends=True)
    HubHandler.files = {
        FIRST: {"README.md": front.encode(), "v.jsonl": b"".join(lines)},
        SECOND: {"README.md": front.encode(), "v.jsonl": b"".join(lines[1:])},
    }
    rows, record = tmp_path / "rows", tmp_path / "rows.revisions.json"

    def fetch(**given):
        settings = {"rows": {"kind": "hub", **given}, "tasks": ["winogrande"]}
        command = [sys.executable, str(ROOT / "scripts" / "extract_rows.py"), "--settings", json.dumps(settings)]
        return subprocess.run(
            [*command, "--output", str(rows)], capture_output=True, text=True, env={**os.environ, **online}
        )

    with ThreadingHTTPServer(("127.0.0.1", 0), HubHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        online = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path), "no_proxy": "*"}
        online |= {"HF_HUB_OFFLINE": "0", "HF_DATASETS_OFFLINE": "0"}
        online |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        HubHandler.newest = FIRST
        done = fetch()
        assert done.returncode == 0, done.stderr
        HubHandler.newest = SECOND
        (rows / "winogrande.jsonl").unlink()
        done = fetch()
        assert done.returncode == 0, done.stderr
        assert read_rows(rows / "winogrande.jsonl") == read_rows(rows_folder / "winogrande.jsonl")
        assert json.loads((rows / "rows.json").read_text())["tasks"]["winogrande"]["note"].endswith(FIRST)
        other = fetch(revisions={REPOSITORY: SECOND})
        assert other.returncode == 1
        assert other.stderr.splitlines()[-1].startswith(f"error: evaluation.rows.revisions: {REPOSITORY} is pinned to")
        record.unlink()
        done = fetch(revisions={REPOSITORY: SECOND})
        assert done.returncode == 0, done.stderr
        assert len(read_rows(rows / "winogrande.jsonl")) == len(lines) - 1
        gone = fetch(revisions={REPOSITORY: THIRD})
        server.shutdown()
    assert gone.returncode == 1
    assert gone.stderr.splitlines()[-1].startswith(f"error: {REPOSITORY} at commit {THIRD} cannot be read")
    assert "Traceback" not in gone.stderr
    assert len(read_rows(rows / "winogrande.jsonl")) == len(lines) - 1, "a failed fetch leaves the rows as they were"
