"""`fit` on texts: a transformers model, or one of PEFT, with its tokenizer and nothing between."""

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

import posterity as po
from features.encoders import WORDS, tiny_text_encoder
from posterity.errors import InvalidInput
from posterity.texts import tokenised, trimmed

SIZE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
EAGER = {"attn_implementation": "eager"}  # torch warns that its fused attention is not faster for many draws at once


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return AutoTokenizer.from_pretrained(tiny_text_encoder(tmp_path_factory.mktemp("bert")))


def classifier(tokenizer, labels=2, positions=16, words=None):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=words or len(tokenizer), num_labels=labels, max_position_embeddings=positions, **SIZE, **EAGER
    )
    return BertForSequenceClassification(config)


def reviews(n=96):
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS[4:], random.integers(2, 8))) for _ in range(n)]
    good = random.random(n) < 0.5
    return [f"{text} {'good' if g else 'awful'}" for text, g in zip(texts, good)], ["yes" if g else "no" for g in good]


@pytest.mark.parametrize("adapters", [False, True])
def test_texts_and_words_for_labels_are_learnt(tokenizer, adapters):
    model = classifier(tokenizer)
    if adapters:
        model = get_peft_model(model, LoraConfig(task_type="SEQ_CLS", target_modules=["query", "value", "dense"]))
    texts, labels = reviews()
    run = po.fit(model, (texts, labels), tokenizer=tokenizer, method="adamw", lr=1e-2, epochs=15, batch_size=16)
    assert run.posterior.class_names == ("no", "yes")
    p = po.predict(model, run.posterior, tokenised(tokenizer, texts, model), samples=0)
    found = [p.class_names[i] for i in p.probs.argmax(-1)]
    assert np.mean([a == b for a, b in zip(found, labels)]) > 0.9


def test_a_posterior_over_adapters_of_peft(tokenizer, tmp_path):
    model = get_peft_model(classifier(tokenizer), LoraConfig(task_type="SEQ_CLS", target_modules=["query"]))
    run = po.fit(model, reviews(), tokenizer=tokenizer, method="ivon", epochs=2, ess=1000)
    assert set(run.posterior.names) == {name for name, p in model.named_parameters() if p.requires_grad}
    run.posterior.save(tmp_path / "posterior")
    again = po.Posterior.load(tmp_path / "posterior")
    inputs = tokenised(tokenizer, ["good film", "awful plot"], model)
    assert torch.equal(po.predict(model, again, inputs).probs, po.predict(model, run.posterior, inputs).probs)
    assert again.prune(fraction=0.5).removed > 0


def test_padding_that_no_text_of_a_batch_needs_goes(tokenizer):
    inputs = tokenised(tokenizer, ["good", "a very good film and a fine plot"])
    short = trimmed({name: t[:1] for name, t in inputs.items()})
    assert {t.shape for t in short.values()} == {(1, 3)}
    model = classifier(tokenizer).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(**short).logits, model(**inputs).logits[:1])


def test_long_texts_are_cut_with_a_warning(tokenizer):
    with pytest.warns(UserWarning, match="1 of 2 are longer than the 16 tokens"):
        inputs = tokenised(tokenizer, ["good " * 30, "good"], classifier(tokenizer))
    assert inputs["input_ids"].shape == (2, 16)


def test_what_does_not_fit_is_refused(tokenizer):
    with pytest.raises(InvalidInput, match="tokenizer: expected the model's own, with at most 6 tokens"):
        tokenised(tokenizer, ["good film"], classifier(tokenizer, words=6))
    with pytest.raises(InvalidInput, match="an output for each of the 2 classes"):
        po.fit(classifier(tokenizer, labels=1), reviews(8), tokenizer=tokenizer)
    with pytest.raises(InvalidInput, match=r"\(texts, labels\)"):
        po.fit(classifier(tokenizer), ["good"], tokenizer=tokenizer)
    with pytest.raises(InvalidInput, match="texts: expected strings, got 'int'"):
        tokenised(tokenizer, [3])
    with pytest.raises(InvalidInput, match="texts: expected a list of strings, after the tokenizer, got 'str'"):
        tokenised(tokenizer, "good film")
    with pytest.raises(InvalidInput, match="texts: expected a list of strings, after the tokenizer"):
        tokenised(["good film"], tokenizer)
    with pytest.raises(InvalidInput, match="as many labels as texts, got '2 texts and 1 labels'"):
        po.fit(classifier(tokenizer), (["good", "bad"], ["yes"]), tokenizer=tokenizer)
    with pytest.raises(InvalidInput, match=r"num_labels=2, one for each class .*got 3"):
        po.fit(classifier(tokenizer, labels=3), reviews(8), tokenizer=tokenizer)
    with pytest.raises(InvalidInput, match=r"tokenizer: expected a tokenizer of transformers .*, got 'str'"):
        po.fit(classifier(tokenizer), reviews(8), tokenizer="bert")
    with pytest.raises(InvalidInput, match=r"data: expected .*tokenizer=.*, got 'texts without one'"):
        po.fit(classifier(tokenizer), reviews(8))


def test_a_larger_vocabulary_than_the_models_is_refused_whatever_the_texts_are(tokenizer):
    small = classifier(tokenizer, words=len(tokenizer) - 1)
    with pytest.raises(InvalidInput, match="one of another model"):
        tokenised(tokenizer, [WORDS[4]], small)


@pytest.fixture
def loaded(tokenizer, tmp_path):
    """A model that was loaded from a folder without a tokenizer; the given number of embeddings."""

    def load(words=None, padding=0):
        model = classifier(tokenizer, words=words)
        model.config.pad_token_id = padding
        model.save_pretrained(tmp_path / "model")
        return BertForSequenceClassification.from_pretrained(tmp_path / "model", **EAGER)

    return load


def test_a_smaller_vocabulary_than_that_of_a_loaded_model_is_refused(tokenizer, loaded):
    tokenised(tokenizer, ["good"], classifier(tokenizer, words=1000))  # random weights learn any tokenizer
    tokenised(tokenizer, ["good"], loaded(len(tokenizer) + 1))  # numbers of embeddings are rounded up
    with pytest.raises(
        InvalidInput, match=r"with about 1000 tokens \(or model.resize.*got 'one of another model, with"
    ):
        tokenised(tokenizer, ["good"], loaded(1000))


def test_a_tokenizer_that_pads_otherwise_is_refused(tokenizer, loaded):
    with pytest.raises(InvalidInput, match=r"pads by token 3 \(or set model.config.*got 'one that pads by token 0'"):
        tokenised(tokenizer, ["good"], loaded(padding=3))


def test_the_tokenizer_beside_the_weights_decides(tokenizer, loaded, tmp_path):
    model = loaded(40)
    tiny_text_encoder(tmp_path / "own", words=WORDS[::-1])
    own = AutoTokenizer.from_pretrained(tmp_path / "own")
    own.save_pretrained(tmp_path / "model")
    tokenised(own, ["good"], model)  # a copy of it, loaded from elsewhere, however many embeddings there are
    with pytest.raises(InvalidInput, match=r"from_pretrained\(.*got 'one of another model: 14 of 19 tokens are others"):
        tokenised(tokenizer, ["good"], model)
    own.add_tokens(["new", "newer"])
    tokenised(own, ["good new"], model)


def test_empty_and_unknown_texts_are_counted(tokenizer):
    with pytest.warns(UserWarning, match="1 of 2 are empty"):
        tokenised(tokenizer, [" ", "good"])
    with pytest.warns(UserWarning, match="does not know more than half of their tokens"):
        tokenised(tokenizer, ["zzzz qqqq xxxx", "vvvv good"])
