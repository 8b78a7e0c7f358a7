"""Mixed cache: logits with it equal those of the full forward pass, in every architecture and under padding."""

import pytest
import torch

from hwh_core.heads import GATED_DELTANET
from hwh_core.modeling import HwHCache
from hwh_core.modeling.cache import BLOCK, AttentionState, DeltaNetState, room_for

TOLERANCE = 1e-4


def largest(a, b):
    return (a - b).abs().max().item()


@torch.no_grad()
@pytest.mark.parametrize("prompt", [1, 7, 8, 31, 32, 33, 65])
def test_cached_logits_equal_the_full_forward(model, tokens, prompt):
    ids = tokens(2, prompt + 12)
    full = model(ids).logits
    output = model(ids[:, :prompt], use_cache=True)
    assert largest(output.logits, full[:, :prompt]) < TOLERANCE
    cache = output.cache
    # One token, several at once (both paths of Gated DeltaNet), then one by one.
    for start, end in ((0, 1), (1, 4), (4, 10), (10, 11), (11, 12)):
        output = model(ids[:, prompt + start : prompt + end], cache=cache)
        assert output.cache is cache
        assert largest(output.logits, full[:, prompt + start : prompt + end]) < TOLERANCE
    assert cache.get_seq_length() == prompt + 12


@torch.no_grad()
def test_left_padding_touches_nothing(model, tokens):
    ids, filler = tokens(1, 21, seed=1), tokens(1, 9, seed=2)
    alone = model(ids).logits
    padded = torch.cat((filler, ids), dim=1)
    mask = torch.ones_like(padded)
    mask[:, :9] = 0
    beside = tokens(1, 30, seed=3)
    batch, batch_mask = torch.cat((padded, beside)), torch.cat((mask, torch.ones_like(beside)))
    output = model(batch, attention_mask=batch_mask, use_cache=True)
    assert output.logits.isfinite().all()
    assert largest(output.logits[:1, 9:], alone) < TOLERANCE
    assert largest(output.logits[1:], model(beside).logits) < TOLERANCE
    # The states after the prompt are those of the unpadded prompt.
    single = model(ids, use_cache=True).cache
    for layer, own in zip(output.cache.states, single.states, strict=True):
        for state, expected in zip(layer, own, strict=True):
            if isinstance(state, DeltaNetState):
                assert largest(state.recurrent[:1], expected.recurrent) < TOLERANCE
                for convolution, wanted in zip(state.convolution, expected.convolution, strict=True):
                    assert largest(convolution[:1], wanted) < TOLERANCE


@torch.no_grad()
def test_a_prompt_shorter_than_the_convolution_may_be_padded(make_model, tokens):
    model = make_model("hwh_std")
    ids = tokens(1, 2)
    padded = torch.cat((tokens(1, 5, seed=4), ids), dim=1)
    mask = torch.tensor([[0] * 5 + [1] * 2])
    more = tokens(1, 3, seed=5)
    output = model(padded, attention_mask=mask, use_cache=True)
    mask = torch.cat((mask, torch.ones(1, 3, dtype=torch.long)), dim=1)
    output = model(more, attention_mask=mask, cache=output.cache)
    assert largest(output.logits, model(torch.cat((ids, more), dim=1)).logits[:, 2:]) < TOLERANCE


def test_batched_generation_equals_single_generation(model, tokens):
    prompts = [tokens(1, length, seed=length) for length in (3, 17, 40)]
    longest = max(prompt.shape[1] for prompt in prompts)
    batch, mask = torch.zeros(3, longest, dtype=torch.long), torch.zeros(3, longest, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        batch[row, longest - prompt.shape[1] :] = prompt
        mask[row, longest - prompt.shape[1] :] = 1
    options = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": 0}
    together = model.generate(batch, attention_mask=mask, **options)[:, longest:]
    for row, prompt in enumerate(prompts):
        alone = model.generate(prompt, **options)[0, prompt.shape[1] :]
        assert together[row].tolist() == alone.tolist()


@torch.no_grad()
def test_greedy_generation_is_the_argmax_of_the_full_forward(model, tokens):
    ids = tokens(2, 20)
    generated = model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0)
    uncached = model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0, use_cache=False)
    assert torch.equal(generated, uncached)
    assert torch.equal(model(generated).logits.argmax(-1)[:, 19:-1], generated[:, 20:])


@pytest.mark.filterwarnings("ignore:.*past_key_values.*:FutureWarning")
def test_generation_goes_on_from_a_given_cache(make_model, tokens):
    model = make_model("hwh_std")
    ids = tokens(1, 20)
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad():
        cache = model(ids[:, :12], use_cache=True).cache
    assert torch.equal(model.generate(ids, past_key_values=cache, **options), model.generate(ids, **options))


def test_beam_search_reorders_every_state(make_model, tokens):
    model = make_model("hwh_swa")
    ids = tokens(2, 9)
    options = {"max_new_tokens": 6, "do_sample": False, "num_beams": 3, "pad_token_id": 0}
    assert torch.equal(model.generate(ids, **options), model.generate(ids, use_cache=False, **options))


@torch.no_grad()
def test_a_window_keeps_only_what_the_next_token_sees(make_model, tokens):
    model = make_model("hwh_swa")
    cache = model(tokens(1, 50), use_cache=True).cache
    for layer in cache.states:
        for state in layer:
            assert isinstance(state, AttentionState)
            assert state.length == (50 if state.window is None else state.window - 1)


@torch.no_grad()
def test_a_recurrent_state_does_not_grow(make_model, tokens):
    model = make_model("gdn")
    cache = model(tokens(1, 50), use_cache=True).cache
    for layer, groups in zip(cache.states, model.config.layers, strict=True):
        for state, group in zip(layer, groups, strict=True):
            assert group.kind == GATED_DELTANET
            assert tuple(state.recurrent.shape) == (1, group.heads, group.head_dim, group.head_dim)
            assert [tuple(x.shape) for x in state.convolution] == [(1, group.conv_size - 1, group.width)] * 3


@torch.no_grad()
def test_rows_can_be_selected_and_repeated(make_model, tokens):
    model = make_model("hwh_std")
    ids, following = tokens(3, 15), tokens(3, 1, seed=9)
    expected = model(torch.cat((ids, following), dim=1)).logits[:, -1]
    cache = model(ids, use_cache=True).cache
    cache.batch_select_indices(torch.tensor([2, 0]))
    assert largest(model(following[[2, 0]], cache=cache).logits[:, -1], expected[[2, 0]]) < TOLERANCE
    cache = model(ids, use_cache=True).cache
    cache.batch_repeat_interleave(2)
    twice = following.repeat_interleave(2, dim=0)
    assert largest(model(twice, cache=cache).logits[:, -1], expected.repeat_interleave(2, dim=0)) < TOLERANCE


def appended(window, counts, rows=2):
    """A state after updates by ``counts`` tokens, checked at each against plain concatenation."""
    generator = torch.Generator().manual_seed(0)
    state, everything = AttentionState(window), torch.zeros(2, rows, 3, 0, 4)
    for count in counts:
        new = torch.randn(2, rows, 3, count, 4, generator=generator)
        before = everything if window is None else everything[..., everything.shape[-2] - state.length :, :]
        returned = torch.stack(state.update(*new.unbind()))
        assert torch.equal(returned, torch.cat((before, new), dim=-2))
        everything = torch.cat((everything, new), dim=-2)
        kept = everything.shape[-2] if window is None else min(window - 1, everything.shape[-2])
        assert state.length == kept
        assert torch.equal(torch.stack((state.keys, state.values)), everything[..., everything.shape[-2] - kept :, :])
    return state


@torch.no_grad()
@pytest.mark.parametrize(
    "counts", [[1] * 40, [30, *[1] * 40], [3, 9, 4, 1, 30, 2, 11, 12, 1, 5, 24, 1], [BLOCK, 1, 300]]
)
@pytest.mark.parametrize("window", [None, 1, 2, 7, 12])
def test_keys_are_those_of_plain_concatenation(window, counts):
    appended(window, counts)


@torch.no_grad()
def test_a_new_token_is_written_without_moving_the_others():
    state = appended(None, [BLOCK - 1])
    place = state.keys.data_ptr()
    for _ in range(BLOCK - 1):
        state.update(torch.ones(2, 3, 1, 4), torch.ones(2, 3, 1, 4))
        if state.length <= BLOCK:
            assert state.keys.data_ptr() == place
    assert state.keys.data_ptr() != place
    assert state.keys.untyped_storage().nbytes() == 2 * 3 * 2 * BLOCK * 4 * 4


@torch.no_grad()
def test_the_buffer_of_a_window_does_not_grow():
    state = appended(12, [50, *[1] * 60])
    assert state.keys.untyped_storage().nbytes() == 2 * 3 * 24 * 4 * 4


def test_room_grows_by_an_eighth_in_whole_blocks():
    assert [room_for(1), room_for(BLOCK), room_for(BLOCK + 1)] == [BLOCK, BLOCK, 2 * BLOCK]
    assert room_for(80 * BLOCK + 1, 80 * BLOCK) == 90 * BLOCK


@torch.no_grad()
def test_a_buffer_of_inference_mode_may_go_on_outside(make_model, tokens):
    model, ids = make_model("hwh_swa"), tokens(1, 32)
    with torch.inference_mode():
        cache = model(ids[:, :30], use_cache=True).cache
    steps = [model(ids[:, place : place + 1], cache=cache).logits for place in (30, 31)]
    assert largest(torch.cat(steps, dim=1), model(ids).logits[:, 30:]) < TOLERANCE


def test_gradients_flow_through_a_cache(make_model, tokens):
    """Through kept keys and values, as through the full pass."""
    model, ids = make_model("hwh_swa"), tokens(1, 34)
    gradients = []
    for ends in ((34,), (30, 31, 34)):
        model.zero_grad()
        cache, start, logits = None, 0, []
        for end in ends:
            output = model(ids[:, start:end], cache=cache, use_cache=True)
            cache, start = output.cache, end
            logits.append(output.logits)
        torch.cat(logits, dim=1)[:, 30:].square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for whole, stepwise in zip(*gradients, strict=True):
        assert largest(whole, stepwise) < 1e-4 * max(1.0, whole.abs().max().item())


@torch.no_grad()
def test_bytes_of_a_cache(make_model, tokens):
    model = make_model("hwh_std", num_layers=4)
    cache = HwHCache(model.config.layers)
    assert cache.used_bytes() == cache.allocated_bytes() == 0
    model(tokens(3, 50), cache=cache)
    expected = allocated = 0
    for group in (group for layer in model.config.layers for group in layer):
        if group.kind == GATED_DELTANET:
            states = group.heads * group.head_dim**2 + 3 * (group.conv_size - 1) * group.width
            expected, allocated = expected + 3 * 4 * states, allocated + 3 * 4 * states
        else:
            expected += 3 * 4 * 2 * group.width * 50
            allocated += 3 * 4 * 2 * group.width * BLOCK
    assert cache.used_bytes() == expected
    assert cache.allocated_bytes() == allocated


def test_a_cache_cannot_be_shortened(make_model):
    with pytest.raises(NotImplementedError, match="cannot be shortened"):
        HwHCache(make_model("hwh_std").config.layers).crop(3)


def test_another_kind_of_cache_is_refused(make_model, tokens):
    from transformers import DynamicCache

    model = make_model("transformer")
    with pytest.raises(TypeError, match="expected HwHCache, got DynamicCache"):
        model(tokens(1, 4), cache=DynamicCache(config=model.config))


@pytest.mark.parametrize(
    ("mask", "use_cache", "words"),
    [
        ([[1, 0, 1, 1]], False, "on one side"),
        ([[1, 1, 1, 0]], True, "on the left"),
        ([[0, 0, 0, 0]], True, "at least one token"),
        ([[1, 1, 1]], False, r"shape \(1, 3\), expected \(1, 4\)"),
    ],
)
def test_masks_that_cannot_be_honoured_are_refused(make_model, tokens, mask, use_cache, words):
    with pytest.raises(ValueError, match=words):
        make_model("hwh_std")(tokens(1, 4), attention_mask=torch.tensor(mask), use_cache=use_cache)
