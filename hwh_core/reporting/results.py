"""Reading the files of a preset's results; every file that was read is remembered for the manifest."""

from __future__ import annotations

import json
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ..config import (
    ControlledModel,
    HwHModel,
    HwHScale,
    NiahGrid,
    PresetConfig,
    PretrainedModel,
    load_preset,
    validate_preset,
)
from ..scripting import load_settings
from . import requirements
from .comparable import (
    SAME_FORM,
    SAME_PROMPTS,
    SAME_WINDOW,
    WINDOWED_METRICS,
    raise_if_columns_mixed,
    raise_if_mixed,
    raise_if_tasks_mixed,
    raise_if_truncated,
)
from .selection import ReportError
from .task_scores import RETRIEVAL, RETRIEVAL_LEFT

# Read as they stand: a version is no number.
TEXT_COLUMNS = {"rows_sha256": str, "prompts_sha256": str, "task_version": str}
HEADS_COLUMNS = {"layer", "head", "s_ret", "head_class", "qr", "ld", "rfis_total", "rpd_total"}
SCORES_COLUMNS = {
    "scale", "model", "architecture", "seed", "task", "metric", "value", "stderr", "n", "num_truncated", "rows_sha256",
    "task_version", "max_length", "add_bos",
}  # fmt: skip
CELLS_COLUMNS = {"scale", "model", "architecture", "seed", "length", "depth", "mean", "stderr", "n"}
CURVE_COLUMNS = {
    "rope_theta", "length_tokens", "step", "tokens", "loss_nats_per_token", "verdict", "peak_group", "peak_group_low",
    "peak_group_high", "predicted_group_covariance", "predicted_group_oka",
}  # fmt: skip
CURVE_MAPS_COLUMNS = {"step", "tokens", "layer", "frequency_group", "period_tokens", "metric", "value"}
INFLUENCE_KEYS = {
    "scale", "model", "architecture", "seed", "layer", "group", "head", "kind", "position_encoding"
}  # fmt: skip
INFLUENCE_COLUMNS = INFLUENCE_KEYS | {
    "median_distance_tokens", "share_within_128_tokens", "needle_share", "needle_share_stderr", "needle_share_if_even"
}  # fmt: skip
INFLUENCE_BINS_COLUMNS = INFLUENCE_KEYS | {"distance_from_tokens", "distance_below_tokens", "share"}
CAUSAL_COLUMNS = {
    "intervention", "kind", "measure", "places", "baseline", "change", "change_low", "change_high", "random_change",
    "random_low", "random_high", "over_random", "over_random_low", "over_random_high", "n_samples",
}  # fmt: skip
PROMPT_COLUMNS = {"length", "depth", "sample", "needle_distance", "correct"}


@dataclass(frozen=True)
class Maps:
    """RFIS and RPD of one model: float arrays [sample, layer, head, frequency] and what belongs to them.

    ``layer_inv_freq`` [layer, frequency] where layers rotate with frequencies of their own, else None.
    """

    rfis: np.ndarray
    rpd: np.ndarray
    rfis_initial: np.ndarray | None
    rpd_initial: np.ndarray | None
    inv_freq: np.ndarray
    null: np.ndarray
    sample_weight: np.ndarray
    layer_index: np.ndarray
    layer_inv_freq: np.ndarray | None = None

    @property
    def frequencies(self) -> np.ndarray:
        """Frequencies of every layer in radians a token: [layer, frequency]."""
        if self.layer_inv_freq is not None:
            return self.layer_inv_freq
        return np.tile(self.inv_freq, (len(self.layer_index), 1))

    def mean(self, name: str) -> np.ndarray:
        """Weighted mean over samples of ``rfis``, ``rpd`` or their ``_initial`` forms: [layer, head, frequency]."""
        values = getattr(self, name)
        if values is None:
            raise ReportError(f"the probe holds no {name}: probe the model at initialisation too")
        weight = self.sample_weight / self.sample_weight.sum()
        return np.einsum("n,nlhf->lhf", weight, values.astype(np.float64))

    def layer_mean(self, name: str) -> np.ndarray:
        """:meth:`mean`, averaged over the heads that each layer has: [layer, frequency]."""
        return np.nanmean(self.mean(name), axis=1)


def preset_of(config: str | Path | None, settings: str | None) -> PresetConfig:
    """The preset from a preset file, or from JSON text or a JSON file; exactly one of the two is given."""
    if config is not None:
        return load_preset(config)
    return validate_preset(load_settings(settings), "--settings")


class ResultFolder:
    """Files below ``root``, checked as they are read; every file that was read is remembered."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self._used: dict[str, None] = {}

    @property
    def used(self) -> list[Path]:
        """Paths of all files that were read so far."""
        return [self.root / name for name in self._used]

    def path(self, name: str) -> Path:
        """Path of a file that must exist, remembered as used. Raises :class:`ReportError` when it is absent."""
        path = self.root / name
        if not path.is_file():
            raise ReportError(f"{path} does not exist; make it with `snakemake {path}` and run this again")
        self._used[name] = None
        return path

    def json(self, name: str) -> dict:
        """A JSON object. Raises :class:`ReportError` when the file is absent or damaged."""
        path = self.path(name)
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ReportError(f"{path} is not valid JSON ({error}); delete it and run the workflow again") from None
        if not isinstance(value, dict):
            raise ReportError(f"{path} holds {type(value).__name__}, expected a JSON object; delete it and run again")
        return value

    def table(self, name: str, columns: set[str]) -> pd.DataFrame:
        """A CSV table that has at least ``columns``. Raises :class:`ReportError` otherwise."""
        path = self.path(name)
        try:
            frame = pd.read_csv(path, dtype=TEXT_COLUMNS)
        except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
            raise ReportError(f"{path} is no CSV table ({error}); delete it and run the workflow again") from None
        missing = sorted(columns - set(frame.columns))
        if missing:
            raise ReportError(f"{path} lacks the columns {missing}; it was made by another version: make it again")
        return frame

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """All arrays of an ``.npz`` file. Raises :class:`ReportError` when it is absent or damaged."""
        path = self.path(name)
        try:
            with np.load(path, allow_pickle=False) as store:
                return {key: store[key] for key in store.files}
        except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise ReportError(f"{path} is no readable file of arrays ({error}); delete it and run again") from None

    def maps(self, name: str) -> Maps:
        """Probe maps of an ``.npz`` file."""
        path, data = self.root / name, self.arrays(name)
        try:
            maps = Maps(
                rfis=data["rfis"],
                rpd=data["rpd"],
                rfis_initial=data.get("rfis_initial"),
                rpd_initial=data.get("rpd_initial"),
                inv_freq=data["inv_freq"].astype(np.float64),
                null=data["null"].astype(np.float64),
                sample_weight=data["sample_weight"].astype(np.float64),
                layer_index=data["layer_index"].astype(int),
                layer_inv_freq=data.get("layer_inv_freq"),
            )
        except KeyError as error:
            raise ReportError(
                f"{path} lacks the array {error}; it was made by another version: make it again"
            ) from None
        # A head that its layer does not have is NaN throughout; anything else must be finite.
        absent = np.isnan(maps.rpd).all(axis=(0, 3))[None, :, :, None]
        if not all((np.isfinite(values) | absent).all() for values in (maps.rfis, maps.rpd)):
            raise ReportError(f"{path} holds values that are not finite; probe the model again")
        return maps


class Results(ResultFolder):
    """Files below ``root`` (``results/<preset>``) as the reporting part reads them."""

    def __init__(self, root: str | Path, preset: PresetConfig) -> None:
        super().__init__(root)
        self.preset = preset

    # ------------------------------------------------------------------ by model

    def band(self, model: ControlledModel) -> dict:
        """band.json of a controlled model."""
        return self.json(requirements.band_file(model))

    def controlled_maps(self, model: ControlledModel, factor: float = 1.0) -> Maps:
        """Probe maps of a controlled model at ``factor`` times its training length."""
        return self.maps(requirements.controlled_probe_file(model, factor))

    def curve(self, model: ControlledModel) -> pd.DataFrame:
        """curve.csv of a controlled model: one row a step, ascending."""
        return self.table(requirements.curve_file(model), CURVE_COLUMNS)

    def curve_maps(self, model: ControlledModel) -> pd.DataFrame:
        """curve_maps.csv of a controlled model: one row a step, layer, frequency group and metric."""
        return self.table(requirements.curve_maps_file(model), CURVE_MAPS_COLUMNS)

    def pretrained_maps(self, model: PretrainedModel) -> Maps:
        """Probe maps of a pretrained model."""
        return self.maps(f"pretrained/{model.name}/probe.npz")

    def heads(self, model: PretrainedModel) -> pd.DataFrame:
        """heads.csv of a pretrained model: one row a head."""
        return self.table(f"pretrained/{model.name}/heads.csv", HEADS_COLUMNS)

    def bands(self, model: PretrainedModel) -> dict:
        """bands.json of a pretrained model."""
        return self.json(f"pretrained/{model.name}/bands.json")

    def behavior(self, model: PretrainedModel) -> dict[str, np.ndarray]:
        """behavior.npz of a pretrained model: ``qr`` [sample, layer, head] and the arrays beside it."""
        return self.arrays(f"pretrained/{model.name}/behavior.npz")

    def norms(self, model: PretrainedModel) -> dict[str, np.ndarray]:
        """norms.npz of a pretrained model: ``q_norm`` and ``k_norm`` [sample, layer, head, frequency] and more."""
        return self.arrays(f"pretrained/{model.name}/norms.npz")

    def causal(self, model: PretrainedModel) -> pd.DataFrame:
        """causal_summary.csv of a pretrained model: one row an intervention and measure."""
        return self.table(f"pretrained/{model.name}/causal_summary.csv", CAUSAL_COLUMNS)

    def _hwh(self, scale: HwHScale, models: list[HwHModel], file: str, columns: set[str]) -> pd.DataFrame:
        frames = [self.table(f"hwh/{scale.name}/{model.name}/{file}", columns) for model in models]
        return pd.concat(frames, ignore_index=True)

    def scores(self, scale: HwHScale, models: list[HwHModel]) -> pd.DataFrame:
        """Task scores of several models, one below the other; each task was run on the same things in all of them.

        Raises :class:`ReportError` when rows or version of a task, or whether texts begin with a beginning token,
        differ between models or are not recorded, and so for the window of a perplexity of whole texts; when different
        tasks would fill one column; and for a score of which prompts were truncated.
        """
        frame = self._hwh(scale, models, "scores.csv", SCORES_COLUMNS)
        where = f"scale {scale.name!r}"
        raise_if_tasks_mixed(frame, where)
        raise_if_columns_mixed(frame, (*RETRIEVAL, *RETRIEVAL_LEFT), where)
        for task, rows in frame.groupby("task"):
            raise_if_truncated(rows, f"task {task!r} of {where}")
            raise_if_mixed(rows[rows["metric"].isin(WINDOWED_METRICS)], SAME_WINDOW, f"task {task!r} of {where}")
        return frame

    def cells(self, scale: HwHScale, models: list[HwHModel]) -> pd.DataFrame:
        """Needle grid cells of several models, one below the other.

        Raises :class:`ReportError` when the models were asked other prompts than one another, or truncated ones.
        """
        return self._cells(scale, models, "niah_cells.csv")

    def additional_cells(self, scale: HwHScale, models: list[HwHModel], grid: NiahGrid) -> pd.DataFrame:
        """The same of one of the additional needle grids."""
        return self._cells(scale, models, requirements.additional_cells_file(grid))

    def _cells(self, scale: HwHScale, models: list[HwHModel], name: str) -> pd.DataFrame:
        frame = self._hwh(scale, models, name, CELLS_COLUMNS)
        for same in (SAME_PROMPTS, SAME_FORM):
            raise_if_mixed(frame, same, f"{name} of scale {scale.name!r}")
        if "num_truncated" in frame:  # as with checksums, older grids do not record it
            raise_if_truncated(frame.dropna(subset="num_truncated"), f"{name} of scale {scale.name!r}")
        return frame

    def head_influence(self, scale: HwHScale, models: list[HwHModel]) -> pd.DataFrame:
        """What the heads of several models read, one row a head."""
        return self._hwh(scale, models, requirements.HEAD_INFLUENCE, INFLUENCE_COLUMNS)

    def head_influence_bins(self, scale: HwHScale, models: list[HwHModel]) -> pd.DataFrame:
        """Influence by distance of the heads of several models, one row a head and bin."""
        return self._hwh(scale, models, requirements.HEAD_INFLUENCE_BINS, INFLUENCE_BINS_COLUMNS)

    def rope_heads(self, scale: HwHScale, model: HwHModel) -> dict:
        """Description of RFIS and RPD of the heads of a model that rotate, with their band."""
        return self.json(f"hwh/{scale.name}/{model.name}/{requirements.ROPE_HEADS}")

    def prompts(self, scale: HwHScale, models: list[HwHModel]) -> pd.DataFrame:
        """Needle prompts of several models, one row a prompt."""
        frame = self._hwh(scale, models, "niah.csv", PROMPT_COLUMNS | {"architecture", "seed", "model"})
        return frame.assign(correct=frame["correct"].astype(float))
