"""The lm-eval model of this project: lm-eval's Hugging Face wrapper, without silent truncation."""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from .errors import EvaluationError
from .inference import (
    OWN_MODEL_TYPES,
    generate_greedy,
    load_model,
    position_limit,
    token_batches,
)
from .likelihood import score_pairs

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

# What else tokenizers make of every text takes as long as the tokens.
TOKENS_ALONE = {"return_attention_mask": False, "return_token_type_ids": False}
Encoded = tuple[Any, list[int], list[int]]


@dataclass
class RequestCount:
    """What a task asked of the model: ``scored_tokens`` are those whose probability was read."""

    requests: int = 0
    input_tokens: int = 0
    scored_tokens: int = 0
    longest: int = 0
    truncated: int = 0

    def add(self, inputs: int, scored: int) -> None:
        """Count one sequence of ``inputs`` tokens given to the model."""
        self.requests += 1
        self.input_tokens += inputs
        self.scored_tokens += scored
        self.longest = max(self.longest, inputs)


@register_model("hwh")
class HwHLM(HFLM):
    """lm-eval model over a Hugging Face causal model in memory (or its folder).

    - No prompt is ever cut: one that is longer than the model's limit raises :class:`EvaluationError` with task and
      row. Models that extrapolate have no limit; others that of their ``max_position_embeddings``.
    - ``batch_tokens``: a batch holds at most so many tokens, padding included. Scores do not depend on it.
    - ``share_prefixes``: what several requests begin with is computed once (where the model's cache allows it).
    - ``rolling_window``: length in tokens of the disjoint windows of perplexity tasks.
    - ``add_bos``: whether the beginning-of-sequence token is put before every text; the tokenizer's own habit is
      not used. A text without context (perplexity) always begins after this token or the end-of-text token.
    - ``row_labels``: names of the rows of each task, used in errors.
    """

    def __init__(
        self,
        pretrained: Any,
        tokenizer: Any = None,
        *,
        batch_tokens: int = 8192,
        share_prefixes: bool = True,
        rolling_window: int | None = None,
        add_bos: bool = False,
        row_labels: dict[str, list[str]] | None = None,
    ) -> None:
        if isinstance(pretrained, str | Path):
            pretrained, tokenizer = load_model(pretrained)
        limit = position_limit(pretrained)
        # Models of this project never see a beginning token in training: documents follow one another with the end
        # token between them, so a text begins after that token. For other models lm-eval's own choice is kept.
        ours = pretrained.config.model_type in OWN_MODEL_TYPES
        prefix = tokenizer.eos_token_id if ours and not add_bos else None
        logger = logging.getLogger("lm_eval.models.huggingface")
        level = logger.level
        # It warns that a model in memory cannot be spread over processes, which is not wanted here.
        logger.setLevel(logging.ERROR)
        try:
            super().__init__(
                pretrained,
                backend="causal",
                tokenizer=tokenizer,
                max_length=limit,
                batch_size=1,
                prefix_token_id=prefix,
            )
        finally:
            logger.setLevel(level)
        if add_bos and self.tokenizer.bos_token_id is None:
            raise EvaluationError("add_bos is on, but the tokenizer has no beginning-of-sequence token")
        if self.tokenizer.bos_token_id is None and self.tokenizer.eos_token_id is None:
            raise EvaluationError("the tokenizer has neither a beginning nor an end token to begin a text with")
        self.limit = limit
        self.batch_tokens = batch_tokens
        self.share_prefixes = share_prefixes
        self.rolling_window = rolling_window
        self.add_bos_token = add_bos
        self.row_labels = row_labels or {}
        self.encoded: dict[str, list[int]] = {}
        self.generated: dict[tuple[int, tuple[int, ...]], str] = {}
        self.generated_for: set[str | None] = set()
        self.counts: dict[str | None, RequestCount] = defaultdict(RequestCount)

    @property
    def max_length(self) -> int:
        """The model's limit or, where it has none, the longest sequence so far."""
        return self.limit or max((count.longest for count in self.counts.values()), default=0)

    def describe(self, request: Instance) -> str:
        """Task and row of a request, as errors name it."""
        labels = self.row_labels.get(request.task_name or "")
        row = labels[request.doc_id] if labels and request.doc_id is not None else f"row {request.doc_id}"
        return f"task {request.task_name}, {row}"

    @contextmanager
    def encoded_together(self, texts: Iterable[str]) -> Iterator[None]:
        """Within, :meth:`tok_encode` knows the tokens of these texts: each made once, all in one call.

        The choices of a question share its text, and on a card the texts one by one take longer than the model does.
        """
        distinct = list(dict.fromkeys(texts))
        if distinct:
            # The workflow switches threads off for the sake of programs with processes of their own.
            with patch.dict(os.environ, TOKENIZERS_PARALLELISM="true"):
                made = self.tokenizer(distinct, add_special_tokens=False, **TOKENS_ALONE)
            self.encoded = dict(zip(distinct, made["input_ids"], strict=True))
        try:
            yield
        finally:
            self.encoded = {}

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Tokens of a text, with the beginning token before them only if ``add_bos`` asks for it."""
        known = self.encoded.get(string)
        tokens = self.tokenizer.encode(string, add_special_tokens=False) if known is None else list(known)
        begins = self.add_bos_token if add_special_tokens is None else add_special_tokens
        return [self.tokenizer.bos_token_id, *tokens] if begins and self.add_bos_token else tokens

    def _check_length(self, length: int, where: str, what: str) -> None:
        if self.limit is not None and length > self.limit:
            raise EvaluationError(
                f"{where}: {what} takes {length} tokens, but the model's limit (max_position_embeddings) is "
                f"{self.limit}; prompts are never truncated: leave the row out or use a model with a longer limit"
            )

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(log-probability in nats, is argmax) of every (context, continuation).

        Raises :class:`EvaluationError` for an empty continuation and for a sequence over the model's limit.
        """
        encoded: list[Encoded] = []
        # What lm-eval's _encode_pair asks for: the context without the spaces at its end, and the whole.
        texts = (text for request in requests for text in (request.args[0].rstrip(), "".join(request.args)))
        with self.encoded_together(texts):
            for request in requests:
                context, continuation = request.args
                where = self.describe(request)
                if not continuation.strip():
                    raise EvaluationError(f"{where}: choice {request.idx} is empty; there is nothing to score")
                if context == "":
                    prompt, target = [self.prefix_token_id], self.tok_encode(continuation, add_special_tokens=False)
                else:
                    prompt, target = self._encode_pair(context, continuation)
                if not prompt or not target:
                    raise EvaluationError(f"{where}: choice {request.idx} adds no token of its own to the prompt")
                length = len(prompt) + len(target) - 1
                self._check_length(length, where, "the prompt with its answer")
                self.counts[request.task_name].add(length, len(target))
                encoded.append(((context, continuation), prompt, target))
        return self._loglikelihood_tokens(encoded, disable_tqdm=disable_tqdm)

    def _loglikelihood_tokens(
        self, requests: Sequence[Encoded], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        """Scores of encoded requests."""
        pairs = [(context, continuation) for _, context, continuation in requests]
        fill = self.tokenizer.pad_token_id
        # tqdm draws nothing where stderr is not a terminal (disable=None).
        with tqdm(total=len(pairs), desc="answers", leave=False, disable=True if disable_tqdm else None) as bar:
            return score_pairs(self.model, pairs, self.batch_tokens, fill, self.share_prefixes, bar.update)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-probability in nats of whole texts, cut into disjoint windows of ``rolling_window`` tokens.

        Every token is scored once; the windows are lm-eval's.
        """
        window = self.rolling_window or self.limit
        if window is None:
            raise EvaluationError("perplexity needs a window length (held_out_perplexity.window)")
        self._check_length(window, "held_out_perplexity.window", "a window")
        owners: list[int] = []
        encoded: list[Encoded] = []
        with self.encoded_together(request.args[0] for request in requests):
            for number, request in enumerate(requests):
                (text,) = request.args
                tokens = self.tok_encode(text, add_special_tokens=False)
                if not tokens:
                    raise EvaluationError(f"{self.describe(request)}: the text is empty; there is nothing to score")
                for pair in get_rolling_token_windows(tokens, self.prefix_token_id, window, context_len=1):
                    context, continuation = make_disjoint_window(pair)
                    self.counts[request.task_name].add(len(context) + len(continuation) - 1, len(continuation))
                    owners.append(number)
                    encoded.append((None, context, continuation))
        totals = [0.0] * len(requests)
        scores = self._loglikelihood_tokens(encoded, disable_tqdm=disable_tqdm)
        for owner, (log_probability, _) in zip(owners, scores, strict=True):
            totals[owner] += log_probability
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Greedy continuations, each cut at the first of its stop texts.

        Raises :class:`EvaluationError` for sampling and for a prompt that leaves no room for ``max_gen_toks``.
        """
        prompts: list[list[int]] = []
        with self.encoded_together(request.args[0] for request in requests):
            for request in requests:
                context, options = request.args
                if options.get("do_sample", False):
                    raise EvaluationError(f"{self.describe(request)}: only greedy generation is supported")
                tokens = self.tok_encode(context)
                length = len(tokens) + self._new_tokens(options)
                self._check_length(length, self.describe(request), "the prompt with its room for the answer")
                self.counts[request.task_name].add(len(tokens), 0)
                prompts.append(tokens)
        answers = [""] * len(requests)
        for room, members in self._to_generate(requests, prompts).items():
            for batch in token_batches([len(prompt) + room for prompt in members], self.batch_tokens):
                chosen = [members[unit] for unit in batch]
                fill, eos = self.tokenizer.pad_token_id, self.tokenizer.eos_token_id
                outputs = generate_greedy(self.model, chosen, room, fill, eos)
                for prompt, tokens in zip(chosen, outputs, strict=True):
                    self.generated[room, prompt] = self.tokenizer.decode(tokens, skip_special_tokens=True)
        for index, request in enumerate(requests):
            text = self.generated[self._new_tokens(request.args[1]), tuple(prompts[index])]
            stops = request.args[1].get("until") or []
            for stop in [stops] if isinstance(stops, str) else stops:
                text = text.split(stop)[0] if stop else text
            answers[index] = text
        return answers

    def _to_generate(self, requests: list[Instance], prompts: list[list[int]]) -> dict[int, list[tuple[int, ...]]]:
        """Prompts by room for their answer, each once; what was generated for the task before stays known.

        A retrieval task is asked twice, with documents cut in two ways: most prompts are the same.
        """
        names = {request.task_name for request in requests}
        if names != self.generated_for:
            self.generated.clear()
            self.generated_for = names
        wanted: dict[int, dict[tuple[int, ...], None]] = defaultdict(dict)
        for request, prompt in zip(requests, prompts, strict=True):
            room = self._new_tokens(request.args[1])
            if (room, tuple(prompt)) not in self.generated:
                wanted[room][tuple(prompt)] = None
        return {room: list(found) for room, found in wanted.items()}

    def _new_tokens(self, options: dict[str, Any]) -> int:
        return int(options.get("max_gen_toks", self.max_gen_toks))
