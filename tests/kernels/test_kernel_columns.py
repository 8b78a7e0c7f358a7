"""Cutting into columns and joining again: the Triton kernel (on a GPU, otherwise interpreted) and the gradient."""

from __future__ import annotations

import pytest
import torch
import triton

from hwh_kernels import columns
from hwh_kernels import columns_triton as kernel

DEVICE = "cuda" if isinstance(kernel._copy, triton.runtime.JITFunction) else "cpu"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernel_equals_cat(dtype):
    """Widths that fill no block, a part with rows farther apart than wide, and one with heads before tokens."""
    generator = torch.Generator().manual_seed(0)
    plain = torch.randn(2, 3, 7, generator=generator).to(dtype)
    slice_of_wider = torch.randn(2, 3, 300, generator=generator).to(dtype)[..., 5:290]
    heads_first = torch.randn(2, 4, 3, 2, generator=generator).to(dtype).transpose(1, 2).flatten(2)
    parts = [part.to(DEVICE) for part in (plain, slice_of_wider, heads_first)]
    assert torch.equal(kernel.join(parts), torch.cat(parts, dim=-1))


@pytest.mark.parametrize("compiled", [False, True])
def test_gradient_of_the_split(compiled):
    """With a part that is never used; the same by torch's own split."""

    def through(x, split):
        first, second, _ = split(x)
        return (first.sin() * second.sum(-1, keepdim=True)).sum()

    x = torch.randn(2, 3, 9, device=DEVICE, requires_grad=True)
    own = lambda x: through(x, lambda x: columns._Split.apply(x, 4, 3, 2))  # noqa: E731
    run = torch.compile(own, fullgraph=True, backend="aot_eager") if compiled else own
    (found,) = torch.autograd.grad(run(x), x)
    (wanted,) = torch.autograd.grad(through(x, lambda x: x.split([4, 3, 2], dim=-1)), x)
    torch.testing.assert_close(found, wanted)


def test_operator_keeps_its_contract():
    parts = [torch.randn(2, 3, width, device=DEVICE) for width in (4, 1)]
    torch.library.opcheck(columns._join, (parts,), test_utils=("test_schema", "test_faketensor"))
