"""The lm-eval model: equal to lm-eval's own wrapper, independent of batches, no truncation, known answers."""

from __future__ import annotations

import inspect
import math
import re

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model
from lm_eval.evaluator import evaluate
from lm_eval.models.huggingface import HFLM
from oracle_models import MAX_POSITIONS, OracleConfig, UniformModel, train_tokenizer
from transformers import MambaConfig, MambaForCausalLM
from transformers.utils import ModelOutput

from hwh_core.evaluation.errors import EvaluationError
from hwh_core.evaluation.inference import Budget, cache_argument, cheapest_batches, score_tokens, token_batches
from hwh_core.evaluation.lm import HwHLM
from hwh_core.evaluation.prefixes import CACHE_ROOM, plan_batches, prefix_units, sharing_groups
from hwh_core.evaluation.rows import TASKS, load_task_rows
from hwh_core.evaluation.tasks import build_task, held_out_task


def requests(kind: str, *arguments: tuple) -> list[Instance]:
    """Requests of a task called "test", one a row."""
    return [
        Instance(request_type=kind, doc={}, arguments=args, idx=0, metadata=("test", row, 1))
        for row, args in enumerate(arguments)
    ]


def log_likelihoods(lm, rows) -> list[float]:
    """Log-likelihood of every choice of every row of a task."""
    outcome = evaluate(lm, {"tasks": {"t": build_task(rows)}}, bootstrap_iters=0)
    return [float(response[0][0]) for sample in outcome["samples"]["t"] for response in sample["resps"]]


def test_the_class_is_registered_with_lm_eval():
    assert get_model("hwh") is HwHLM


SCORED = [name for name, spec in TASKS.items() if name != "wikitext" and spec.completion is None]
GENERATED = [name for name, spec in TASKS.items() if spec.completion is not None]


@pytest.mark.parametrize("name", SCORED)
def test_scores_equal_those_of_lm_evals_own_wrapper(name, tiny_llama, tokenizer, rows_folder):
    rows = load_task_rows(rows_folder, name, 5, 0)
    theirs = log_likelihoods(HFLM(pretrained=tiny_llama, tokenizer=tokenizer, batch_size=1), rows)
    ours = log_likelihoods(HwHLM(tiny_llama, tokenizer, batch_tokens=2048), rows)
    assert len(set(theirs)) >= 5
    assert ours == pytest.approx(theirs, abs=1e-4)


@pytest.mark.parametrize("name", GENERATED)
def test_generated_answers_equal_those_of_lm_evals_own_wrapper(name, tiny_llama, tokenizer, rows_folder):
    rows = load_task_rows(rows_folder, name, 3, 0)
    theirs, ours = (
        evaluate(lm, {"tasks": {"t": build_task(rows)}}, bootstrap_iters=0)
        for lm in (HFLM(pretrained=tiny_llama, tokenizer=tokenizer, batch_size=1), HwHLM(tiny_llama, tokenizer))
    )
    answers = [[sample["resps"][0][0] for sample in outcome["samples"]["t"]] for outcome in (theirs, ours)]
    assert answers[0] == answers[1]
    assert any(answers[0])
    assert [sample["contains"] for sample in ours["samples"]["t"]] == [
        sample["contains"] for sample in theirs["samples"]["t"]
    ]


def test_rolling_windows_equal_those_of_lm_evals_own_wrapper(tiny_llama, tokenizer, prose):
    documents = [{"text": text[:1500]} for text in prose[:3]]
    theirs = HFLM(pretrained=tiny_llama, tokenizer=tokenizer, batch_size=1, max_length=64)
    ours = HwHLM(tiny_llama, tokenizer, rolling_window=64)
    values = [
        evaluate(lm, {"tasks": {"t": held_out_task(documents)}}, bootstrap_iters=0)["results"]["t"]
        for lm in (theirs, ours)
    ]
    for metric in ("word_perplexity,none", "bits_per_byte,none"):
        assert values[1][metric] == pytest.approx(values[0][metric], rel=1e-6)


@pytest.mark.parametrize("name", ["hellaswag", "boolq"])
def test_scores_do_not_depend_on_the_batches(name, tiny_llama, tokenizer, rows_folder):
    rows = load_task_rows(rows_folder, name, None, 0)
    single, many = (log_likelihoods(HwHLM(tiny_llama, tokenizer, batch_tokens=size), rows) for size in (1, 100_000))
    assert many == pytest.approx(single, abs=1e-4)


def test_batches_keep_to_the_budget_and_lose_nothing():
    lengths = [3, 90, 1, 40, 40, 7, 200, 40]
    for held in (0, 10):
        batches = cheapest_batches(lengths, Budget(120, 4), held)
        assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
        assert batches[0] == [6], "longer than the budget: a batch of its own"
        assert all((max(lengths[i] for i in batch) + held) * len(batch) <= 120 for batch in batches[1:])
    assert cheapest_batches([], Budget(120, 4)) == []
    assert token_batches(lengths, 120) == [[6], [1], [3, 4, 7], [5, 0, 2]], "as few as the budget allows"


def test_batches_end_before_padding_costs_more_than_a_pass():
    lengths = [100] * 6 + [20] * 6
    assert [len(batch) for batch in cheapest_batches(lengths, Budget(3200, 479))] == [6, 6]
    assert [len(batch) for batch in cheapest_batches(lengths, Budget(3200, 481))] == [12]


def test_batches_cost_least_of_all_partitions():
    lengths, a_pass = [9, 7, 7, 4, 3, 1], 3

    def cost(groups):
        return sum(max(group) * len(group) + a_pass for group in groups)

    def partitions(rest):
        yield from ([rest[:size], *others] for size in range(1, len(rest)) for others in partitions(rest[size:]))
        yield [rest]

    found = cheapest_batches(lengths, Budget(1000, a_pass))
    assert cost([[lengths[i] for i in group] for group in found]) == min(map(cost, partitions(lengths)))


def plan(sequences, limits, budget):
    """Batches of all sequences; that every one is there once, behind its own beginning and within the budget, holds."""
    batches = plan_batches(prefix_units(sequences, limits), [len(tokens) for tokens in sequences], budget)
    found = [(batch, place, index) for batch in batches for rows in batch.passes for place, index in rows]
    assert sorted(index for _, _, index in found) == list(range(len(sequences)))
    for batch, place, index in found:
        host = sequences[batch.units[place].members[0]]
        assert sequences[index][: batch.prefix] == host[: batch.prefix]
        assert batch.prefix <= limits[index]
    for batch in batches:
        longest = [max(len(sequences[index]) for _, index in rows) for rows in batch.passes]
        padded = sum((size - batch.prefix) * len(rows) for size, rows in zip(longest, batch.passes, strict=True))
        assert batch.tokens == padded + batch.prefix * len(batch.units) * (batch.prefix > 0)
        assert all(size * len(rows) <= budget.tokens for size, rows in zip(longest, batch.passes, strict=True))
    return batches


def test_answers_to_one_question_are_a_unit_and_others_stay_alone():
    question, other = list(range(100, 140)), list(range(200, 230))
    sequences = [
        [*question, 1, 2], [*other, 3], [*question, 4], [5, 6, 7], [*question[:30], 8], [*other, 9, 9], [*other[:5], 1]
    ]  # fmt: skip
    limits = [len(tokens) - 1 for tokens in sequences]
    units = {unit.members: (unit.prefix, unit.longest) for unit in prefix_units(sequences, limits)}
    # The third of the question parts earlier: three of 30 in common save more than two of 40.
    assert units == {(3,): (0, 3), (4, 0, 2): (30, 42), (6,): (0, 6), (1, 5): (30, 32)}
    assert {(len(batch.units), batch.prefix) for batch in plan(sequences, limits, Budget(1000, 8))} == {(2, 30), (2, 0)}
    # Logits are wanted from the 26th token on: only what stands before it can be shared.
    limits = [min(25, limit) for limit in limits]
    assert {unit.prefix for unit in prefix_units(sequences, limits)} == {0, 25}
    plan(sequences, limits, Budget(1000, 8))
    # A pass that costs more than all that is shared: sequences stay whole.
    assert {batch.prefix for batch in plan(sequences, limits, Budget(1000, 100))} == {0}


def test_passes_behind_a_prefix_are_of_similar_length_and_small_enough():
    sequences = [
        [*range(start, start + 40), *[answer] * size]
        for start in (100, 200, 300)
        for answer, size in enumerate((2, 3, 30))
    ]
    limits = [40] * 9
    (batch,) = plan(sequences, limits, Budget(2000, 10))
    assert [len(rows) for rows in batch.passes] == [3, 6]
    assert [len(batch.units) for batch in plan(sequences, limits, Budget(6 * CACHE_ROOM, 10))] == [2, 1]
    # Prefixes of 40 and 44: one batch where passes are dear, two where they cost less than to compute four again.
    sequences += [[*range(400, 444), *[answer] * 5] for answer in range(3)]
    limits += [44] * 3
    assert [batch.prefix for batch in plan(sequences, limits, Budget(2000, 50))] == [40]
    assert [batch.prefix for batch in plan(sequences, limits, Budget(2000, 1))] == [40, 44]


def test_sequences_share_a_pass_with_what_continues_them():
    sequences = [[1, 2], [1, 2, 3, 4], [1, 2, 3], [5], [1, 2], [1, 3], [5, 6], [7]]
    groups = sharing_groups(sequences)
    assert sorted(index for members in groups.values() for index in members) == list(range(len(sequences)))
    assert {host: sorted(members) for host, members in groups.items()} == {
        1: [0, 1, 2, 4],
        5: [5],
        6: [3, 6],
        7: [7],
    }


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_a_model_of_the_library_computes_shared_beginnings_once(name, tiny_llama, tokenizer, prose, monkeypatch):
    """Under both names that the library has had for the cache, in arguments and in outputs."""
    pairs = [(prose[0][:400], answer) for answer in (" yes", " no, it rests", " the mill and more")]
    separate = HwHLM(tiny_llama, tokenizer, share_prefixes=False).loglikelihood(requests("loglikelihood", *pairs))
    sizes = []
    forward = type(tiny_llama).forward
    own = "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"

    def renamed(self, input_ids, use_cache=None, logits_to_keep=0, **options):
        sizes.append(input_ids.numel())
        found = forward(self, input_ids, use_cache=use_cache, logits_to_keep=logits_to_keep, **{own: options.get(name)})
        return ModelOutput({"logits": found.logits, name: found.get(own)})

    with_cache = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY)
    others = [p for key, p in inspect.signature(renamed).parameters.items() if key != "options"]
    renamed.__signature__ = inspect.Signature([*others, with_cache])
    monkeypatch.setattr(type(tiny_llama), "forward", renamed)
    assert cache_argument(tiny_llama) == name
    shared = HwHLM(tiny_llama, tokenizer).loglikelihood(requests("loglikelihood", *pairs))
    assert [value for value, _ in shared] == pytest.approx([value for value, _ in separate], abs=1e-4)
    question = len(tokenizer.encode(prose[0][:400], add_special_tokens=False))
    assert len(sizes) == 2
    assert sum(sizes) < 2 * question


def test_of_equal_logits_the_first_is_the_argmax():
    logits = torch.tensor([[1.0, 3.0, 3.0], [1.0, 3.0, 3.0], [4.0, 3.0, 3.0], [4.0, 3.0, 3.0]])
    values, hits = score_tokens(logits, [1, 2, 0, 1])
    assert hits.tolist() == [True, False, True, False]
    assert values[2].item() == pytest.approx(logits[2].double().log_softmax(-1)[0].item(), abs=1e-6)


def test_log_probabilities_over_a_large_vocabulary_are_off_by_5e_5_nats_at_most():
    """Those of float32, and also of logits that autocast leaves in bfloat16, are made in float32."""
    logits = 4 * torch.randn(32, 49152, generator=torch.Generator().manual_seed(0))
    targets = list(range(0, 49152, 1536))
    for given in (logits, logits.bfloat16()):
        values, _ = score_tokens(given, targets)
        exact = given.double().log_softmax(-1).gather(1, torch.tensor(targets)[:, None]).squeeze(1)
        assert (values - exact).abs().max().item() < 5e-5


def test_recurrent_models_of_the_library_share_nothing():
    """Their cache is made to be continued token by token."""
    model = MambaForCausalLM(MambaConfig(vocab_size=16, hidden_size=8, state_size=4, num_hidden_layers=1))
    assert cache_argument(model) is None


def test_a_prompt_over_the_limit_is_an_error_naming_task_and_row(tiny_llama, tokenizer):
    lm = HwHLM(tiny_llama, tokenizer, row_labels={"test": ["row 4 (id X1)", "row 9 (id X2)"]})
    fits = " word" * 20
    with pytest.raises(EvaluationError, match=rf"task test, row 9 \(id X2\): .*limit .* is {MAX_POSITIONS}"):
        lm.loglikelihood(requests("loglikelihood", (fits, " end"), ("the harbour opens " * 300, " end")))
    with pytest.raises(EvaluationError, match=r"task test, row 4 \(id X1\): .*room for the answer"):
        lm.generate_until(requests("generate_until", (fits, {"max_gen_toks": MAX_POSITIONS})))


def test_the_longest_prompt_that_fits_is_scored_whole(tiny_llama, tokenizer):
    lm = HwHLM(tiny_llama, tokenizer)
    context = "x" * 2000
    while len(tokenizer.encode(context + " end", add_special_tokens=False)) - 1 > MAX_POSITIONS:
        context = context[1:]
    assert len(tokenizer.encode(context + " end", add_special_tokens=False)) - 1 == MAX_POSITIONS
    lm.loglikelihood(requests("loglikelihood", (context, " end")))
    assert lm.counts["test"].longest == MAX_POSITIONS
    with pytest.raises(EvaluationError, match="row 0"):
        lm.loglikelihood(requests("loglikelihood", ("x" + context, " end")))


@pytest.mark.parametrize("continuation", ["", " ", "\n"])
def test_an_empty_completion_is_named(continuation, tiny_llama, tokenizer):
    with pytest.raises(EvaluationError, match="task test, row 1: choice 0 is empty"):
        HwHLM(tiny_llama, tokenizer).loglikelihood(requests("loglikelihood", ("A", " b"), ("A", continuation)))


def test_an_empty_text_is_named(tiny_llama, tokenizer):
    with pytest.raises(EvaluationError, match="task test, row 0: the text is empty"):
        HwHLM(tiny_llama, tokenizer, rolling_window=32).loglikelihood_rolling(requests("loglikelihood_rolling", ("",)))


def test_a_window_over_the_limit_is_refused(tiny_llama, tokenizer):
    lm = HwHLM(tiny_llama, tokenizer, rolling_window=MAX_POSITIONS + 1)
    with pytest.raises(EvaluationError, match=r"held_out_perplexity\.window: a window takes 513 tokens"):
        lm.loglikelihood_rolling(requests("loglikelihood_rolling", ("A text.",)))


def test_the_beginning_token_is_there_only_when_asked_for(tiny_llama, tokenizer):
    without, with_bos = HwHLM(tiny_llama, tokenizer), HwHLM(tiny_llama, tokenizer, add_bos=True)
    plain = tokenizer.encode("The mill", add_special_tokens=False)
    assert without.tok_encode("The mill") == plain
    assert with_bos.tok_encode("The mill") == [tokenizer.bos_token_id, *plain]
    assert with_bos.tok_encode("The mill", add_special_tokens=False) == plain
    pair = requests("loglikelihood", ("The mill", " opens"))
    answer = tokenizer.encode("The mill opens", add_special_tokens=False)[len(plain) :]
    tokens = torch.tensor([[tokenizer.bos_token_id, *plain, *answer]])
    with torch.no_grad():
        table = tiny_llama(tokens).logits.log_softmax(-1)[0]
    expected = sum(table[len(plain) + place, token].item() for place, token in enumerate(answer))
    assert with_bos.loglikelihood(pair)[0][0] == pytest.approx(expected, abs=1e-4)
    assert without.loglikelihood(pair)[0][0] != pytest.approx(expected, abs=1e-3)


def test_a_tokenizer_without_beginning_token_refuses_add_bos(tiny_llama, prose):
    from transformers import PreTrainedTokenizerFast

    bare = PreTrainedTokenizerFast(tokenizer_object=train_tokenizer(prose)._tokenizer, eos_token="<|end|>")
    with pytest.raises(EvaluationError, match="no beginning-of-sequence token"):
        HwHLM(tiny_llama, bare, add_bos=True)
    assert HwHLM(tiny_llama, bare).prefix_token_id == bare.eos_token_id


def test_the_uniform_model_has_the_perplexities_that_follow_from_its_vocabulary(tokenizer, rows_folder, prose):
    vocabulary = len(tokenizer)
    lm = HwHLM(UniformModel(OracleConfig(vocab_size=vocabulary)), tokenizer, rolling_window=50)
    articles = [text[:700] for text in prose[:4]]
    wikitext = load_task_rows(rows_folder, "wikitext", None, 0)
    for task, texts in (
        (held_out_task([{"text": text} for text in articles]), articles),
        (build_task(wikitext), [row["page"] for row in wikitext.rows]),
    ):
        outcome = evaluate(lm, {"tasks": {"t": task}}, bootstrap_iters=0)
        scored = lm.counts[task.config.task].scored_tokens
        # lm-eval's count of words in the raw text: white space at its ends counts as one more.
        words = sum(len(re.split(r"\s+", text)) for text in texts)
        expected = vocabulary ** (scored / words)
        assert outcome["results"]["t"]["word_perplexity,none"] == pytest.approx(expected, rel=1e-6)
    # Each token once: none left out at the edges of windows, none counted twice.
    scored = lm.counts["held_out_articles"].scored_tokens
    assert scored == sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in articles)
    rows = load_task_rows(rows_folder, "lambada_openai", None, 0)
    lm.counts.clear()
    outcome = evaluate(lm, {"tasks": {"t": build_task(rows)}}, bootstrap_iters=0)
    expected = vocabulary ** (lm.counts["lambada_openai"].scored_tokens / len(rows.rows))
    assert outcome["results"]["t"]["perplexity,none"] == pytest.approx(expected, rel=1e-6)


def test_token_probability_of_the_uniform_model(tokenizer):
    lm = HwHLM(UniformModel(OracleConfig(vocab_size=len(tokenizer))), tokenizer, rolling_window=16)
    (value,) = lm.loglikelihood_rolling(requests("loglikelihood_rolling", ("The garden rests. " * 20,)))
    assert value / lm.counts["test"].scored_tokens == pytest.approx(-math.log(len(tokenizer)), rel=1e-6)


def test_generation_is_greedy_batched_and_cut_at_the_stop_text(tiny_llama, tokenizer):
    lm = HwHLM(tiny_llama, tokenizer, batch_tokens=100_000)
    prompts = ["The mill", "The station waits under a grey sky while the fields", "A"]
    together = lm.generate_until(requests("generate_until", *((p, {"max_gen_toks": 8}) for p in prompts)))
    alone = [lm.generate_until(requests("generate_until", (p, {"max_gen_toks": 8})))[0] for p in prompts]
    assert together == alone
    tokens = tokenizer.encode(prompts[0], add_special_tokens=False)
    for _ in range(8):
        with torch.no_grad():
            tokens.append(int(tiny_llama(torch.tensor([tokens])).logits[0, -1].argmax()))
    expected = tokenizer.decode(tokens[-8:], skip_special_tokens=True)
    assert alone[0] == expected
    stop = expected[3]
    (cut,) = lm.generate_until(requests("generate_until", (prompts[0], {"max_gen_toks": 8, "until": [stop]})))
    assert cut == expected.split(stop)[0]
    with pytest.raises(EvaluationError, match="row 0: only greedy"):
        lm.generate_until(requests("generate_until", ("A", {"do_sample": True})))
