"""What benchmarks.train measures: sizes, lengths, batches and architectures, one case a process."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hwh_core.config import TrainingConfig, load_preset
from hwh_core.memory_plan import HUB_VOCABULARY

CONFIG = Path(__file__).parents[1] / "config"
ROPE_THETA = 10000.0
ARCHITECTURES = ("transformer", "gdn", "inter", "hwh_std")
# Tokens of a step at 380M: one micro-batch. At 1.4B, half of that is what fits into 139 GiB without recomputation.
TOKENS = {"380m": 65536, "1400m": 32768}
# Tokens of a step of benchmarks.paper, and timed steps behind those that warm up.
PAPER_TOKENS, PAPER_STEPS = 65536, 24
# Ways to run a peer, by kind of case; the fastest counts. On a CPU nothing is compiled.
PEER_VARIANTS = {
    "fla": (
        "eager, fused cross entropy",
        "eager, fused linear cross entropy",
        "torch.compile, fused cross entropy",
    ),
    "hf": ("torch.compile",),
}
QUICK_SHAPE = {
    "num_layers": 4, "hidden_size": 64, "intermediate_size": 96, "attention_head_dim": 16, "gdn_head_dim": 16,
    "conv_size": 4, "gate": True,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One measurement: ``rows`` sequences of ``length`` tokens a step.

    ``kind``: ours (the project's Trainer), fla or hf (a peer of matched size), agreement (loss curves), paper (ours on
    the text of a token store). ``steps``: the least and the greatest number of timed ones.
    """

    kind: str
    size: str
    architecture: str
    shape: dict[str, Any]
    vocab_size: int
    length: int
    rows: int
    training: TrainingConfig
    steps: tuple[int, int]

    @property
    def name(self) -> str:
        """Names the case on the command line and in the ids of its figures."""
        if self.kind == "agreement":
            return f"agreement_{self.architecture}"
        if self.kind == "paper":
            return f"{self.size}_{self.architecture}"
        return f"{self.size}_{self.length}_{self.architecture}"


def _training(scale_training: TrainingConfig, rows: int, length: int, **changes: Any) -> TrainingConfig:
    """A preset's recipe at another batch. Many steps, of which a case takes few, so that compiling pays."""
    values = {"tokens_per_step": rows * length, "micro_batch_tokens": None, "steps": 1_000_000} | changes
    return scale_training.model_copy(update=values)


def _cases(preset: str, scale_name: str, size: str, length: int, rows: int, vocab: int, names: tuple[str, ...]) -> Any:
    scale = next(scale for scale in load_preset(CONFIG / f"{preset}.yaml").hwh.scales if scale.name == scale_name)
    shape, training = scale.shape.model_dump(exclude_none=True), _training(scale.training, rows, length)
    peers = {"fla_gdn": "fla", "hf_llama": "hf"}
    for name in names:
        yield Case(peers.get(name, "ours"), size, name, shape, vocab, length, rows, training, (6, 20))


def full_plan() -> list[Case]:
    """All cases, the long ones first, so that two devices end at about the same time."""
    plan: list[Case] = []
    plan += _cases("paper", "1.4B", "1400m", 2048, TOKENS["1400m"] // 2048, 32000, ARCHITECTURES)
    for length in (32768, 8192):
        plan += _cases("paper", "380M", "380m", length, TOKENS["380m"] // length, 32000, ARCHITECTURES)
    names = ("fla_gdn", "hf_llama", *ARCHITECTURES)
    plan += _cases("paper", "380M", "380m", 2048, TOKENS["380m"] // 2048, 32000, names)
    plan += _cases("single_gpu", "35M", "8x512_b32", 2048, 32, 16384, ARCHITECTURES)
    plan += _cases("single_gpu", "35M", "8x512_b8", 2048, 8, 16384, (*ARCHITECTURES, "hwh_swa"))
    scale = load_preset(CONFIG / "single_gpu.yaml").hwh.scales[0]
    shape = scale.shape.model_dump(exclude_none=True) | {"num_layers": 4, "hidden_size": 256, "intermediate_size": 640}
    for name in ("hwh_std", "transformer"):
        training = _training(scale.training, 8, 512)
        plan.append(Case("agreement", "4x256", name, shape, 2048, 512, 8, training, (30, 30)))
    return plan


def quick_plan() -> list[Case]:
    """The same program at a size of seconds, also without a GPU."""
    scale = load_preset(CONFIG / "single_gpu.yaml").hwh.scales[0]
    training = _training(scale.training, 4, 64, compile="never")
    plan = [
        Case(kind, "quick", name, QUICK_SHAPE, 128, 64, 4, training, (3, 3))
        for kind, name in (("ours", "transformer"), ("ours", "hwh_std"), ("hf", "hf_llama"))
    ]
    plan.append(Case("agreement", "quick", "hwh_std", QUICK_SHAPE, 128, 64, 4, training, (5, 5)))
    return plan


def paper_plan(quick: bool) -> list[Case]:
    """Cases of benchmarks.paper: both scales of the paper with the preset's own micro-batches, or a size of seconds.

    The learning rate rises over all steps that are measured: the preset's own warm-up is longer than those are.
    """
    steps = (PAPER_STEPS, PAPER_STEPS)
    if quick:
        case = quick_plan()[0]
        training = case.training.model_copy(update={"warmup_steps": PAPER_STEPS, "micro_batch_tokens": 128})
        return [
            Case("paper", "quick", name, QUICK_SHAPE, case.vocab_size, case.length, case.rows, training, steps)
            for name in ARCHITECTURES
        ]
    plan = []
    for scale in load_preset(CONFIG / "paper.yaml").hwh.scales:
        rows = PAPER_TOKENS // scale.length
        changes = {"micro_batch_tokens": scale.training.micro_batch_tokens, "warmup_steps": PAPER_STEPS}
        training = _training(scale.training, rows, scale.length, **changes)
        shape = scale.shape.model_dump(exclude_none=True)
        size = {"380M": "380m", "1.4B": "1400m"}[scale.name]
        plan += [
            Case("paper", size, name, shape, HUB_VOCABULARY, scale.length, rows, training, steps)
            for name in ARCHITECTURES
        ]
    return plan


def case_on(case: Case, entries: int) -> Case:
    """A case of :func:`paper_plan` on text with a vocabulary of ``entries``.

    Where the text needs fewer than the case has, the model keeps its own, and so the size that names it.
    """
    return dataclasses.replace(case, vocab_size=max(case.vocab_size, entries))


def plan(quick: bool) -> list[Case]:
    """:func:`quick_plan` or :func:`full_plan`."""
    return quick_plan() if quick else full_plan()


def parallel_case(quick: bool, architecture: str) -> Case:
    """What benchmarks.parallel measures: a step of the paper's 380M training, with its micro-batches."""
    if quick:
        case = next(case for case in quick_plan() if case.kind == "ours")
        return dataclasses.replace(case, architecture=architecture)
    scale = next(scale for scale in load_preset(CONFIG / "paper.yaml").hwh.scales if scale.name == "380M")
    shape, rows = scale.shape.model_dump(exclude_none=True), scale.training.tokens_per_step // scale.length
    training = scale.training.model_copy(update={"steps": 1_000_000})
    # As many steps in every process: none may end before the others.
    return Case("ours", "380m", architecture, shape, 32000, scale.length, rows, training, (8, 8))
