"""What hwh_core/equivalent_code.json declares of the evaluation: faster or stricter, with the results of before."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
import torch
from lm_eval.api.instance import Instance

from hwh_core.evaluation.errors import EvaluationError
from hwh_core.evaluation.inference import generate_greedy, logits_at
from hwh_core.evaluation.lm import HwHLM
from hwh_core.evaluation.rows import TASKS, load_task_rows
from hwh_core.evaluation.scores import prepare_completion, prepare_rows, run_tasks
from hwh_core.evaluation.tasks import build_task
from hwh_core.evaluation.windows import windowed

# Spaces at the end of a context go to the continuation; two choices share a context, and one is the whole of another.
PAIRS = [
    ("The mill stands", " by the river"), ("The mill stands ", "by the river"), ("The mill stands", " still"),
    ("The mill stands by", " the river"), ("", "Alone"), ("Café — naïve\n\n", "“quoted” 1234"), ("a  \t", "  b"),
    ("   ", "only spaces before"),
]  # fmt: skip


def requests(kind, *arguments):
    return [
        Instance(kind, {}, given, index, metadata=("test", index, 1), doc_id=index)
        for index, given in enumerate(arguments)
    ]


def encoded(lm, monkeypatch, call):
    """What ``call`` gives the model to score, as tokens."""
    seen = []

    def scored(given, **_):
        seen.extend(given)
        return [(0.0, False)] * len(given)

    monkeypatch.setattr(lm, "_loglikelihood_tokens", scored)
    call(lm)
    assert seen
    return seen


@pytest.mark.parametrize("add_bos", [False, True])
def test_texts_encoded_together_have_the_tokens_of_texts_encoded_alone(tiny_llama, tokenizer, monkeypatch, add_bos):
    long = "The station waits under a grey sky. " * 30

    def answers(lm):
        return lm.loglikelihood(requests("loglikelihood", *(pair for pair in PAIRS if add_bos or pair[0].strip())))

    def articles(lm):
        return lm.loglikelihood_rolling(requests("loglikelihood_rolling", (long,), ("Short.",), (long,)))

    for call in (answers, articles):
        together = HwHLM(tiny_llama, tokenizer, rolling_window=50, add_bos=add_bos)
        alone = HwHLM(tiny_llama, tokenizer, rolling_window=50, add_bos=add_bos)
        monkeypatch.setattr(alone, "encoded_together", lambda texts: contextlib.nullcontext())
        assert encoded(together, monkeypatch, call) == encoded(alone, monkeypatch, call)
        assert together.counts == alone.counts
        assert together.encoded == {}


@pytest.mark.parametrize("name", ["hellaswag", "arc_easy", "piqa", "lambada_openai", "boolq"])
def test_tasks_have_the_tokens_of_texts_encoded_alone(name, tiny_llama, tokenizer, monkeypatch, rows_folder):
    task = build_task(load_task_rows(rows_folder, name, None, 0))
    task.build_all_requests()
    both = []
    for texts_alone in (False, True):
        lm = HwHLM(tiny_llama, tokenizer)
        lm.limit = None
        if texts_alone:
            monkeypatch.setattr(lm, "encoded_together", lambda texts: contextlib.nullcontext())
        both.append(encoded(lm, monkeypatch, lambda lm: lm.loglikelihood(task.instances)))
    assert both[0] == both[1]


def test_a_text_is_encoded_once_and_all_in_one_call(tiny_llama, tokenizer, monkeypatch):
    calls = []

    class Watched:
        def __call__(self, texts, **options):
            calls.append(list(texts))
            return tokenizer(texts, **options)

        def __getattr__(self, name):
            assert name != "encode"
            return getattr(tokenizer, name)

    lm = HwHLM(tiny_llama, tokenizer)
    lm.tokenizer = Watched()
    encoded(lm, monkeypatch, lambda lm: lm.loglikelihood(requests("loglikelihood", *PAIRS[:4])))
    assert len(calls) == 1
    assert len(calls[0]) == len(set(calls[0])) == 4


@pytest.mark.parametrize("name", [name for name in TASKS if name not in ("swde", "fda", "squad_completion")])
def test_rows_of_a_task_are_made_once(name, rows_folder):
    rows = load_task_rows(rows_folder, name, None, 0)
    task = build_task(rows)
    docs = task.eval_docs
    assert task.eval_docs is docs
    made = task.dataset[rows.spec.split]
    if task.config.process_docs is not None:
        made = task.config.process_docs(made)
    assert list(docs) == list(made)
    assert len(docs) == len(rows.rows)


def test_an_ending_that_a_window_holds_is_kept(rows_folder, tokenizer, prose):
    """From some 64 tokens on that a prompt may have, which every preset exceeds by far; below, it is refused."""
    rows = load_task_rows(rows_folder, "swde", 1, 0)
    rows.rows[0] = {
        **rows.rows[0],
        "text": f"{rows.rows[0]['text'].removesuffix('Directed by:')}{prose[0]}\nDirected by:",
    }
    prompt = build_task(rows).doc_to_text
    for cut in ("centred", "left"):
        for room in (80, 100, 1952):
            (made,) = windowed(rows, prompt, tokenizer, 48 + room, cut).rows.rows
            before, after = (tokenizer(prompt(row), add_special_tokens=False).input_ids for row in (rows.rows[0], made))
            assert after[-48:] == before[-48:]
            assert len(after) <= room
        for room, left in ((63, 63), (0, 0), (-40, 0)):
            with pytest.raises(EvaluationError, match=rf"last 64 tokens of the prompt .* only {left} are left beside"):
                windowed(rows, prompt, tokenizer, 48 + room, cut)


def test_tokens_of_a_score_are_those_that_were_read(tiny_llama, tokenizer, rows_folder):
    """Of choices those whose probability was read, of generated answers those of the prompts."""
    identity = {"scale": "tiny", "model": "m", "architecture": "transformer", "seed": 0}
    choices, written = (load_task_rows(rows_folder, name, None, 0) for name in ("piqa", "swde"))
    lm = HwHLM(tiny_llama, tokenizer)
    lm.limit = None
    tasks = [prepare_rows(choices), *prepare_completion(written, tokenizer, 2000)]
    table, _ = run_tasks(lm, tasks, identity)
    found = table.drop_duplicates("metric").set_index("metric")["num_tokens"]
    assert found["acc"] == lm.counts["piqa"].scored_tokens > 0
    prompts = [build_task(written).doc_to_text(row) for row in written.rows]
    assert found["contains"] == sum(len(tokenizer(text, add_special_tokens=False).input_ids) for text in prompts)


@pytest.mark.parametrize("odd", [1, 3])
@pytest.mark.parametrize("change", [{"label": 3}, {"ind": "x"}, {"endings": ["one", 2]}, {"endings": "one"}])
def test_a_field_of_two_types_is_named_with_its_row(rows_folder, odd, change):
    rows = load_task_rows(rows_folder, "hellaswag", None, 0)
    assert len(rows.rows) > 1
    changed = [dict(row) for row in (rows.rows * 4)[:5]]
    changed[odd] |= change
    again = dataclasses.replace(rows, rows=changed, indices=list(range(5)))
    with pytest.raises(EvaluationError, match=rf"task hellaswag, row {odd} .*\(.*\); write every field in one type"):
        build_task(again)


@pytest.mark.parametrize("places", [[(0, range(3, 5))], [(0, range(9)), (1, range(2, 3)), (0, range(4, 30))]])
def test_logits_are_those_at_the_places_in_their_order(tiny_llama, places):
    sequences = [list(range(30)), list(range(40, 60))]
    found = logits_at(tiny_llama, sequences, places, 0)
    with torch.no_grad():
        whole = [tiny_llama(torch.tensor([sequence])).logits[0] for sequence in sequences]
    expected = torch.stack([whole[row][column] for row, place in places for column in place])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def rwkv(vocabulary):
    from transformers import RwkvConfig, RwkvForCausalLM

    return RwkvForCausalLM(
        RwkvConfig(
            vocab_size=vocabulary, hidden_size=32, attention_hidden_size=32, num_hidden_layers=2, context_length=128
        )
    )


def minimax(vocabulary):
    from transformers import MiniMaxConfig, MiniMaxForCausalLM

    return MiniMaxForCausalLM(
        MiniMaxConfig(
            vocab_size=vocabulary, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, num_local_experts=2, block_size=16,
            layer_types=["linear_attention", "full_attention"], initializer_range=0.3,
        )
    )  # fmt: skip


@pytest.mark.parametrize("make", [rwkv, minimax])
def test_models_that_a_batch_would_disturb_get_one_prompt_at_a_time(make, tokenizer):
    torch.manual_seed(0)
    model = make(len(tokenizer)).eval()
    texts = ("The mill", "A grey sky waits under the fields", "Fields")
    prompts = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    prompts.insert(1, prompts[0][::-1])
    alone = [generate_greedy(model, [prompt], 12, tokenizer.pad_token_id, None)[0] for prompt in prompts]
    assert generate_greedy(model, prompts, 12, tokenizer.pad_token_id, None) == alone


def test_other_models_get_all_prompts_at_once(tiny_llama, tokenizer, monkeypatch):
    prompts = [tokenizer.encode(text, add_special_tokens=False) for text in ("The mill", "A grey sky waits")]
    generate, batches = type(tiny_llama).generate, []

    def watched(self, **options):
        batches.append(len(options["input_ids"]))
        return generate(self, **options)

    monkeypatch.setattr(type(tiny_llama), "generate", watched)
    generate_greedy(tiny_llama, prompts, 2, tokenizer.pad_token_id, None)
    assert batches == [2]
