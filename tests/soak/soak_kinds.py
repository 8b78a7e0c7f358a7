"""What is killed: programs of the workflow on the smoke preset's sizes, and Snakemake itself, with what they leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hwh_core.config import load_preset
from hwh_core.files import sha256_of

ROOT = Path(__file__).resolve().parents[2]
PRESET = ROOT / "config" / "smoke.yaml"
MODEL, CONTROLLED = "hwh_std_s0", "theta1e4_L64_s0"


@dataclass(frozen=True)
class Kind:
    """One command that writes below a folder, and what of its results must not depend on kills."""

    name: str
    command: Callable[[Path], list[str]]
    result: Callable[[Path], dict[str, Any]]
    environment: dict[str, str] = field(default_factory=dict)
    # Kill one of the processes that the command started, not always the first one.
    with_children: bool = False
    # Its libraries take longer to load than it works: forked from a process that has them, it is killed at work.
    forked: bool = False


def program(name: str, settings: Any, **options: Path | list[Path]) -> list[str]:
    """Command line of a program in scripts/; an option may have several values."""
    command = [sys.executable, str(ROOT / "scripts" / f"{name}.py"), "--settings", json.dumps(settings)]
    for option, values in options.items():
        command += [f"--{option.replace('_', '-')}", *map(str, values if isinstance(values, list) else [values])]
    return command


def hashes(*names: str) -> Callable[[Path], dict[str, str]]:
    """A result: sha256 of these files or folders."""
    return lambda folder: {name: sha256_of(folder / name) for name in names}


def training_result(output: Path) -> dict[str, Any]:
    """Weights bit for bit and the losses of all steps."""
    weights = sorted(output.glob("**/*.safetensors"))
    rows = [json.loads(line) for line in (output / "train_log.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        "weights": {str(path.relative_to(output)): sha256_of(path) for path in weights},
        "log": [(row["step"], row["loss"], row["gradient_norm"]) for row in rows],
        "held_out_loss": json.loads((output / "metrics.json").read_text(encoding="utf-8"))["held_out_loss"],
    }


def arrays(path: Path) -> dict[str, str]:
    """Values of an .npz file."""
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name].tobytes().hex() for name in file.files}


def probe_result(folder: Path) -> dict[str, Any]:
    """All maps and scores of a probe."""
    return {name: arrays(folder / "probe" / f"{name}.npz") for name in ("probe", "behavior")}


def workflow_result(folder: Path) -> dict[str, Any]:
    """Weights and scores of one model of either family."""
    results = folder / "results" / "smoke"
    hybrid, controlled = results / "hwh" / "tiny" / MODEL, results / "controlled" / CONTROLLED
    return {
        "hybrid": training_result(hybrid),
        "controlled": training_result(controlled),
        "scores": sha256_of(hybrid / "scores.csv"),
        "needles": sha256_of(hybrid / "niah_cells.csv"),
        "band": sha256_of(controlled / "band.json"),
    }


class Workbench:
    """Inputs of all kinds, made once below ``folder`` by the programs themselves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.preset = load_preset(PRESET)
        self.scale = self.preset.hwh.scales[0]
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        folder.mkdir(parents=True, exist_ok=True)
        self._prepare()

    def _prepare(self) -> None:
        preset, at = self.preset, self.folder
        source, tokenizer = preset.data.sources[0], preset.tokenizers[0]
        data = preset.data.model_dump(mode="json", include={"minimum_bytes", "held_out_fraction"})
        documents = at / "documents"
        rows = {"rows": preset.evaluation.rows.model_dump(mode="json")}
        rows["tasks"] = [task.name for task in preset.evaluation.tasks]
        commands = [
            program("fetch_source", source.model_dump(mode="json"), output=at / "text.jsonl.zst"),
            program("build_documents", {**data, "seed": 0}, sources=[at / "text.jsonl.zst"], output=documents),
            program(
                "build_tokenizer", tokenizer.model_dump(mode="json"), documents=documents / "train.jsonl.zst",
                output=at / "tokenizer",
            ),
            *(self.tokenization(at, split) for split in ("train", "held_out")),
            program("extract_rows", rows, output=at / "rows"),
        ]  # fmt: skip
        for command in commands:
            subprocess.run(command, env=self.environment, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)

    def tokenization(self, goal: Path, split: str = "train") -> list[str]:
        """A token store."""
        text = self.folder / "documents" / f"{split}.jsonl.zst"
        return program(
            "tokenize_documents", {}, documents=text, tokenizer=self.folder / "tokenizer", output=goal / split
        )

    def training(self, folder: Path, steps: int = 24) -> list[str]:
        """A training that saves often, with snapshots."""
        scale = self.scale
        training = scale.training.model_dump(mode="json") | {"steps": steps, "checkpoint_every_steps": 3}
        model = {
            "architecture": "hwh_std", "shape": scale.shape.model_dump(mode="json"), "rope_theta": 1e4,
            "qk_norm": scale.qk_norm, "length": scale.length, "seed": 0,
        }  # fmt: skip
        settings = {"model": model, "training": training, "snapshot_steps": [4, steps // 2]}
        return program(
            "train", settings, store=self.folder / "train", held_out=self.folder / "held_out",
            tokenizer=self.folder / "tokenizer", output=folder / "out", checkpoints=folder / "out" / "checkpoints",
        )  # fmt: skip

    def evaluation(self, model: Path, folder: Path) -> list[str]:
        """Scores of a trained model on all tasks."""
        settings = {
            "scale": "tiny", "training_length": self.scale.length, "seed": 0,
            "model": {"name": MODEL, "architecture": "hwh_std", "seed": 0},
            "held_out_prose_source": self.preset.data.held_out_prose_source,
            "evaluation": self.preset.evaluation.model_dump(mode="json"),
        }  # fmt: skip
        return program(
            "evaluate", settings, model=model, rows=self.folder / "rows",
            documents=self.folder / "documents" / "held_out.jsonl.zst", output=folder / "scores.csv",
        )  # fmt: skip

    def probe(self, model: Path, folder: Path) -> list[str]:
        """RFIS and RPD by the command of a user."""
        text = sorted((ROOT / "tests" / "fixtures" / "text").glob("*.txt"))[0]
        command = [sys.executable, "-m", "hwh_core.cli", "probe", str(model), "--samples", f"text:{text}"]
        sizes = "--num-samples 4 --length 64 --queries 16 --windows 16 32 --window 32 --sinks 1 --num-sinks 1"
        return [*command, "--out", str(folder / "probe"), *sizes.split()]

    def package(self) -> tuple[dict[str, str], dict[str, Any]]:
        """Environment and settings of a download from a package index that lies on this disk."""
        index = self.folder / "index"
        index.mkdir(exist_ok=True)
        wheel = index / "soaktext-1.0-py3-none-any.whl"
        if not wheel.is_file():
            files = {f"soaktext/{number}.txt": f"Text {number}. " * 2000 for number in range(200)}
            files["soaktext-1.0.dist-info/METADATA"] = "Metadata-Version: 2.1\nName: soaktext\nVersion: 1.0\n"
            files["soaktext-1.0.dist-info/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            with zipfile.ZipFile(wheel, "w") as archive:
                for name, text in files.items():
                    archive.writestr(zipfile.ZipInfo(name), text)
        settings = {
            "kind": "pypi", "name": "soak", "package": "soaktext", "version": "1.0", "filename": wheel.name,
            "sha256": sha256_of(wheel), "members": ["soaktext/*.txt"], "format": "text", "license": "CC0-1.0",
        }  # fmt: skip
        return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}, settings

    def kinds(self, model: Path) -> list[Kind]:
        """The kinds that need no Snakemake; ``model`` is a trained model for those that measure."""
        index, package = self.package()
        return [
            Kind("training", self.training, lambda folder: training_result(folder / "out"), forked=True),
            Kind("evaluation", lambda folder: self.evaluation(model, folder), hashes("scores.csv"), forked=True),
            Kind("probe", lambda folder: self.probe(model, folder), probe_result, forked=True),
            Kind(
                "download",
                lambda at: program("fetch_source", package, downloads=at / "downloads", output=at / "text.jsonl.zst"),
                hashes("text.jsonl.zst", "downloads"),
                environment=index,
            ),
            Kind("tokenization", self.tokenization, hashes("train")),
        ]

    def large_kinds(self) -> list[Kind]:
        """Snakemake itself and a training of two processes."""
        return [
            Kind("workflow", self.workflow, workflow_result),
            Kind("two processes", self.two_processes, lambda at: training_result(at / "out"), with_children=True),
        ]

    def two_processes(self, folder: Path) -> list[str]:
        """The training by torchrun."""
        python, *training = self.training(folder, steps=16)
        return [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *training]

    def workflow(self, folder: Path) -> list[str]:
        """Snakemake: text, training, probe, band, scores."""
        results = "results/smoke"
        targets = [f"{results}/controlled/{CONTROLLED}/band.json"]
        targets += [f"{results}/hwh/tiny/{MODEL}/{name}.csv" for name in ("scores", "niah")]
        command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "workflow" / "Snakefile")]
        return [*command, "--directory", str(folder), "--cores", "2", *targets, "--configfile", str(PRESET)]
