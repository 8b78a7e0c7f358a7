"""When retrieval emerges in a training: what a model saves a digit of planted values, from losses of two trainings.

A retrieval mix plants facts and takes them up again, as a question with its answer or as the fact itself once more. How
many digits come again so varies at random from batch to batch, and all models of one seed see the same batches. So the
difference of two models' losses, in nats a step, is regressed on these digits: the coefficient is what the model pays
more a digit than the other one, negative where it copies more. A digit drawn uniformly costs a model that does not copy
ln 10 = 2.30 nats, which is about what there is to save. Prose is the same for both, so that most of its spread is gone
from the difference. What a further digit displaces (a token of prose, and another for the digit in the fact) adds about
twice what the two models differ in a token of prose, some 0.1 nats. Models compared with the same one share its noise.

How it is estimated, and why:

- In windows of steps, each with a constant and a slope for every ``BLOCK_STEPS`` steps. Early in a training, and after
  spikes, the difference drifts by far more than a batch's digits are worth, and one line a window leaves most of that
  in the residuals (single_gpu at 35M, first of 11 windows: a standard error of 5.5 nats a digit with a line, 2.2 with
  blocks of 50 steps, which elsewhere cost up to 0.05). Differences of neighbouring steps also remove drift, but make
  neighbouring residuals dependent: ordinary errors would be too small by a factor of sqrt(3/2), and true ones larger by
  it where nothing drifts.
- With the numbers of pairs that are asked for and repeated. Copying saves nats on keys and wording too, and a pair of
  one kind more is a pair of the other less: without these, digits of one kind take credit for the words around them.
  What remains is the spread of the lengths of values; a mix whose values all have the same length tells nothing.
- Standard errors are ordinary ones from the residuals. Digits are drawn independently of the step and of all else in
  the batch, so neither unequal nor dependent residuals bias them: with the digits of other steps in place of the true
  ones (300 shifts, real logs), estimates over standard errors had a standard deviation of 0.90 to 1.03, and of 0.89
  to 1.04 with errors for unequal variances (HC2).
- Question and repeated digits joined, and both apart. Joined they vary more, and what is found is about copying at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

if TYPE_CHECKING:
    from .config import RetrievalMixConfig

NATS_A_DIGIT = math.log(10)
BLOCK_STEPS = 50
LEAST_WINDOW = 2 * BLOCK_STEPS
LEVEL = 0.95
# Starts of retrieval that are tried in a window.
GRID = 20
# What the digits of a window are: those of questions, those of repeated facts, all of them.
REGRESSORS = ("asked", "repeated", "both")


@dataclass(frozen=True)
class Planted:
    """What the batch of each step takes up again; int64 [steps, 2] each, column 0 asked for, column 1 repeated."""

    digits: np.ndarray
    pairs: np.ndarray


@dataclass(frozen=True)
class Estimate:
    """Nats a digit that a model pays more than the other one in the steps ``first_step`` to ``last_step`` (from 1)."""

    first_step: int
    last_step: int
    regressor: str
    nats_per_digit: float
    stderr: float
    n: int

    @property
    def interval(self) -> tuple[float, float]:
        """Ends of the 95% interval."""
        half = float(stats.norm.ppf(0.5 + LEVEL / 2)) * self.stderr
        return self.nats_per_digit - half, self.nats_per_digit + half


@dataclass(frozen=True)
class Onset:
    """From which step on a model saves, ``earliest`` to ``latest`` with 95%, and what it saves a digit from then on."""

    step: int
    earliest: int
    latest: int
    nats_per_digit: float
    stderr: float


def count_planted(
    mix: RetrievalMixConfig,
    words: list[str],
    seed: int,
    steps: int,
    batch_size: int,
    watch: Callable[[range], Iterable[int]] = iter,
) -> Planted:
    """Digits and pairs that are taken up again in the first ``steps`` batches of ``batch_size`` sequences.

    ``words`` are those of the store (:func:`hwh_core.data.retrieval_mix.key_words`); ``watch`` may show the progress.
    No text is read and nothing is encoded: some 3,000 steps of 8 sequences a second.
    """
    from .data.retrieval_mix import MIX_VERSION, Draws, draw_pairs, is_mixed

    digits, pairs = np.zeros((steps, 2), dtype=np.int64), np.zeros((steps, 2), dtype=np.int64)
    for step in watch(range(steps)):
        numbers = step * batch_size + np.arange(batch_size, dtype=np.int64)
        for number in numbers[is_mixed(numbers, mix.sequence_share)]:
            for pair in draw_pairs(mix, words, Draws(MIX_VERSION, seed, int(number))):
                digits[step, int(pair.repeated)] += len(pair.value)
                pairs[step, int(pair.repeated)] += 1
    return Planted(digits, pairs)


def window_edges(steps: int, windows: int) -> np.ndarray:
    """int64 [windows + 1]: ends of equal windows of steps, up to one step. Raises ValueError for windows too short."""
    if windows < 1 or steps // windows < LEAST_WINDOW:
        most = steps // LEAST_WINDOW
        raise ValueError(
            f"{windows} windows of {steps} steps: expected a number of at least 1 that leaves {LEAST_WINDOW} steps to "
            f"each, " + (f"at most {most}" if most else f"and so few steps leave none; train at least {LEAST_WINDOW}")
        )
    return np.linspace(0, steps, windows + 1).astype(np.int64)


def without_drift(columns: np.ndarray) -> tuple[np.ndarray, int]:
    """Columns [steps, k] less the constant and slope of each block, and how many numbers were fitted for a column."""
    edges = np.linspace(0, len(columns), max(1, round(len(columns) / BLOCK_STEPS)) + 1).astype(np.int64)
    left = np.empty_like(columns)
    for start, end in pairwise(edges):
        places = np.arange(end - start) - (end - start - 1) / 2
        block = columns[start:end] - columns[start:end].mean(axis=0)
        left[start:end] = block - np.outer(places, places @ block) / (places @ places)
    return left, 2 * (len(edges) - 1)


def regress(
    nats: np.ndarray, regressors: np.ndarray, others: np.ndarray, fitted: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients and standard errors [k] of ``regressors`` [n, k] on ``nats`` [n], beside ``others`` [n, m].

    ``others`` may depend on one another; ``fitted`` numbers were taken from all columns before. NaN throughout where
    the regressors cannot be told from the others.
    """
    # Numbers of pairs often add up to a constant: of columns that depend on one another an orthonormal basis of what
    # they span. Regressing on what is left of both sides is regressing on all columns at once.
    scaled = others / np.maximum(np.linalg.norm(others, axis=0), 1e-9 * math.sqrt(len(others)))
    basis, sizes, _ = np.linalg.svd(scaled, full_matrices=False)
    basis = basis[:, sizes > 1e-6]
    kept = regressors - basis @ (basis.T @ regressors)
    left = nats - basis @ (basis.T @ nats)
    free = len(nats) - fitted - basis.shape[1] - regressors.shape[1]
    told = np.linalg.svd(kept, compute_uv=False)[-1] > 1e-6 * np.linalg.norm(regressors)
    if free < 1 or not told:
        return np.full(regressors.shape[1], np.nan), np.full(regressors.shape[1], np.nan)
    inverse = np.linalg.inv(kept.T @ kept)
    coefficients = inverse @ (kept.T @ left)
    residuals = left - kept @ coefficients
    return coefficients, np.sqrt(np.diag(inverse) * (residuals @ residuals) / free)


def window_estimates(nats: np.ndarray, planted: Planted, edges: Sequence[int] | np.ndarray) -> list[Estimate]:
    """What the model pays more a digit, window by window, for each of ``REGRESSORS`` that can be told.

    ``nats`` float64 [steps]: loss of the model less loss of the other one, times the tokens of a step.
    """
    found = []
    for start, end in pairwise(edges):
        start, end = int(start), int(end)
        columns = np.column_stack([nats[start:end], planted.digits[start:end], planted.pairs[start:end]])
        columns, fitted = without_drift(columns.astype(np.float64))
        digits, pairs = columns[:, 1:3], columns[:, 3:]
        for names, chosen in ((REGRESSORS[:2], digits), (REGRESSORS[2:], digits.sum(axis=1, keepdims=True))):
            values, errors = regress(columns[:, 0], chosen, pairs, fitted)
            found += [
                Estimate(start + 1, end, name, float(value), float(error), end - start)
                for name, value, error in zip(names, values, errors, strict=True)
                if math.isfinite(value)
            ]
    return found


def _shares(estimates: Sequence[Estimate], starts: np.ndarray) -> np.ndarray:
    """float64 [starts, windows]: which share of a window's steps comes after ``starts`` steps."""
    first = np.asarray([one.first_step for one in estimates]) - 1
    last = np.asarray([one.last_step for one in estimates])
    return np.clip((last - starts[:, None]) / (last - first), 0.0, 1.0)


def _fits(estimates: Sequence[Estimate], starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Best constant coefficient after each of ``starts`` steps (0 before) and its standard error, by least squares."""
    values = np.asarray([one.nats_per_digit for one in estimates])
    weights = np.asarray([one.stderr for one in estimates]) ** -2.0
    shares = _shares(estimates, starts)
    total = shares**2 @ weights
    return shares @ (weights * values) / total, total**-0.5


def saving_from(estimates: Sequence[Estimate], step: int) -> tuple[float, float]:
    """Nats a digit from ``step`` on, pooled over windows of one regressor, and the standard error."""
    values, errors = _fits(estimates, np.asarray([step - 1.0]))
    return float(values[0]), float(errors[0])


def find_onset(estimates: Sequence[Estimate]) -> Onset | None:
    """The step from which on a constant saving, and none before, fits the estimates of one regressor best.

    A window in which it begins counts by the share of its steps that come after. Starts within the last window cannot
    be told apart, so a range that reaches the first step of that window reaches the end of the training.

    None where no saving is significant: pooled from the best start on it must lie below 0 by more standard errors than
    the one-sided 5% point of the normal distribution divided by the number of windows, since each may be the first. At
    most 5% of trainings without retrieval get an onset so (2% of simulated ones). The 95% range are the starts that fit
    as well up to 3.84 in chi-squared.

    Simulated with the standard errors of single_gpu at 35M (0.8 to 2.2 in 11 windows of 1,000 steps), a saving of 2.3
    nats and its start anywhere but in the last window, an onset is found in 98%, in half of them within 350 steps, and
    the range holds the true start in 93%. Asking instead that the interval of every window from the onset to the end
    lie below 0 misses much: one window in six fails by chance, and of retrieval in the last six windows the first is
    found in 24%.
    """
    last = estimates[-1]
    starts = [np.linspace(one.first_step - 1, one.last_step, GRID, endpoint=False) for one in estimates[:-1]]
    starts = np.concatenate([*starts, [last.first_step - 1.0]])
    values, errors = _fits(estimates, starts)
    scores = np.maximum(-values / errors, 0.0)
    best = int(scores.argmax())
    if scores[best] <= stats.norm.ppf(1 - (1 - LEVEL) / len(estimates)):
        return None
    near = np.flatnonzero((scores > 0) & (scores**2 >= scores[best] ** 2 - stats.chi2.ppf(LEVEL, 1)))
    return Onset(
        step=round(starts[best]) + 1,
        earliest=round(starts[near[0]]) + 1,
        latest=last.last_step if near[-1] == len(starts) - 1 else round(starts[near[-1]]) + 1,
        nats_per_digit=float(values[best]),
        stderr=float(errors[best]),
    )
