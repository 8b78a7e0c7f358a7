"""Gated DeltaNet through the operators around flash-linear-attention, whose functions are replaced by torch here."""

from __future__ import annotations

import importlib
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from hwh_core.heads import GATED_DELTANET, HeadGroup
from hwh_core.modeling.delta_net import GatedDeltaNetGroup, l2_normalize
from hwh_kernels import gated_delta_rule_fla
from hwh_kernels.gated_delta_rule import chunk_gated_delta_rule

CHUNK = gated_delta_rule_fla.CHUNK_SIZE
HIDDEN, HEADS, HEAD_DIM, LENGTH = 24, 2, 8, 70


def chunks_of(g: torch.Tensor) -> list[torch.Tensor]:
    return list(g.split(CHUNK, dim=1))


def l2norm_forward(x):
    rstd = torch.rsqrt(x.float().square().sum(-1) + 1e-6)
    return (x * rstd[..., None]).to(x.dtype), rstd


def l2norm_backward(y, rstd, dy):
    return (dy - (dy * y).sum(-1, keepdim=True) * y) * rstd[..., None]


def chunk_forward(q, k, v, g, beta, scale):
    cumulative = torch.cat([part.cumsum(1) for part in chunks_of(g)], dim=1)
    output, _ = chunk_gated_delta_rule(q, k, v, g, beta, scale)
    batch, length, heads, head_dim = k.shape
    system = k.new_zeros(batch, length, heads, CHUNK)
    states = k.new_zeros(batch, -(-length // CHUNK), heads, head_dim, head_dim)
    return output.contiguous(), cumulative, system, torch.zeros_like(k), torch.zeros_like(v), states


def chunk_backward(do, q, k, v, g, beta, system, w, new_values, states, scale):
    assert system.shape == (*k.shape[:3], CHUNK)
    assert w.shape == new_values.shape == k.shape
    assert states.shape[3:] == (HEAD_DIM, HEAD_DIM)
    first = torch.zeros_like(g[:, :1])
    g = torch.cat([part.diff(dim=1, prepend=first) for part in chunks_of(g)], dim=1)

    def gradients() -> list[torch.Tensor]:
        inputs = [x.detach().requires_grad_() for x in (q, k, v, g, beta)]
        output, _ = chunk_gated_delta_rule(*inputs, scale)
        return [x.contiguous() for x in torch.autograd.grad(output, inputs, do)]

    # Inside an operator autograd is switched off for this thread.
    with ThreadPoolExecutor(1) as other_thread:
        dq, dk, dv, dg, dbeta = other_thread.submit(gradients).result()
    return dq, dk, dv, dg, dbeta


@pytest.fixture
def library(monkeypatch):
    """fla's functions in torch, with their signatures; records the dtypes that the kernels see."""
    seen = []

    def forward(*arguments):
        seen.append(dict(zip(("q", "k", "v", "g", "beta"), (x.dtype for x in arguments[:5]), strict=True)))
        return chunk_forward(*arguments)

    functions = gated_delta_rule_fla._Library(
        l2norm_forward, l2norm_backward, forward, chunk_backward, chunk=None, recurrent=None
    )
    monkeypatch.setattr(gated_delta_rule_fla, "_library", lambda device: functions)
    monkeypatch.setattr(GatedDeltaNetGroup, "uses_fla", lambda self, device: self.backend == "fla")
    return seen


def inputs(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shape = (2, LENGTH, HEADS, HEAD_DIM)
    q, k, v = (torch.randn(shape, generator=generator).to(dtype) for _ in range(3))
    g = -torch.rand(shape[:-1], generator=generator)
    beta = torch.rand(shape[:-1], generator=generator)
    return [x.requires_grad_() for x in (q, k, v, g, beta)]


def group(backend: str) -> GatedDeltaNetGroup:
    torch.manual_seed(0)
    heads = HeadGroup(GATED_DELTANET, heads=HEADS, head_dim=HEAD_DIM, conv_size=4, gate=True)
    module = GatedDeltaNetGroup(HIDDEN, heads, 1e-6, backend=backend)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.3)
    return module


def test_output_and_gradients_equal_the_reference(library):
    given = inputs()
    grad = torch.randn(2, LENGTH, HEADS, HEAD_DIM)
    output = gated_delta_rule_fla.gated_delta_rule(*given, 0.3)
    found = torch.autograd.grad(output, given, grad)
    q, k = l2_normalize(given[0]), l2_normalize(given[1])
    expected, _ = chunk_gated_delta_rule(q, k, *given[2:], 0.3)
    wanted = torch.autograd.grad(expected, given, grad)
    for one, other in zip((output, *found), (expected, *wanted), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_gradients_have_the_dtype_of_the_inputs(library):
    given = inputs(torch.bfloat16)
    output = gated_delta_rule_fla.gated_delta_rule(*given, 0.3)
    assert output.dtype == torch.bfloat16
    gradients = torch.autograd.grad(output.float().sum(), given)
    assert [x.dtype for x in gradients] == [torch.bfloat16] * 3 + [torch.float32] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_operators_keep_their_schema(library, dtype):
    """Fake outputs like real ones, nothing mutated or aliased, the autograd formula traceable."""
    given = [x.detach().requires_grad_() for x in inputs(dtype)]
    tests = ("test_schema", "test_faketensor", "test_autograd_registration", "test_aot_dispatch_static")
    torch.library.opcheck(
        torch.ops.hwh.gated_delta_rule_forward.default,
        (*given, 0.3),
        test_utils=tests if dtype.itemsize == 4 else tests[:3],
    )
    given = [x.detach() for x in given]
    _, *saved = torch.ops.hwh.gated_delta_rule_forward(*given, 0.3)
    arguments = (torch.ones_like(given[0]), given[2], given[4], saved, 0.3)
    torch.library.opcheck(
        torch.ops.hwh.gated_delta_rule_backward.default, arguments, test_utils=("test_schema", "test_faketensor")
    )


def test_an_unused_output_costs_no_backward_pass(library):
    given = inputs()
    _, normalized, *_ = torch.ops.hwh.gated_delta_rule_forward(*given, 0.3)
    assert not normalized.requires_grad


def test_training_through_the_operators_compiles_as_one_graph(library):
    module, other = group("fla"), group("torch")
    x = torch.randn(2, LENGTH, HIDDEN)
    compiled = torch.compile(
        lambda hidden: module(hidden, padding=None, state=None), fullgraph=True, backend="aot_eager", dynamic=False
    )
    output = compiled(x)
    output.square().sum().backward()
    expected = other(x, padding=None, state=None)
    expected.square().sum().backward()
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)
    for (name, one), two in zip(module.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(
            one.grad, two.grad, rtol=1e-3, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("compiled", [False, True])
def test_under_autocast_the_kernels_see_bfloat16(library, compiled):
    module = group("fla")

    def run(hidden):
        return module(hidden, padding=None, state=None)

    if compiled:
        run = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = run(torch.randn(1, 9, HIDDEN))
    output.float().sum().backward()
    assert library[0] == dict.fromkeys("qkv", torch.bfloat16) | {"g": torch.float32, "beta": torch.float32}
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_float32_projections_enter_the_kernels_in_bfloat16_under_autocast(library):
    module = group("fla")
    hidden = torch.randn(1, 9, HIDDEN)
    projected = [projection(hidden) for projection in module.input_projections()]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        module(hidden, padding=None, state=None, projected=projected)
    assert library[0]["q"] == library[0]["k"] == library[0]["v"] == torch.bfloat16


@pytest.mark.parametrize("compiled", [False, True])
def test_projections_from_outside_give_the_same_output(compiled):
    module = group("torch")
    hidden = torch.randn(2, LENGTH, HIDDEN)
    projections = module.input_projections()
    weight = torch.cat([projection.weight for projection in projections])
    sizes = [projection.out_features for projection in projections]
    projected = (hidden @ weight.T).split(sizes, dim=-1)
    expected = module(hidden, padding=None, state=None)
    torch.testing.assert_close(module(hidden, padding=None, state=None, projected=projected), expected)
    assert [
        projection is getattr(module, f"{name}_proj") for name, projection in zip("qkvabg", projections, strict=True)
    ]


def test_projections_together_with_padding_are_refused():
    module = group("torch")
    hidden = torch.randn(1, 5, HIDDEN)
    projected = [projection(hidden) for projection in module.input_projections()]
    with pytest.raises(ValueError, match="projected together with padding"):
        module(hidden, padding=torch.zeros(1, 5, dtype=torch.bool), state=None, projected=projected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q, k, v, g, beta: (q, k, v, g.bfloat16(), beta), "float32"),
        (lambda q, k, v, g, beta: (q, k, v[:, :3], g, beta), "alike"),
        (
            lambda q, k, v, g, beta: (q.repeat(1, 1, 1, 33), k.repeat(1, 1, 1, 33), v.repeat(1, 1, 1, 33), g, beta),
            "head_dim",
        ),
    ],
)
def test_what_the_kernels_do_not_take_is_refused(library, change, message):
    with pytest.raises(ValueError, match=message):
        gated_delta_rule_fla.gated_delta_rule(*change(*inputs()), 0.3)


def test_without_the_package_the_error_says_what_to_install():
    with pytest.raises(ImportError, match="make setup EXTRAS=gpu"):
        gated_delta_rule_fla.import_fla("fla_that_nobody_has.ops", torch.device("cpu"))


def test_the_library_is_imported_without_its_models(tmp_path, monkeypatch):
    """A package laid out as flash-linear-attention: kernels come alone, and models can be imported afterwards."""
    package = tmp_path / "fla"
    for folder in ("layers", "models", "ops"):
        (package / folder).mkdir(parents=True)
        (package / folder / "__init__.py").write_text("", encoding="utf-8")
    (package / "__init__.py").write_text(
        "import importlib\ntry:\n    importlib.import_module('fla.models')\n    heavy = True\n"
        "except ModuleNotFoundError:\n    heavy = False\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        gated_delta_rule_fla.import_fla("fla.ops", torch.device("cpu"))
        assert not sys.modules["fla"].heavy
        assert importlib.import_module("fla.models").__name__ == "fla.models"
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "fla"]:
            del sys.modules[name]
