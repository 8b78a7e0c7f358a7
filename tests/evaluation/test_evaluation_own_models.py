"""The project's own models through the evaluation: beyond their training length, in any batch, with generation."""

from __future__ import annotations

import functools

import pytest
import torch
from lm_eval.api.instance import Instance

from hwh_core.architectures import ARCHITECTURES, layers_of_shape
from hwh_core.config import ArchitectureVariant, ModelShape, VariedShape
from hwh_core.evaluation.haystacks import prose_haystack
from hwh_core.evaluation.inference import generate_greedy, load_model, position_limit
from hwh_core.evaluation.lm import HwHLM
from hwh_core.evaluation.niah import NiahGenerator
from hwh_core.evaluation.niah_scoring import score_samples
from hwh_core.modeling import build_model

TRAINING_LENGTH = 64
# Of 8 layers, from which on all architectures differ; windows are shorter than the prompts.
SHAPE = {
    "num_layers": 8,
    "hidden_size": 64,
    "intermediate_size": 96,
    "attention_head_dim": 8,
    "gdn_head_dim": 8,
    "gate": True,
    "sliding_window": 24,
    "initializer_range": 0.2,
}
# Architectures as a preset may vary them: another recurrence, windows alone, key heads that query heads share.
VARIANTS = [
    ArchitectureVariant(name="delta", base="hwh_std", recurrence="deltanet"),
    ArchitectureVariant(name="windows", base="hwh_swa", full_attention_fractions=[0] * 8),
    ArchitectureVariant(
        name="shared", base="hwh_swa_r", full_attention_fractions=[0.25] * 8,
        full_attention_queries_per_key=2, sliding_window_queries_per_key=2,
    ),
]  # fmt: skip
SHAPES = {name: ModelShape(**SHAPE) for name in ARCHITECTURES}
SHAPES |= {variant.name: VariedShape(**SHAPE, variant=variant) for variant in VARIANTS}


def test_every_architecture_is_another():
    layers = [str(layers_of_shape(shape.model_dump(), name)) for name, shape in SHAPES.items()]
    assert len(set(layers)) == len(layers) == len(ARCHITECTURES) + len(VARIANTS)


@pytest.fixture(scope="module", params=list(SHAPES))
def own_model(request, tokenizer, tmp_path_factory):
    model = build_model(
        SHAPES[request.param].model_dump(),
        request.param,
        rope_theta=10000.0,
        qk_norm=True,
        length=TRAINING_LENGTH,
        vocab_size=len(tokenizer),
        seed=0,
    )
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return load_model(folder)


def scores(lm, texts):
    requests = [
        Instance(request_type="loglikelihood", doc={}, arguments=text, idx=0, metadata=("t", row, 1))
        for row, text in enumerate(texts)
    ]
    return [value for value, _ in lm.loglikelihood(requests)]


def test_lengths_beyond_training_are_scored_whole_and_in_any_batch(own_model, prose):
    model, tokenizer = own_model
    assert position_limit(model) is None
    texts = [(prose[0][:size], " harbour opens") for size in (900, 40, 333, 41, 120)]
    single, many = (HwHLM(model, tokenizer, batch_tokens=size) for size in (1, 100_000))
    together = scores(many, texts)
    assert together == pytest.approx(scores(single, texts), abs=1e-4)
    assert many.max_length > 2 * TRAINING_LENGTH
    assert many.counts["t"].truncated == 0
    # And by the definition, from one forward pass over the whole text.
    context = tokenizer.encode(texts[0][0], add_special_tokens=False)
    whole = tokenizer.encode("".join(texts[0]), add_special_tokens=False)
    with torch.no_grad():
        table = model(torch.tensor([whole])).logits[0].log_softmax(-1)
    expected = sum(table[place - 1, whole[place]].item() for place in range(len(context), len(whole)))
    assert together[0] == pytest.approx(expected, abs=1e-4)


def test_what_answers_have_in_common_is_computed_once_and_changes_no_score(own_model, prose, monkeypatch):
    model, tokenizer = own_model
    questions = [prose[2][start : start + size] for start, size in ((0, 300), (400, 310), (900, 150), (1500, 20))]
    texts = [(question, answer) for question in questions for answer in (" yes", " no, it rests", " the mill and more")]
    lengths = []
    forward = type(model).forward

    @functools.wraps(forward)
    def watched(self, input_ids, **options):
        lengths.append((input_ids.shape[0], input_ids.numel(), options.get("cache") is not None))
        return forward(self, input_ids, **options)

    # Small batches: several of them, some with one question and some with more.
    separate = scores(HwHLM(model, tokenizer, batch_tokens=1000, share_prefixes=False), texts)
    monkeypatch.setattr(type(model), "forward", watched)
    for batch_tokens in (1, 1000, 100_000):
        lengths.clear()
        shared = scores(HwHLM(model, tokenizer, batch_tokens=batch_tokens), texts)
        assert shared == pytest.approx(separate, abs=1e-4)
        assert any(continued for _, _, continued in lengths)
    whole = sum(len(tokenizer.encode("".join(text), add_special_tokens=False)) for text in texts)
    assert sum(tokens for _, tokens, _ in lengths) < whole


def test_a_text_begins_after_the_end_token_that_parts_documents_in_training(own_model):
    model, tokenizer = own_model
    assert tokenizer.bos_token_id != tokenizer.eos_token_id
    assert HwHLM(model, tokenizer).prefix_token_id == tokenizer.eos_token_id
    assert HwHLM(model, tokenizer, add_bos=True).prefix_token_id == tokenizer.bos_token_id


def test_batched_generation_equals_single_generation(own_model, prose):
    model, tokenizer = own_model
    prompts = [tokenizer.encode(prose[1][:size], add_special_tokens=False) for size in (300, 20, 90)]
    together = generate_greedy(model, prompts, 6, tokenizer.pad_token_id, None)
    assert together == [generate_greedy(model, [prompt], 6, tokenizer.pad_token_id, None)[0] for prompt in prompts]
    assert [len(tokens) for tokens in together] == [6, 6, 6]


def test_needles_are_scored_beyond_the_training_length(own_model, prose):
    model, tokenizer = own_model
    generator = NiahGenerator(tokenizer, prose_haystack(prose, "prose"), max_new_tokens=12, seed=0)
    samples = [generator.make(256, depth, 0) for depth in (0, 100)]
    for metric in ("teacher_forced_exact", "ruler_contains"):
        assert score_samples(model, tokenizer, samples, metric, 2048, 12) == [0.0, 0.0]
