"""Which trainings of a preset fit into the memory of a GPU: before a workflow starts, and before a training does."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .config import PresetConfig
from .devices import Device
from .memory_estimate import CONTEXT_BYTES, Card, Training, peak_bytes, refusal
from .scripting import UserError

# Of tokenizers that come from a hub, before they are fetched; for estimates only.
HUB_VOCABULARY = 32000
# Names and memory.total in MiB as nvidia-smi prints them, read in published output of each card, with ECC where it is
# on by default; those of H200, H100, A100, L40S, L4 and A10 also stand in the table of
# https://thundergolfer.com/blog/nvidia-gpu-memory-capacity, and that of an H200 was seen when benchmarks/ were run.
KNOWN_CARDS = {
    "NVIDIA B300 SXM6 AC": 275040,
    "NVIDIA B200": 183359,
    "NVIDIA H200": 143771,
    "NVIDIA H200 NVL": 143771,
    "NVIDIA GH200 480GB": 97871,
    "NVIDIA H20": 97871,
    "NVIDIA H100 NVL": 95830,
    "NVIDIA H100 80GB HBM3": 81559,
    "NVIDIA H100 PCIe": 81559,
    "NVIDIA A100-SXM4-80GB": 81920,
    "NVIDIA A100 80GB PCIe": 81920,
    "NVIDIA A100-SXM4-40GB": 40960,
    "NVIDIA A100-PCIE-40GB": 40960,
    "NVIDIA RTX A6000": 49140,
    "NVIDIA RTX 6000 Ada Generation": 49140,
    "NVIDIA L40S": 46068,
    "NVIDIA A40": 46068,
    "NVIDIA GeForce RTX 4090": 24564,
    "NVIDIA L4": 23034,
    "NVIDIA A10": 23028,
    "NVIDIA A10G": 23028,
}


@dataclass(frozen=True)
class Planned:
    """A training of a preset: ``folder`` of its results, and ``key`` of its recipe in the preset."""

    folder: str
    key: str
    training: Training


def vocabularies(preset: PresetConfig) -> dict[str, int]:
    """Entries of every tokenizer of a preset by name."""
    return {t.name: t.vocab_size if t.kind == "bpe" else HUB_VOCABULARY for t in preset.tokenizers}


def planned_trainings(preset: PresetConfig) -> Iterator[Planned]:
    """All trainings of a preset on one process each. Raises ``ArchitectureError`` for sizes that do not fit."""
    entries = vocabularies(preset)
    controlled = preset.controlled
    for model in controlled.models:
        vocabulary = entries[controlled.tokenizer]
        training = Training("transformer", controlled.shape, model.length, vocabulary, controlled.training)
        yield Planned(f"controlled/{model.name}", "controlled.training", training)
    for scale in preset.hwh.scales:
        for member in scale.models:
            vocabulary = entries[scale.tokenizer]
            shape = preset.hwh.shape_of(scale, member.architecture)
            training = Training(member.architecture, shape, scale.length, vocabulary, scale.training)
            yield Planned(f"hwh/{scale.name}/{member.name}", f"hwh.scales.{scale.name}.training", training)


def largest_training(preset: PresetConfig) -> tuple[Planned, int] | None:
    """The training that needs most memory on a GPU, and the bytes that it needs; None without any."""
    needs = [(planned, peak_bytes(planned.training)) for planned in planned_trainings(preset)]
    return max(needs, key=lambda pair: pair[1], default=None)


def planned_cards(devices: Sequence[Device]) -> list[Card]:
    """Memory of whole GPUs among ``devices`` by nvidia-smi; MIG instances, whose share it does not list, are left out.

    All of a card counts as free but what CUDA takes: what runs there now may be gone when a training starts.
    """
    if not devices:
        return []
    command = ["nvidia-smi", "--query-gpu=uuid,memory.total,name", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    cards = {}
    for line in done.stdout.splitlines():
        uuid, mebibytes, name = (part.strip() for part in line.split(",", 2))
        if mebibytes.isdigit():
            cards[uuid] = card_of(name, int(mebibytes) * 2**20)
    return [cards[device.uuid] for device in devices if device.uuid in cards]


def card_of(name: str, total: int) -> Card:
    """A card of ``total`` bytes on which nothing runs."""
    return Card(name, total, total - CONTEXT_BYTES)


def named_card(name: str) -> Card | None:
    """The card of :data:`KNOWN_CARDS` with this name, or with all words of it; None where no such card is known.

    Of several with different memory the smallest, whose name then says so.
    """
    if name in KNOWN_CARDS:
        return card_of(name, KNOWN_CARDS[name] * 2**20)
    words = set(_words(name))
    found = {full: memory for full, memory in KNOWN_CARDS.items() if words and words <= set(_words(full))}
    if not found:
        return None
    full = min(found, key=found.__getitem__)
    told = f" (the smallest of the cards that {name!r} names)" if len(set(found.values())) > 1 else ""
    return card_of(full + told, found[full] * 2**20)


def largest_known_card() -> Card:
    """The card of :data:`KNOWN_CARDS` with most memory, in words for a machine without any."""
    name = max(KNOWN_CARDS, key=KNOWN_CARDS.__getitem__)
    return card_of(f"{name}, the largest card known here,", KNOWN_CARDS[name] * 2**20)


def _words(name: str) -> list[str]:
    return name.lower().replace("-", " ").split()


def refused(
    preset: PresetConfig, folders: Iterable[str], cards: Sequence[Card], processes: Mapping[str, int] | None = None
) -> list[str]:
    """A sentence for each training among ``folders`` that fits on none of ``cards``, those that need most first.

    ``processes``: on how many cards a training of some of these folders runs, if on more than one.
    """
    if not cards:
        return []
    card = max(cards, key=lambda one: one.free)
    wanted = set(folders)
    found = []
    for planned in planned_trainings(preset):
        training = dataclasses.replace(planned.training, processes=(processes or {}).get(planned.folder, 1))
        sentence = refusal(planned.folder, training, f"{planned.key}.micro_batch_tokens", card)
        if planned.folder in wanted and sentence:
            found.append((peak_bytes(training), sentence))
    return [sentence for _, sentence in sorted(found, reverse=True)]


def require_memory(what: str, training: Training, card: Card | None) -> None:
    """Raise :class:`~hwh_core.scripting.UserError` where ``training`` does not fit on ``card``; None: a CPU."""
    sentence = None if card is None else refusal(what, training, "training.micro_batch_tokens", card)
    if sentence:
        raise UserError(sentence)


def card_at_hand(local_rank: int) -> Card | None:
    """The GPU that process ``local_rank`` of this machine trains on, as it is now; None on a CPU."""
    import torch

    if not torch.cuda.is_available() or local_rank >= torch.cuda.device_count():
        return None
    free, total = torch.cuda.mem_get_info(local_rank)
    return Card(torch.cuda.get_device_name(local_rank), total, free)
