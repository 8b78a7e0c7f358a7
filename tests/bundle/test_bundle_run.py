"""A tiny bundle unpacked, run, stopped, packed and gone on from; Snakemake is a program that stands in for it."""

from __future__ import annotations

import base64
import json
import platform
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bundle import install, records, runner
from bundle.archive import Entry, write_archive
from bundle.errors import BundleError
from bundle.pack import write_program
from bundle.results import result_files
from bundle.stopping import run_until

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
RECORD = base64.urlsafe_b64encode(b"results/tiny/done").decode()
# Takes the place of `python -m snakemake --cores N targets --configfile file`: writes what a run would write.
STAND_IN = f"""#!/bin/sh
[ "$HF_HUB_OFFLINE$PIP_NO_INDEX" = 11 ] || exit 9
echo "$@" > arguments
mkdir -p results/tiny/model/checkpoints .snakemake/metadata
if [ -f results/tiny/done ]; then echo again > restored; exit 0; fi
echo weights > results/tiny/model/model.safetensors
echo step > results/tiny/model/checkpoints/step1
echo half > results/tiny/.half.tmp
echo changed > results/tiny/data/changed.csv
printf '{{"params": ["%s/scripts/train.py"]}}' "$PWD" > .snakemake/metadata/{RECORD}
case "$5" in
  fails) exit 1 ;;
  hangs) sleep 60 ;;
esac
echo done > results/tiny/done
"""


@pytest.fixture
def bundle(tree, tmp_path, monkeypatch):
    """The folder of a tiny bundle that is installed by a stand-in."""
    (tree / "results/tiny/data/changed.csv").write_text("as packed\n")
    name = base64.urlsafe_b64encode(b"results/tiny/data/tokens.bin").decode()
    record = tree / records.RECORDS / name
    record.parent.mkdir(parents=True)
    record.write_text('{"params": ["/where/it/was/packed/scripts/tokenize.py"]}')
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "python").write_text(STAND_IN)
    (programs / "python").chmod(0o755)
    monkeypatch.setattr(runner, "install", lambda *_, **__: programs)
    folder = tmp_path / "bundle"
    facts = {
        "kind": "bundle", "preset": "tiny", "config": "config/tiny.yaml", "commit": "c0ffee", "python": PYTHON,
        "platform": f"linux_{platform.machine()}", "requirements": [], "torch": [], "root": "/where/it/was/packed",
        "part_mib": 1,
    }  # fmt: skip
    names = [path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()]
    write_archive({name: Entry(tree / name) for name in names}, folder, "bundle", 2000, level=1, facts=facts)
    monkeypatch.setattr(sys, "argv", [str(folder / "run.pyz")])
    monkeypatch.chdir(tmp_path)
    # The signals of the process that runs the tests stay its own.
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return folder


def manifest_of(folder):
    return json.loads((folder / "results.json").read_text())


def test_a_finished_run_packs_what_it_made_without_weights(bundle, tmp_path):
    assert runner.main(["--target", "fig3", "--cores", "2", "--keep-folder", "work", "--output", "out"]) == 0
    work = tmp_path / "work"
    assert (work / "arguments").read_text() == "-m snakemake --cores 2 fig3 --configfile config/tiny.yaml\n"
    texts = [path.read_text() for path in (work / records.RECORDS).iterdir()]
    assert len(texts) == 2
    assert all(f"{work}/scripts/" in text and "/where/it/was/packed" not in text for text in texts)
    packed = manifest_of(tmp_path / "out")
    assert (packed["state"], packed["exit_code"], packed["targets"]) == ("finished", 0, ["fig3"])
    assert [name for name in packed["files"] if not name.startswith(".")] == [
        "results/tiny/data/changed.csv",
        "results/tiny/done",
    ]


def test_a_bundle_without_what_its_data_were_made_from_runs_by_times_alone(bundle, tmp_path):
    facts = json.loads((bundle / "bundle.json").read_text())
    (bundle / "bundle.json").write_text(json.dumps({**facts, "targets": ["fig3"]}))
    assert runner.main(["--target", "fig3", "--cores", "2", "--keep-folder", "work", "--output", "out"]) == 0
    given = (tmp_path / "work" / "arguments").read_text()
    assert given == "-m snakemake --cores 2 fig3 --rerun-triggers mtime --configfile config/tiny.yaml\n"


@pytest.mark.parametrize(("target", "more", "code", "state"), [
    ("fails", [], 1, "failed"),
    ("hangs", ["--minutes", "0.02", "--reserve-minutes", "0", "--grace-seconds", "0.1"], 124, "stopped"),
])  # fmt: skip
def test_a_run_that_did_not_finish_packs_weights_and_checkpoints(bundle, tmp_path, target, more, code, state):
    assert runner.main(["--target", target, "--keep-folder", "work", "--output", "out", *more]) == code
    packed = manifest_of(tmp_path / "out")
    assert packed["state"] == state
    assert {"results/tiny/model/model.safetensors", "results/tiny/model/checkpoints/step1"} <= set(packed["files"])
    assert "results/tiny/done" not in packed["files"]
    assert not any("half" in name or "tokens.bin" in name for name in packed["files"])


def test_weights_are_packed_or_left_as_asked(bundle, tmp_path):
    assert runner.main(["--target", "fig3", "--output", "with", "--with-weights"]) == 0
    assert "results/tiny/model/model.safetensors" in manifest_of(tmp_path / "with")["files"]
    assert runner.main(["--target", "fails", "--output", "without", "--without-weights"]) == 1
    assert not any("model/" in name for name in manifest_of(tmp_path / "without")["files"])


def test_results_are_restored_elsewhere_with_times_and_moved_records(bundle, tmp_path):
    assert runner.main(["--target", "fig3", "--keep-folder", "one", "--output", "out"]) == 0
    assert runner.main(["--target", "fig3", "--keep-folder", "two", "--output", "out", "--results", "out"]) == 0
    one, two = tmp_path / "one", tmp_path / "two"
    assert (two / "restored").is_file()
    assert (two / "results/tiny/data/changed.csv").read_text() == "changed\n"
    for name in ("results/tiny/done", "results/tiny/data/changed.csv", "results/tiny/data/tokens.bin"):
        assert (one / name).stat().st_mtime_ns == (two / name).stat().st_mtime_ns
    texts = [path.read_text() for path in (two / records.RECORDS).iterdir()]
    assert len(texts) == 2
    assert all(f"{two}/scripts/" in text for text in texts)
    # Given again, the run that went on packs all: the results of the first are not lost.
    assert "results/tiny/done" in manifest_of(tmp_path / "out")["files"]


def test_results_of_several_runs_come_together(bundle, tmp_path):
    """Each run makes the file that its target names, as machines that ran one chain each."""
    program = tmp_path / "programs/python"
    program.write_text(STAND_IN.replace("echo done > results/tiny/done", 'echo done > "results/tiny/$5"'))
    for target in ("one", "two"):
        assert runner.main(["--target", target, "--output", target]) == 0
    assert (
        runner.main(["--target", "three", "--keep-folder", "work", "--output", "out", "--results", "one", "two"]) == 0
    )
    assert {path.name for path in (tmp_path / "work/results/tiny").iterdir()} >= {"one", "two", "three"}
    assert {"results/tiny/one", "results/tiny/two"} <= set(manifest_of(tmp_path / "out")["files"])


def test_a_kept_folder_is_used_again_and_another_one_refused(bundle, tmp_path, capsys):
    assert runner.main(["--keep-folder", "work", "--output", "out"]) == 0
    (tmp_path / "work/program.sh").write_text("edited\n")
    assert runner.main(["--keep-folder", "work", "--output", "out"]) == 0
    assert (tmp_path / "work/program.sh").read_text() == "edited\n"
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    assert runner.main(["--keep-folder", "full", "--output", "out"]) == 1
    assert "full is not empty; name a new or empty --keep-folder" in capsys.readouterr().err


def test_wrong_results_parts_and_limits_are_told_in_one_sentence(bundle, tmp_path, capsys):
    assert runner.main(["--results", "nowhere"]) == 1
    assert "--results nowhere does not exist" in capsys.readouterr().err
    assert runner.main(["--minutes", "2"]) == 1
    assert "--minutes 2 leaves nothing beside --reserve-minutes 3" in capsys.readouterr().err
    shutil.copytree(bundle, tmp_path / "as-results")
    (tmp_path / "as-results/bundle.json").rename(tmp_path / "as-results/results.json")
    assert runner.main(["--results", "as-results", "--keep-folder", "w"]) == 1
    assert "these are bundle of preset 'tiny'" in capsys.readouterr().err
    (bundle / "bundle.part001").unlink()
    assert runner.main([]) == 1
    assert "bundle.part001 is missing" in capsys.readouterr().err


def test_other_python_and_processor_are_refused():
    manifest = {"python": "3.12", "platform": "manylinux_2_28_x86_64"}
    install.check_machine(manifest, (3, 12), "x86_64")
    with pytest.raises(BundleError, match=r"this is Python 3\.13, but the bundle was packed for Python 3\.12"):
        install.check_machine(manifest, (3, 13), "x86_64")
    with pytest.raises(BundleError, match="this machine is aarch64"):
        install.check_machine(manifest, (3, 12), "aarch64")
    install.check_torch("2.11.0+cu130")
    install.check_torch("2.14.1")
    for version in ("2.10.0", "2.15.0a0+git1"):
        with pytest.raises(BundleError, match=r"expected 2\.11 to 2\.14"):
            install.check_torch(version)


def test_a_stopped_job_saves_what_it_has_and_can_still_print(tmp_path):
    (tmp_path / "scripts").mkdir()
    # As a training does: at SIGTERM it prints through the pipe of its rule, saves, and leaves.
    (tmp_path / "scripts/job.py").write_text(
        "import signal, sys, time\n"
        "def save(*_):\n"
        "    print('saving', flush=True)\n"
        "    open('saved', 'a').write('once\\n')\n"
        "    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "open('started', 'w').close()\n"
        "time.sleep(60)\n"
    )
    # As Snakemake does: SIGTERM is noted, and the end of the running job is waited for.
    script = f"trap 'touch told' TERM; {sys.executable} {tmp_path}/scripts/job.py | tee log & wait; wait; exit 1"
    started = tmp_path / "started"
    more = {"seconds": None, "stopped": started.exists, "grace_seconds": 20}
    result = run_until(["bash", "-c", script], tmp_path, {"PATH": "/usr/bin:/bin"}, **more)
    assert result == (1, True)
    assert (tmp_path / "told").exists()
    assert (tmp_path / "saved").read_text() == "once\n"
    assert (tmp_path / "log").read_text() == "saving\n"


def test_a_run_that_ends_by_itself_is_not_called_stopped(tmp_path):
    more = {"seconds": 60, "stopped": lambda: False, "grace_seconds": 1}
    assert run_until(["bash", "-c", "exit 3"], tmp_path, {"PATH": "/usr/bin:/bin"}, **more) == (3, False)


def test_compiled_kernels_go_along_with_weights_only(tmp_path):
    cached = tmp_path / ".cache/triton/key/kernel.cubin"
    cached.parent.mkdir(parents=True)
    cached.touch()
    assert result_files(tmp_path, "tiny", {}, weights=True) == [".cache/triton/key/kernel.cubin"]
    assert result_files(tmp_path, "tiny", {}, weights=False) == []


def test_records_of_long_paths_are_found(tmp_path):
    output = "results/tiny/" + "deep/" * 60 + "file"
    text = base64.urlsafe_b64encode(output.encode()).decode()
    # Snakemake cuts names that are too long for a file system into folders marked by @.
    path = tmp_path / records.RECORDS / f"@{text[:200]}" / text[200:]
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    (tmp_path / records.RECORDS / "not base64!").touch()
    found = records.records_of(tmp_path, lambda name: name == output)
    assert found == [path.relative_to(tmp_path).as_posix()]


def test_the_program_beside_the_parts_needs_the_standard_library_only(tmp_path):
    write_program(tmp_path)
    command = ["bash", str(tmp_path / "run"), "--python", sys.executable]
    isolated = subprocess.run(
        [sys.executable, "-I", "-S", str(tmp_path / "run.pyz"), "--help"], capture_output=True, text=True, cwd=tmp_path
    )
    assert isolated.returncode == 0, isolated.stderr
    assert "--keep-folder" in isolated.stdout
    done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert done.returncode == 1
    assert f"{Path(tmp_path).resolve()}/bundle.json is missing" in done.stderr
    absent = subprocess.run(["bash", str(tmp_path / "run"), "--python=python0"], capture_output=True, text=True)
    assert absent.stderr == "error: --python python0 is no program on this machine\n"


def test_a_python_without_ensurepip_installs_with_its_own_pip(tmp_path, monkeypatch):
    """Stopped at the first package: what matters is by which pip it is installed, and into which environment."""
    commands = []

    def run(what, *command):
        commands.append(command)
        if what == "installing the packages":
            raise BundleError("far enough")
        return ""

    monkeypatch.setattr(install, "_run", run)
    found = install.importlib.util.find_spec
    manifest = {"requirements": ["a==1"], "torch": []}
    for own, expected in (
        (True, [str(tmp_path / ".venv/bin/python"), "-m", "pip"]),
        (False, [sys.executable, "-m", "pip", "--python", str(tmp_path / ".venv/bin/python")]),
    ):
        monkeypatch.setattr(
            install.importlib.util,
            "find_spec",
            lambda name, own=own: found(name) if own or name != "ensurepip" else None,
        )
        (tmp_path / "wheels").mkdir(exist_ok=True)
        commands.clear()
        with pytest.raises(BundleError, match="far enough"):
            install.install(tmp_path, manifest, system_torch=False, identity="x")
        assert ("--without-pip" in commands[0]) is not own
        assert list(commands[-1][: len(expected)]) == expected
