"""Real training hosts drive an attached IVON unchanged: Lightning, Hugging Face, PEFT, Accelerate, skorch.

In each, a witness inside the model records the weights of every forward pass: training passes must have run at fresh
samples of the posterior, evaluation passes and checkpoints at its mean.
"""

import itertools
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from networks import perceptron
from posterity.optim import IVON

N = 64


def data(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(N, 5, generator=generator)
    return x, (x[:, 0] + 0.5 * x[:, 1] > 0).long()


class Witness(nn.Module):
    """A small classifier that remembers its first weights at every forward pass."""

    def __init__(self):
        super().__init__()
        self.net = perceptron(5, 8, 2)
        self.training_weights, self.evaluation_weights = [], []

    def forward(self, x):
        seen = self.training_weights if self.training and torch.is_grad_enabled() else self.evaluation_weights
        seen.append(self.net[0].weight.detach().clone())
        return self.net(x)


def ivon(parameters, **settings):
    return IVON(parameters, lr=0.2, ess=N, hess_init=1.0, **settings)


def assert_fresh_samples(weights, passes):
    assert len(weights) == passes
    for a, b in itertools.pairwise(weights):
        assert (a - b).abs().mean() > 1e-3


def lightning_module(steps_per_log=1):
    import lightning

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.witness = Witness()

        def training_step(self, batch, _):
            x, y = batch
            return F.cross_entropy(self.witness(x), y)

        def validation_step(self, batch, _):
            x, y = batch
            self.log("loss", F.cross_entropy(self.witness(x), y))

        def configure_optimizers(self):
            optimizer = ivon(self.parameters())
            optimizer.attach(self.witness)
            return optimizer

    return Classifier()


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_lightning(precision, tmp_path):
    import lightning
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    module = lightning_module()
    loader = DataLoader(TensorDataset(*data()), batch_size=16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            max_epochs=3, accumulate_grad_batches=2, gradient_clip_val=0.5, precision=precision, accelerator="cpu",
            logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
            default_root_dir=tmp_path,
        )  # fmt: skip
        trainer.fit(module, loader, loader)
        before = {k: v.clone() for k, v in module.state_dict().items()}
        trainer.save_checkpoint(tmp_path / "last.ckpt")
    optimizer = trainer.optimizers[0]
    witness = module.witness
    assert_fresh_samples(witness.training_weights, passes=12)
    step = optimizer.state[witness.net[0].weight]["step"]
    assert int(step) == 6
    torch.testing.assert_close(witness.evaluation_weights[-1], before["witness.net.0.weight"], rtol=0, atol=0)
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]
    for name, tensor in before.items():
        assert torch.equal(saved[name], tensor)


def test_accelerate_accumulates_and_evaluates_at_the_mean():
    from accelerate import Accelerator
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    model = Witness()
    optimizer = ivon(model.parameters())
    optimizer.attach(model)
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    loader = DataLoader(TensorDataset(*data()), batch_size=16)
    prepared, wrapped, loader = accelerator.prepare(model, optimizer, loader)
    wrapped.train()
    for x, y in loader:
        with accelerator.accumulate(prepared):
            accelerator.backward(F.cross_entropy(prepared(x), y))
            accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
            wrapped.step()
            wrapped.zero_grad()
    wrapped.eval()
    model.eval()
    mean = model.net[0].weight.detach().clone()
    model(data()[0])
    assert_fresh_samples(model.training_weights, passes=4)
    assert int(optimizer.state[model.net[0].weight]["step"]) == 2
    assert torch.equal(model.evaluation_weights[-1], mean)


def test_skorch_trains_through_a_closure():
    from skorch import NeuralNetClassifier

    torch.manual_seed(0)

    class Net(NeuralNetClassifier):
        def initialize_optimizer(self, *args, **kwargs):
            super().initialize_optimizer(*args, **kwargs)
            self.optimizer_.attach(self.module_)
            return self

    x, y = data()
    net = Net(
        Witness, criterion=nn.CrossEntropyLoss, optimizer=IVON, optimizer__ess=N, lr=0.2, max_epochs=20, batch_size=16,
        train_split=None, verbose=0,
    )  # fmt: skip
    net.fit(x, y)
    assert_fresh_samples(net.module_.training_weights, passes=20 * 4)
    assert net.score(x, y) > 0.9


def tiny_gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=17, n_positions=16, n_embd=16, n_layer=1, n_head=2, attn_pdrop=0.0, embd_pdrop=0.0,
        resid_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


class Counting(torch.utils.data.Dataset):
    """Sequences that count upwards modulo the vocabulary: quickly learnt."""

    def __len__(self):
        return 32

    def __getitem__(self, i):
        ids = (torch.arange(16) + i) % 17
        return {"input_ids": ids, "labels": ids}


def recorded(model, pick):
    """Forward pre-hook that notes a weight and whether the pass trains; installed before IVON attaches."""
    passes = []

    def note(module, *_):
        passes.append((module.training and torch.is_grad_enabled(), pick(module).detach().clone()))

    return passes, note


def train_with_hugging_face(model, optimizer, folder, steps, resume=None, save=False):
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=4, gradient_accumulation_steps=2,
        eval_strategy="steps", eval_steps=2, save_strategy="steps" if save else "no", save_steps=2, report_to=[],
        use_cpu=True, disable_tqdm=True, logging_strategy="no", seed=1, data_seed=1, dataloader_pin_memory=False,
        max_grad_norm=1.0,
    )  # fmt: skip
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    trainer = Trainer(
        model, arguments, train_dataset=Counting(), eval_dataset=Counting(), optimizers=(optimizer, schedule)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train(resume_from_checkpoint=resume)
    return trainer


def test_hugging_face_trainer_accumulates_evaluates_saves_and_resumes(tmp_path):
    def start():
        model = tiny_gpt2()
        optimizer = ivon(model.parameters(), weight_decay=1e-3)
        optimizer.attach(model)
        passes, note = recorded(model, lambda m: m.transformer.h[0].attn.c_attn.weight)
        model.register_forward_pre_hook(note)
        return model, optimizer, passes

    model, optimizer, passes = start()
    before = train_with_hugging_face(model, optimizer, tmp_path / "a", steps=4, save=True)
    training = [weight for trains, weight in passes if trains]
    evaluation = [weight for trains, weight in passes if not trains]
    assert_fresh_samples(training, passes=8)
    weight = model.transformer.h[0].attn.c_attn.weight
    assert torch.equal(evaluation[-1], weight)
    assert int(optimizer.state[weight]["step"]) == 4
    assert before.evaluate()["eval_loss"] == before.evaluate()["eval_loss"]

    resumed, optimizer, _ = start()
    train_with_hugging_face(resumed, optimizer, tmp_path / "b", steps=4, resume=str(tmp_path / "a" / "checkpoint-2"))
    for p, q in zip(model.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(p, q)


def test_peft_perturbs_the_adapter_alone(tmp_path):
    from peft import LoraConfig, get_peft_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = get_peft_model(
            tiny_gpt2(), LoraConfig(r=2, lora_alpha=4, target_modules=["c_attn"], fan_in_fan_out=True)
        )
    trainable = [p for p in model.parameters() if p.requires_grad]
    frozen = {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}
    optimizer = ivon(trainable)
    optimizer.attach(model)
    attention = model.base_model.model.transformer.h[0].attn.c_attn
    passes, note = recorded(model, lambda _: attention.lora_A["default"].weight)
    model.register_forward_pre_hook(note)
    train_with_hugging_face(model, optimizer, tmp_path, steps=3)
    assert_fresh_samples([weight for trains, weight in passes if trains], passes=6)
    for name, p in model.named_parameters():
        if name in frozen:
            assert torch.equal(p, frozen[name])
