"""Accelerate and Lightning on two processes under torchrun, and the same training on one."""

import warnings

import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from distributed.problem import examples, ivon, loss, network

BATCH, CLIP = 4, 0.1  # for each of the two processes


def data():
    parts = [examples(step) for step in range(2)]
    return TensorDataset(*(torch.cat(column) for column in zip(*parts, strict=True)))


def alone():
    """The same training on one process: batches of twice the size, two of them a step."""
    model = network()
    optimizer = ivon(model)
    optimizer.attach(model)
    for number, batch in enumerate(DataLoader(data(), batch_size=2 * BATCH)):
        (loss(model, batch) / 2).backward()
        if number % 2:
            clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
    return model


def with_accelerate():
    from accelerate import Accelerator

    model = network()
    optimizer = ivon(model)
    optimizer.attach(model)
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    prepared, wrapped, loader = accelerator.prepare(model, optimizer, DataLoader(data(), batch_size=BATCH))
    for batch in loader:
        with accelerator.accumulate(prepared):
            accelerator.backward(loss(prepared, batch))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(prepared.parameters(), CLIP)
            wrapped.step()
            wrapped.zero_grad()
    return model


def with_lightning(folder):
    import lightning

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = network()

        def training_step(self, batch, _):
            x, y = batch
            return cross_entropy(self.network(x), y)

        def configure_optimizers(self):
            optimizer = ivon(self.network)
            optimizer.attach(self.network)
            return optimizer

    module = Classifier()
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", accumulate_grad_batches=2, gradient_clip_val=CLIP,
        logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        default_root_dir=folder, use_distributed_sampler=False,
    )  # fmt: skip
    in_order = DistributedSampler(data(), num_replicas=2, rank=trainer.global_rank, shuffle=False)
    trainer.fit(module, DataLoader(data(), batch_size=BATCH, sampler=in_order))
    return module.network


def train(rank, folder):
    """Train under both, and write the weights of this process."""
    warnings.simplefilter("ignore")
    for host, model in {"accelerate": with_accelerate(), "lightning": with_lightning(folder)}.items():
        save_file(dict(model.state_dict()), folder / f"{host}-{rank}.safetensors")
