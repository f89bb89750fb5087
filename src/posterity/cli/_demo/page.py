"""The demo as a report: the page of the run, and what was done with it afterwards."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from posterity import plots
from posterity.app.document import Card, Code, Picture, Section
from posterity.app.pictures import png
from posterity.app.report import Contents, HeldOut
from posterity.app.source import Preview
from posterity.cli._demo.study import CUTS, NEW, OURS, PLANTED, STOPPED, TRAINING, Study

CALLS = """run = po.fit(network, (images, labels))
m = po.memory_map(run.model, run.posterior, (images, labels))
suspects = m.top({planted})["id"]
m.what_if(remove=suspects).on(held_out)
po.adapt(run.model, run.posterior, data=(images, labels), remove=suspects, add=new_digit, classes={classes})"""


def contents(study: Study) -> Contents:
    """What `write_report` needs, from the study."""
    digits, tumours, change = study.digits, study.tumours, study.numbers()["change"]
    nll = tumours.quality["NLL"]
    return Contents(
        title="Digits, learnt and changed",
        lead=(
            f"One network, {tumours.rows} tumours, nothing tuned: AdamW's loss on others is {nll['AdamW']:.3f} after "
            f"{study.steps} steps and {nll[STOPPED]:.3f} at its best length, that of po.fit {nll[OURS]:.3f}. "
            f"Another learnt nine digits to {study.accuracy:.1%}. Its memory map put "
            f"{study.found} of {PLANTED} planted wrong labels among its first {PLANTED} suspects. Removing them and "
            f"learning the digit {NEW} took {change['adaptation']['seconds']:.1f} s instead of "
            f"{change['retraining']['seconds']:.1f} s and reached {change['adaptation']['accuracy']:.1%} (retraining "
            f"{change['retraining']['accuracy']:.1%}, doing nothing {change['doing nothing']['accuracy']:.1%})."
        ),
        facts={
            "data": f"scikit-learn's digits, {TRAINING} for training, the others held out",
            "trained on": f"{len(digits.labels)} images of 0 to {NEW - 1}, {PLANTED} with wrong labels",
            "held out": f"{len(digits.known[1])} images of known digits, {len(digits.foreign[1])} of the unknown {NEW}",
            "network": "64-100-9, ReLU",
            "training": f"{study.steps} steps, batches of 64, defaults of po.fit",
            "table": f"scikit-learn's breast cancer, {tumours.rows} rows for training, the others held out",
            "seed": study.seed,
        },
        metrics=tumours.quality,
        held_out=HeldOut(
            np.arange(len(digits.known[1])),
            digits.known[1].numpy(),
            probs=study.known.probs.double().numpy(),
            preview=partial(_image, digits.known[0]),
        ),
        memory=study.memory.table,
        ranking=study.memory.ranking,
        preview=partial(_image, digits.images),
        warning=study.memory.reliability.warning or "",
        more=(_beside(study), _foreign(study), _map(study), _what_if(study), _change(study)),
        cost={
            "the table with AdamW, s": tumours.costs["AdamW"]["seconds"],
            "the table with po.fit, cross-validation included, s": tumours.costs[OURS]["seconds"],
            "the whole demo, s": study.seconds,
        },
        reproduce=f"posterity demo --seed {study.seed} --steps {study.steps}",
    )


def _image(images: Tensor, row: int) -> Preview:
    """Ink on paper: dark where the pixel is large."""
    pixels = (255 * (1 - images[row].reshape(8, 8))).round().to(torch.uint8)
    return Preview("image", png(pixels.numpy()))


def _beside(study: Study) -> Section:
    tumours = study.tumours
    curves = {
        name: (-torch.xlogy(p, p).sum(-1), (p.argmax(-1) != tumours.labels).double())
        for name, p in tumours.probs.items()
    }
    return Section(
        "A table beside AdamW",
        [
            f"One network learns from {tumours.rows} tumours, in {CUTS} cuts. AdamW takes {study.steps} steps, or as "
            "many as cross-validation finds best. po.fit chooses the length and adds noise to the weights.",
            Picture(plots.reliability(tumours.probs, tumours.labels), "Accuracy against confidence."),
            Picture(plots.risk_coverage(curves), "Errors among what is kept, the most certain first."),
        ],
    )


def _foreign(study: Study) -> Section:
    entropies = plots.entropy_in_out(study.known.entropy, {f"the digit {NEW}": study.foreign.entropy})
    return Section(
        "An unknown digit",
        [
            f"Entropy tells a {NEW}, which was not learnt, from known digits with an AUROC of "
            f"{study.foreign_auroc:.4f}.",
            Picture(entropies, f"Entropy of predictions of known digits and of the unknown {NEW}."),
        ],
    )


def _map(study: Study) -> Section:
    table = study.memory.table.set_index("id")
    cards = []
    for example in study.suspects[:24]:
        row = table.loc[example]
        verdict = "planted" if example in study.digits.planted else "not planted"
        said = f"{row['label']} → {row['loo_prediction']}"
        cards.append(Card(_image(study.digits.images, example), [said, verdict]))
    text = (
        f"{study.found} of the {PLANTED} planted labels are among the first {PLANTED} suspects; the ranking tells "
        f"planted from right ones with an AUROC of {study.label_auroc:.4f}. The first 24:"
    )
    picture = Picture(
        plots.memory_map(study.memory), "Every training image: what it decides, and how wrong the model is about it."
    )
    return Section("Which labels are wrong?", [picture, text, cards])


def _what_if(study: Study) -> Section:
    now = study.estimate
    return Section(
        "What if they were gone?",
        [
            f"The mean held-out loss is {now['now']:.4f}. The memory-perturbation equation estimates, without "
            f"training, that it is {study.direction} without the suspects. Retraining without them gives "
            f"{now['retrained']:.4f}.",
        ],
    )


def _change(study: Study) -> Section:
    return Section(
        "Removed, and a digit learnt",
        [
            f"The suspects are removed and the digit {NEW} is learnt in one adaptation; passes count how often the "
            "data of retraining were looked at.",
            study.changed,
            Code(CALLS.format(planted=PLANTED, classes=NEW + 1)),
        ],
    )
