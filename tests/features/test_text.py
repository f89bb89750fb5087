"""Texts become the pooled states of the encoder, whatever texts stand beside them."""

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from features.encoders import tiny_text_encoder
from posterity.errors import RefusedFile
from posterity.features import TextEncoder, find_encoder

TEXTS = ["good film", "the plot was awful and the actor was not very good", "music", "a fine film"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_text_encoder(tmp_path_factory.mktemp("encoder"))


def test_vectors_are_the_mean_of_the_states_of_each_text_alone(folder):
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        states = [model(**tokenizer(t, return_tensors="pt", truncation=True, max_length=12)) for t in TEXTS]
    alone = torch.cat([torch.nn.functional.normalize(s.last_hidden_state.mean(1), dim=-1) for s in states])
    # Padding changes the order of float32 sums over at most 12 tokens and 16 numbers.
    np.testing.assert_allclose(TextEncoder(folder).encode(TEXTS), alone.numpy(), atol=1e-5)


def test_first_token_where_the_encoder_pools_so(folder, tmp_path):
    tiny_text_encoder(tmp_path)
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        first = model(**tokenizer(TEXTS[0], return_tensors="pt")).last_hidden_state[:, 0]
    wanted = torch.nn.functional.normalize(first, dim=-1).numpy()
    np.testing.assert_allclose(TextEncoder(tmp_path).encode(TEXTS[:1]), wanted, atol=1e-5)
    assert TextEncoder(tmp_path).fingerprint != TextEncoder(folder).fingerprint


def test_long_empty_and_foreign_texts_are_counted(folder):
    found = TextEncoder(folder).remarks(["good " * 11, "", "  ", "сливки выше", "good film"])
    assert found[0].startswith("2 empty texts;")
    assert found[1].startswith("1 text cut after 12 tokens")
    assert found[2].startswith("1 text mostly of signs")


def test_a_tokenizer_of_another_model_is_refused(tmp_path):
    tiny_text_encoder(tmp_path, vocabulary=6)
    with pytest.raises(RefusedFile, match="at most 6 tokens, got one of another model"):
        TextEncoder(tmp_path).encode(["good film"])
    tiny_text_encoder(tmp_path, vocabulary=100)
    with pytest.raises(RefusedFile, match=r"with about 100 tokens.*with 19; put the files of one model"):
        TextEncoder(tmp_path).encode(["good film"])


def test_folders_without_weights_are_refused(tmp_path):
    with pytest.raises(RefusedFile, match=r"config\.json"):
        find_encoder("text", tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RefusedFile, match="safetensors"):
        find_encoder("text", tmp_path)
