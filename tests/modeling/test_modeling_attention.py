"""Attention: blocks of a sliding window against a softmax over single keys, and projections given from outside."""

import pytest
import torch
from torch.nn import functional as F

from hwh_core.heads import FULL_ATTENTION, SLIDING_WINDOW, HeadGroup
from hwh_core.modeling import attention
from hwh_core.modeling.attention import AttentionGroup, attend, visible_keys
from hwh_core.modeling.sdpa import CUDNN_MINIMUM_QUERIES, plan_pays, without_cudnn
from hwh_core.modeling.sliding_window import SlidingWindow

CPU = torch.device("cpu")


def draw(batch, query_length, key_length, heads=2, key_value_heads=2, head_dim=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, heads, query_length, head_dim, generator=generator, dtype=torch.float64)
    k, v = (
        torch.randn(batch, key_value_heads, key_length, head_dim, generator=generator, dtype=torch.float64)
        for _ in range(2)
    )
    return q, k, v


def one_by_one(q, k, v, window, key_mask=None, scaling=0.5):
    """Each query by itself over the keys that it sees."""
    batch, heads, query_length, _ = q.shape
    output = torch.zeros_like(q)
    past = k.shape[2] - query_length
    for b in range(batch):
        for h in range(heads):
            shared = h // (heads // k.shape[1])
            for t in range(query_length):
                own = past + t
                seen = [
                    j
                    for j in range(max(0, own - window + 1), own + 1)
                    if j == own or key_mask is None or bool(key_mask[b, j])
                ]
                weights = (scaling * k[b, shared, seen] @ q[b, h, t]).softmax(0)
                output[b, h, t] = weights @ v[b, shared, seen]
    return output


def padding(batch, length, counts, side):
    mask = torch.ones(batch, length, dtype=torch.bool)
    for row, count in enumerate(counts):
        if side == "left":
            mask[row, :count] = False
        elif count:
            mask[row, -count:] = False
    return mask


@pytest.mark.parametrize("window", [1, 2, 5, 8])
@pytest.mark.parametrize("length", [17, 24, 31, 40])
def test_blocks_equal_single_queries(window, length):
    q, k, v = draw(2, length, length)
    mask = visible_keys(length, length, window, None, CPU)
    assert isinstance(mask, SlidingWindow)
    assert (attend(q, k, v, scaling=0.5, mask=mask) - one_by_one(q, k, v, window)).abs().max() < 1e-12


@pytest.mark.parametrize("past", [1, 3, 4, 9])
def test_blocks_behind_kept_keys(past):
    """A window of 5 keeps at most 4 keys; more of them must not be seen either."""
    q, k, v = draw(2, 23, 23 + past)
    mask = visible_keys(23, 23 + past, 5, None, CPU)
    assert isinstance(mask, SlidingWindow)
    assert (attend(q, k, v, scaling=0.5, mask=mask) - one_by_one(q, k, v, 5)).abs().max() < 1e-12


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("query_length", "key_length"), [(23, 23), (20, 20), (19, 22), (16, 25)])
def test_blocks_with_padding(side, query_length, key_length):
    q, k, v = draw(3, query_length, key_length)
    key_mask = padding(3, key_length, (0, 2, 13), side)
    mask = visible_keys(query_length, key_length, 5, key_mask, CPU)
    assert isinstance(mask, SlidingWindow)
    output = attend(q, k, v, scaling=0.5, mask=mask)
    assert (output - one_by_one(q, k, v, 5, key_mask)).abs().max() < 1e-12


@pytest.mark.parametrize("past", [0, 4])
def test_blocks_with_shared_keys_and_their_gradients(past):
    inputs = [x.requires_grad_() for x in draw(2, 18, 18 + past, heads=6, key_value_heads=2)]
    weight = torch.randn(2, 6, 18, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mask = visible_keys(18, 18 + past, 5, None, CPU)
    assert isinstance(mask, SlidingWindow)
    outputs = attend(*inputs, scaling=0.5, mask=mask), one_by_one(*inputs, 5)
    ours, expected = (torch.autograd.grad((output * weight).sum(), inputs) for output in outputs)
    assert (outputs[0] - outputs[1]).abs().max() < 1e-12
    for name, a, b in zip("qkv", ours, expected, strict=True):
        assert (a - b).abs().max() < 1e-12, name


@pytest.mark.parametrize("key_mask", [None, padding(2, 27, (0, 9), "left")])
def test_rows_of_the_full_mask_can_be_read(key_mask):
    mask = visible_keys(24, 27, 5, key_mask, CPU)
    assert isinstance(mask, SlidingWindow)
    assert mask.dtype == torch.bool
    i, j = torch.arange(3, 27)[:, None], torch.arange(27)[None, :]
    expected = ((j <= i) & (j > i - 5))[None, None]
    if key_mask is not None:
        expected = (expected & key_mask[:, None, None]) | (i == j)
    assert torch.equal(mask[..., slice(0, 24), :27], expected)
    assert torch.equal(mask[..., slice(20, 24), slice(None, 25)], expected[..., 20:, :25])


def test_no_mask_of_a_window_grows_with_the_square_of_the_length():
    key_mask = padding(2, 4096, (0, 100), "left")
    for mask, rows in ((None, 1), (key_mask, 2 * (4096 // 16 - 1))):
        window = visible_keys(4096, 4096, 16, mask, CPU)
        assert tuple(window.blocks.shape) == (rows, 1, 16, 32)
        assert window.first is None if mask is None else tuple(window.first.shape) == (2, 1, 16, 16)


def test_blocks_are_traced_as_one_graph():
    q, k, v = (x.float() for x in draw(2, 29, 29))

    def windowed(q, k, v):
        return attend(q, k, v, scaling=0.5, mask=visible_keys(29, 29, 6, None, q.device))

    traced = torch.compile(windowed, backend="eager", fullgraph=True)
    assert torch.equal(traced(q, k, v), windowed(q, k, v))


def test_a_window_that_fits_into_one_block_is_refused():
    with pytest.raises(ValueError, match="4 queries fit into one block of window = 4"):
        SlidingWindow(4, 4, 4, None, CPU)


@pytest.mark.parametrize("window", [None, 6])
def test_a_single_query_needs_no_mask_and_sees_every_key(window):
    q, k, v = draw(2, 1, 6, heads=4)
    mask = visible_keys(1, 6, window, None, CPU)
    assert mask is None
    assert (attend(q, k, v, scaling=0.5, mask=mask) - one_by_one(q, k, v, 6)).abs().max() < 1e-12
    assert visible_keys(1, 7, 6, None, CPU)[0, 0].int().tolist() == [[0, 1, 1, 1, 1, 1, 1]]


@torch.no_grad()
@pytest.mark.parametrize("gate", [False, True])
def test_projections_may_come_from_one_product(gate):
    torch.manual_seed(0)
    group = AttentionGroup(24, HeadGroup(FULL_ATTENTION, 4, 6, kv_heads=2, gate=gate), 1e-6)
    projections = group.input_projections()
    expected = [group.q_proj, group.k_proj, group.v_proj] + ([group.g_proj] if gate else [])
    assert list(projections) == expected
    x = torch.randn(2, 7, 24)
    joint = F.linear(x, torch.cat([p.weight for p in projections]))
    parts = joint.split([p.out_features for p in projections], dim=-1)
    shared = {"cos_sin": None, "mask": None, "state": None}
    output = group(torch.full_like(x, float("nan")), projected=parts, **shared)
    assert (output - group(x, **shared)).abs().max() < 1e-5
    with pytest.raises(ValueError, match=f"got 2 tensors, expected {len(projections)}"):
        group(x, projected=parts[:2], **shared)


@torch.no_grad()
def test_a_replaced_attend_sees_the_window(monkeypatch):
    """What probes rely on: rotated q, k, v and a mask whose rows can be read."""
    seen = []
    own = attention.attend

    def watched(q, k, v, *, scaling, mask):
        seen.append((tuple(q.shape), mask))
        return own(q, k, v, scaling=scaling, mask=mask)

    monkeypatch.setattr(attention, "attend", watched)
    group = AttentionGroup(16, HeadGroup(SLIDING_WINDOW, 2, 8, window=4), 1e-6)
    group(torch.randn(1, 20, 16), cos_sin=None, mask=visible_keys(20, 20, 4, None, CPU), state=None)
    ((shape, mask),) = seen
    assert shape == (1, 2, 20, 8)
    assert mask[..., slice(19, 20), :20].flatten().tolist() == [False] * 16 + [True] * 4


def test_plans_are_built_in_training_and_for_long_prompts_only():
    assert plan_pays(1, grad_enabled=True)
    assert plan_pays(CUDNN_MINIMUM_QUERIES, grad_enabled=False)
    assert not plan_pays(1, grad_enabled=False)


@pytest.mark.parametrize("before", [True, False])
def test_the_choice_of_kernels_is_put_back(before):
    def fail():
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        raise ValueError("in the middle")

    enabled = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(before)
        with pytest.raises(ValueError, match="in the middle"), without_cudnn():
            fail()
        assert torch.backends.cuda.cudnn_sdp_enabled() == before
    finally:
        torch.backends.cuda.enable_cudnn_sdp(enabled)
