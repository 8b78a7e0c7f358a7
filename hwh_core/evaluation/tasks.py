"""lm-eval tasks over rows that lie in memory, built from lm-eval's own task files and ours."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import task_files
from .errors import EvaluationError
from .rows import Row, TaskRows, task_spec

if TYPE_CHECKING:
    from lm_eval.api.task import Task

HELD_OUT_TASK = "held_out_articles"
HELD_OUT_METRICS = ("word_perplexity", "bits_per_byte")


def task_config(name: str) -> dict[str, Any]:
    """The configuration of a task: the YAML file of the installed lm-eval, or ours, with functions resolved.

    The one file is read directly, since lm-eval's index of all tasks takes longer to build than a small evaluation.
    """
    import lm_eval
    from lm_eval.tasks._yaml_loader import load_yaml

    spec = task_spec(name)
    path = (task_files.FOLDER if spec.own else Path(lm_eval.__file__).parent / "tasks") / spec.yaml
    if not path.is_file():
        raise EvaluationError(f"task {name}: {path} does not exist; lm-eval 0.4.13 is needed (requirements/)")
    config = load_yaml(path, resolve_func=True)
    if config.get("task") != name:
        raise EvaluationError(f"task {name}: {path} defines the task {config.get('task')!r}; lm-eval 0.4.13 is needed")
    config.pop("tag", None)
    return config


def hub_source(name: str) -> tuple[str, str | None, str]:
    """Repository, configuration and split of the data set that the task file names."""
    config, split = task_config(name), task_spec(name).split
    if "class" in config:
        return config["class"].DATASET_PATH, config["class"].DATASET_NAME, split
    return config["dataset_path"], config.get("dataset_name"), split


def _build(config: dict[str, Any], split: str, rows: list[Row]) -> Task:
    """A task over ``rows``. They are handed over in memory: a data set built from a JSON file would go through a
    cache on disk, and its reader turns texts that look like dates into dates."""
    from datasets import Dataset, DatasetDict, disable_progress_bars
    from lm_eval.api.task import ConfigurableTask

    disable_progress_bars()
    dataset = DatasetDict({split: Dataset.from_list(rows)})
    if "class" in config:
        return _build_from_class(config["class"], config["task"], dataset)
    config = {**config, "custom_dataset": lambda **_: dataset, "num_fewshot": 0}
    config.update({"training_split": None, "validation_split": None, "test_split": None, f"{split}_split": split})
    logger = logging.getLogger("lm_eval.api.task")
    level = logger.level
    # It warns that custom data sets take arguments, which ours does not.
    logger.setLevel(logging.ERROR)
    try:
        task = ConfigurableTask(config=config)
    finally:
        logger.setLevel(level)
    # lm-eval makes the rows anew from the data set whenever it counts, reads or names them.
    rows_made = task.eval_docs
    setattr(task, f"{split}_docs", lambda: rows_made)
    return task


def _build_from_class(cls: type[Task], name: str, dataset: Any) -> Task:
    """A task that lm-eval defines as a class, over rows in place of its download."""
    task = type(cls.__name__, (cls,), {"download": lambda self, *_, **__: setattr(self, "dataset", dataset)})()
    task.set_config(key="task", value=name)
    task.set_config(key="num_fewshot", value=0)
    # squad_completion takes these from its configuration, where lm-eval 0.4.13 has put 256 tokens up to a blank line by
    # then; its own code and the two other tasks say 48 tokens up to the end of the line.
    task.set_config(key="generation_kwargs", value={"until": ["\n"], "max_gen_toks": 48, "do_sample": False})
    return task


def _first_odd(rows: Sequence[Row]) -> tuple[int, str]:
    """Number of the first row that makes no table with those before it, and what Arrow says of it; one must be."""
    from datasets import Dataset
    from pyarrow import ArrowException

    said, least, most = "", 1, len(rows)
    while least < most:
        middle = (least + most) // 2
        try:
            Dataset.from_list(list(rows[:middle]))
            least = middle + 1
        except ArrowException as error:
            said, most = str(error).splitlines()[0], middle
    return least - 1, said


def build_task(rows: TaskRows) -> Task:
    """The task over the given rows, zero-shot.

    Raises :class:`EvaluationError` for rows that are no table: a field that is a number here and a text there.
    """
    from pyarrow import ArrowException

    name = rows.spec.name
    try:
        return _build(task_config(name), rows.spec.split, rows.rows)
    except ArrowException as error:
        number, said = _first_odd(rows.rows)
        raise EvaluationError(
            f"task {name}, {rows.labels[number]}: a field is of another type than in the rows before it "
            f"({said or str(error).splitlines()[0]}); write every field in one type in all rows"
        ) from None


def held_out_task(documents: list[Row]) -> Task:
    """Word perplexity on held-out articles through the same engine; words are counted in the raw text."""
    config = {
        "task": HELD_OUT_TASK,
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "text",
        "metric_list": [
            {"metric": "word_perplexity", "aggregation": "weighted_perplexity", "higher_is_better": False},
            {"metric": "bits_per_byte", "aggregation": "bits_per_byte", "higher_is_better": False},
        ],
        "metadata": {"version": 1.0},
    }
    return _build(config, "test", [{"text": document["text"]} for document in documents])
