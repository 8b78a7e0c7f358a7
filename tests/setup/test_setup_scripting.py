"""What the programs share: settings from text or file, errors as one line, the end of the workflow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from hwh_core.config import ConfigError
from hwh_core.files import OutputError
from hwh_core.scripting import UserError, load_settings, run


def test_settings_from_text_and_from_a_file(tmp_path):
    settings = {"model": {"seed": 3}, "name": "θ"}
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(settings), encoding="utf-8")
    assert load_settings(json.dumps(settings)) == settings
    assert load_settings(f"\n {json.dumps(settings)}") == settings
    assert load_settings(str(path)) == settings


@pytest.mark.parametrize("text", ["absent.json", "{", "{'a': 1}", '{"a": 1} 2'])
def test_bad_settings_are_named(text):
    with pytest.raises(UserError, match="--settings"):
        load_settings(text)


def test_settings_file_must_hold_an_object(tmp_path):
    path = tmp_path / "settings.json"
    path.write_text("[1]", encoding="utf-8")
    with pytest.raises(UserError, match="expected a JSON object"):
        load_settings(str(path))


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (UserError("key a is wrong; mend it"), "error: key a is wrong; mend it\n"),
        (ConfigError("my.yaml: key a"), "error: my.yaml: key a\n"),
        (
            OutputError(28, "cannot write x: No space left on device"),
            "error: cannot write x: No space left on device\n",
        ),
    ],
)
def test_project_errors_end_in_one_line(capsys, error, line):
    def main() -> None:
        raise error

    with pytest.raises(SystemExit) as caught:
        run(main)
    assert caught.value.code == 1
    assert capsys.readouterr() == ("", line)


@pytest.mark.parametrize("library", ["httpx", "httpx2", "requests.exceptions", "urllib3.exceptions", "hf_xet"])
def test_errors_of_http_libraries_end_in_one_line(capsys, library):
    """By the name of the library: not all of these are installed."""
    cut = type("ProtocolError", (Exception,), {"__module__": library})

    def main() -> None:
        raise cut("peer closed connection")

    with pytest.raises(SystemExit) as caught:
        run(main)
    assert caught.value.code == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: the hub: could not be read (ProtocolError: peer closed connection); the connection")
    assert err.count("\n") == 1


def test_a_mend_of_the_hub_takes_the_place_of_a_general_one(capsys):
    """And no message is changed whose error is not about the hub, or that ends in no reason and mend."""
    module = {"__module__": "huggingface_hub.errors"}
    base = type("HfHubHTTPError", (Exception,), module)
    gated = type("GatedRepoError", (base,), module | {"repo_id": "some/model"})

    def raising(cause: Exception, message: str):
        def main() -> None:
            try:
                raise cause
            except Exception:
                raise UserError(message) from None

        with pytest.raises(SystemExit):
            run(main)
        return capsys.readouterr().err

    general = "key: some/model cannot be read (403); check the network"
    told = raising(gated("403"), general)
    assert told.startswith("error: key: some/model cannot be read (403); it is gated: accept its licence on https://")
    assert "some/model, wait" in told
    assert "check the network" not in told
    assert raising(KeyError("x"), general) == f"error: {general}\n"
    assert raising(gated("403"), "another matter") == "error: another matter\n"


@pytest.mark.parametrize(
    "error",
    [
        KeyError("a bug"),
        # transformers' configs raise it: nothing was asked of a hub.
        type("StrictDataclassFieldValidationError", (Exception,), {"__module__": "huggingface_hub.errors"})("a bug"),
        RuntimeError("a bug"),
        FileNotFoundError("a bug"),
    ],
)
def test_unexpected_errors_keep_their_traceback(error):
    def main() -> None:
        raise error

    with pytest.raises(type(error), match="a bug"):
        run(main)


def test_what_the_hubs_own_code_raises_without_a_class_ends_in_one_line(capsys):
    """hf_xet raises RuntimeError into the file of huggingface_hub that called it."""
    scope = {"__name__": "huggingface_hub.file_download"}
    exec("def xet_get():\n    raise RuntimeError('Data processing error: CAS service error')", scope)
    with pytest.raises(SystemExit):
        run(scope["xet_get"])
    assert capsys.readouterr().err.startswith("error: the hub: could not be read (RuntimeError: Data processing error")


def test_job_ends_when_its_workflow_is_killed():
    job = textwrap.dedent("""
        import time
        from hwh_core.scripting import run
        def main():
            print("started", flush=True)
            time.sleep(120)
        run(main)
    """)
    workflow = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    child = subprocess.Popen(
        [sys.executable, "-c", job],
        env={**os.environ, "HWH_WORKFLOW_PID": str(workflow.pid)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout.readline() == "started\n"
        time.sleep(1)
        assert child.poll() is None
        workflow.send_signal(signal.SIGKILL)
        workflow.wait()
        _, message = child.communicate(timeout=30)
        assert child.returncode == -signal.SIGKILL
        assert f"the workflow process {workflow.pid} is gone" in message
    finally:
        for process in (workflow, child):
            if process.poll() is None:
                process.kill()
                process.wait()
