"""Task texts as tokens: hashed word pieces, which need no download, or any Hugging Face text encoder by name."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from wdsmix.errors import ConfigError

__all__ = ["HashedText", "PretrainedText", "text_encoder"]

_WORDS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_]+")
"""A run of letters and digits; each character for itself in scripts that put no spaces between words."""


class HashedText(nn.Module):
    """Each word is the mean of the vectors of its letter n-grams, as fastText has it; unseen words come out near.

    Args:
        width: Features of a token.
        buckets: Rows of the table that n-grams are hashed into.
        longest: Words of a text that count.
    """

    def __init__(self, width: int, buckets: int = 4096, longest: int = 32) -> None:
        super().__init__()
        self.buckets, self.longest = buckets, longest
        self.ngram_embed = nn.EmbeddingBag(buckets, width, mode="mean")
        self.word_embed = nn.Parameter(torch.randn(longest + 1, width) * 0.02)

    def forward(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Tokens [B, L, width], the first one the same for all texts, and bool [B, L]: which are words."""
        distinct = list(dict.fromkeys(texts))
        bags = [self.bags(text) for text in distinct]
        device = self.word_embed.device
        length = max(len(bag) for bag in bags)
        flat = [word for bag in bags for word in bag]
        starts = torch.tensor([0, *(len(word) for word in flat[:-1])]).cumsum(0)
        ids = torch.tensor([number for word in flat for number in word])
        vectors = self.ngram_embed(ids.to(device), starts.to(device))
        real = torch.zeros(len(distinct), length, dtype=torch.bool)
        for row, bag in enumerate(bags):
            real[row, : len(bag)] = True
        real = real.to(device)
        tokens = vectors.new_zeros(*real.shape, vectors.shape[-1]).masked_scatter(real[..., None], vectors)
        places = {text: place for place, text in enumerate(distinct)}
        order = torch.tensor([places[text] for text in texts], device=device)
        return (tokens + self.word_embed[:length])[order], real[order]

    def bags(self, text: str) -> list[list[int]]:
        """Rows of the table for each token of a text."""
        words = [match[0].lower() for match in _WORDS.finditer(text)][: self.longest]
        return [[0], *([self._row(piece) for piece in _pieces(word)] for word in words)]

    def _row(self, piece: str) -> int:
        return 1 + zlib.crc32(piece.encode()) % (self.buckets - 1)


class PretrainedText(nn.Module):
    """A frozen Hugging Face text encoder, and a learned layer to the policy's width.

    The encoder is no part of the checkpoint; it is loaded by name. What it makes of a text is kept, for tasks repeat.

    Args:
        name: Of a model on the hub or in a folder, with its tokenizer.
        width: Features of a token.
        longest: Tokens of a text that count.

    Raises:
        ConfigError: transformers is missing, or there is no such model.
    """

    def __init__(self, name: str, width: int, longest: int = 64) -> None:
        super().__init__()
        try:
            from transformers import AutoModel, AutoTokenizer
        except ImportError as error:
            raise ConfigError(
                "text encoders from Hugging Face need transformers",
                where="text_encoder",
                found=name,
                hint="pip install 'wdsmix[vla]', or take text_encoder: hashed",
            ) from error
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(name)
            model: Any = AutoModel.from_pretrained(name).eval().requires_grad_(False)
        except (OSError, ValueError) as error:
            message = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ConfigError(f"can't load the text encoder: {message}", where="text_encoder", found=name) from error
        if model.config.is_encoder_decoder:
            model = model.get_encoder()
        # In a tuple: not registered, so neither saved nor averaged nor trained.
        self._encoder = (getattr(model, "text_model", model),)
        self._longest = longest
        self._known: dict[str, Tensor] = {}
        self.project = nn.Linear(self._encode("").shape[-1], width)

    def forward(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Tokens [B, L, width] and bool [B, L]."""
        found = [self._encode(text) for text in texts]
        lengths = torch.tensor([len(tokens) for tokens in found])
        real = (torch.arange(int(lengths.max())) < lengths[:, None]).to(self.project.weight.device)
        tokens = nn.utils.rnn.pad_sequence(found, batch_first=True).to(real.device)
        return self.project(tokens), real

    @torch.no_grad()
    def _encode(self, text: str) -> Tensor:
        """float32 [L, features], on the CPU."""
        if text not in self._known:
            (encoder,) = self._encoder
            given = self._tokenizer(text or " ", return_tensors="pt", truncation=True, max_length=self._longest)
            with torch.autocast("cpu", enabled=False):
                out = encoder(input_ids=given["input_ids"], attention_mask=given["attention_mask"])
            self._known[text] = out.last_hidden_state[0].float()
        return self._known[text]


def text_encoder(name: str, width: int) -> HashedText | PretrainedText:
    """The text encoder of that name: ``hashed``, or a Hugging Face model."""
    return HashedText(width) if name == "hashed" else PretrainedText(name, width)


def _pieces(word: str) -> list[str]:
    """The word, and its runs of three letters, ends marked: ``cup`` has ``<cup>``, ``<cu``, ``cup``, ``up>``."""
    marked = f"<{word}>"
    return [marked, *(marked[start : start + 3] for start in range(len(marked) - 2) if len(marked) > 3)]
