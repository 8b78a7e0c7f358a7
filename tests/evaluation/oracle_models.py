"""Models whose scores are known beforehand, and the text that they are tried on."""

from __future__ import annotations

import re
from typing import Any

import torch
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.modeling_outputs import CausalLMOutput

MAX_POSITIONS = 512
_SUBJECTS = [
    "harbour", "river", "market", "garden", "bridge", "school", "mill", "tower", "orchard", "station", "library",
    "field",
]  # fmt: skip
_VERBS = ["opens", "closes", "changes", "grows", "rests", "begins", "waits", "turns", "remains", "sleeps"]
_PLACES = ["behind the hill", "near the old wall", "under a grey sky", "beside the road", "in the early light"]
_NEEDLE = re.compile(r"One of the special magic \w+ for ([^:]+) is: (\S+)\.")
_QUESTION = re.compile(r"The special magic \w+ for (.*) mentioned in the provided text (?:is|are)")


def prose_texts() -> list[str]:
    """Twelve articles of 120 sentences each, all different, with no digit that a needle could be confused with."""
    texts = []
    for article in range(12):
        sentences = []
        for number in range(120):
            turn = article * 120 + number
            subject, verb = _SUBJECTS[turn % 12], _VERBS[(turn // 12) % 10]
            place = _PLACES[(turn // 7) % len(_PLACES)]
            sentences.append(f"The {subject} {verb} {place} while {_SUBJECTS[(turn * 5 + 3) % 12]}s look on.")
        texts.append(" ".join(sentences))
    return texts


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE with single digits."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    wording = "A special magic number is hidden within the following text. What is the number for it?"
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|end|>", "<|begin|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*texts, wording], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", bos_token="<|begin|>", pad_token="<|end|>"
    )


class OracleConfig(PretrainedConfig):
    """Configuration of the models below; ``window`` None: everything is seen."""

    model_type = "oracle-of-the-tests"

    def __init__(self, vocab_size: int = 8, window: int | None = None, **kwargs: Any) -> None:
        self.window = window
        super().__init__(**kwargs)
        self.vocab_size = vocab_size
        self.num_hidden_layers = 1


class UniformModel(PreTrainedModel):
    """Gives every token the same probability."""

    config_class = OracleConfig

    def __init__(self, config: OracleConfig) -> None:
        super().__init__(config)
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def forward(self, input_ids: torch.Tensor) -> CausalLMOutput:
        return CausalLMOutput(logits=torch.zeros(*input_ids.shape, self.config.vocab_size))


class CopyModel(PreTrainedModel, GenerationMixin):
    """Finds the needle in the last ``window`` tokens that it has been given and copies its number."""

    config_class = OracleConfig

    def __init__(self, config: OracleConfig, tokenizer: Any = None) -> None:
        super().__init__(config)
        self.unused = torch.nn.Parameter(torch.zeros(1))
        self.tokenizer = tokenizer

    def next_token(self, tokens: list[int]) -> int | None:
        """The next token of the answer, or the end token where a needle is not in sight or the answer is complete.

        None where nothing has been asked yet.
        """
        visible = tokens if self.config.window is None else tokens[-self.config.window :]
        text = self.tokenizer.decode(visible, skip_special_tokens=True)
        question = _QUESTION.findall(text)
        if not question:
            return None
        keys = re.split(", and |, ", question[-1])
        values = [value for key in keys for found, value in _NEEDLE.findall(text) if found == key]
        if not values:
            return self.tokenizer.eos_token_id
        listed = values[0] if len(values) == 1 else f"{', '.join(values[:-1])}, and {values[-1]}"
        answer = self.tokenizer.encode(f" {listed}", add_special_tokens=False)
        written = max(count for count in range(len(answer) + 1) if visible[len(visible) - count :] == answer[:count])
        return answer[written] if written < len(answer) else self.tokenizer.eos_token_id

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, logits_to_keep: int = 0, **_: Any
    ) -> CausalLMOutput:
        width = input_ids.shape[1]
        kept = logits_to_keep or width
        logits = torch.zeros(len(input_ids), kept, self.config.vocab_size)
        logits[..., self.tokenizer.eos_token_id] = 1.0
        for row, tokens in enumerate(input_ids.tolist()):
            # From the last one back to the question, before which there is nothing to say.
            for back in range(1, kept + 1):
                token = self.next_token(tokens[: width + 1 - back])
                if token is None:
                    break
                logits[row, -back, token] = 10.0
        return CausalLMOutput(logits=logits)

    def prepare_inputs_for_generation(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **_: Any
    ) -> dict[str, Any]:
        return {"input_ids": input_ids, "logits_to_keep": 1}


def copy_model(tokenizer: Any, window: int | None = None) -> CopyModel:
    """One that reads and writes with ``tokenizer`` and sees ``window`` tokens."""
    return CopyModel(OracleConfig(vocab_size=len(tokenizer), window=window), tokenizer)
