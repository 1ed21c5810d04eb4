from __future__ import annotations

import pytest
import torch

from wdsmix.errors import ConfigError
from wdsmix.training.policies.text import HashedText, PretrainedText, text_encoder


@pytest.fixture
def encoder():
    torch.manual_seed(0)
    return HashedText(16, buckets=512)


def test_a_token_for_each_word(encoder):
    tokens, real = encoder(["pick up the Cube", "", "把杯子放好", "pick up the cube!"])
    assert tokens.shape == (4, 6, 16)
    assert real.sum(1).tolist() == [5, 1, 6, 5]
    assert torch.equal(tokens[0], tokens[3])
    assert not torch.equal(tokens[0, 1], tokens[0, 2])
    same, _ = encoder(["pick up the cube"])
    assert torch.equal(same[0], tokens[0, :5])


def test_word_order_counts_and_long_texts_are_cut(encoder):
    tokens, _ = encoder(["put a on b", "put b on a"])
    assert not torch.allclose(tokens[0], tokens[1])
    _, real = encoder([" ".join(["word"] * 100)])
    assert real.shape == (1, 33)


def test_unseen_words_are_near_words_of_the_same_letters(encoder):
    bags = {word: set(encoder.bags(word)[1]) for word in ("drawer", "drawers", "mug")}
    assert len(bags["drawer"] & bags["drawers"]) >= 4
    assert not bags["drawer"] & bags["mug"]


def test_rows_do_not_depend_on_the_process(encoder):
    """Pinned: a checkpoint's table is worth nothing under another hash."""
    assert encoder.bags("cup") == [[0], [116, 297, 395, 338]]


def test_gradient_reaches_the_words_that_were_there(encoder):
    tokens, real = encoder(["mug"])
    tokens[real].sum().backward()
    rows = encoder.ngram_embed.weight.grad.any(1).nonzero().flatten().tolist()
    assert rows == sorted({0, *encoder.bags("mug")[1]})


def test_without_transformers_or_model_the_error_says_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match=r"wdsmix\[vla\]|can't load the text encoder"):
        text_encoder(str(tmp_path / "nothing"), 16)


def test_a_pretrained_encoder_is_frozen_and_no_part_of_the_checkpoint(tmp_path):
    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "pick", "up", "the", "cube"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    transformers.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    transformers.BertModel(config).save_pretrained(tmp_path)
    encoder = PretrainedText(str(tmp_path), 16)
    tokens, real = encoder(["pick up the cube", "pick", ""])
    assert tokens.shape == (3, 6, 16)
    assert real.sum(1).tolist()[:2] == [6, 3]
    assert real[2].any()
    assert sorted(encoder.state_dict()) == ["project.bias", "project.weight"]
    again, _ = encoder(["pick"])
    torch.testing.assert_close(again[0], tokens[1, :3])
    tokens.sum().backward()
    assert encoder.project.weight.grad.any()
