"""`ActiveLearner`: ask, label, update by adaptation, ask again; with a folder, to go on another day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from posterity.adaptation import Report, adapt, remember
from posterity.adaptation.resolve import at_mean
from posterity.batches import as_tensor, batches
from posterity.errors import InvalidInput, RefusedFile, expected, require, require_seed
from posterity.exploration._acquire import acquire
from posterity.exploration.picks import Picks
from posterity.exploration.question import as_pool, ids_of
from posterity.files import read_json, write_json
from posterity.memory.ids import as_ids, whole_numbers
from posterity.noise import own_seed
from posterity.posterior import Posterior
from posterity.posterior.fitted_model import check_belongs

FILE, VERSION = "learner.json", 1


class ActiveLearner:
    """A model that chooses which examples to label, and learns the labels without retraining.

    Everything that is labelled is kept in the posterior's memory, so that generalised linear models and last layers
    end up where retraining on all of it would.

    Args:
        model: A trained model; it is not changed.
        posterior: Its Gaussian posterior.
        pool: Inputs without labels, as in `acquire`.
        labelled: What the model was trained on: (inputs, targets, ids) with ids of the pool, or (inputs, targets) for
            examples that are not in the pool; not needed where the posterior carries a memory of it.
        criterion: By what to choose; see `acquire`.
        asking: Further arguments of `acquire`.
        adapting: Further arguments of `adapt`.
        folder: Where to keep posterior, labels and open questions after each step; a new one, see `resume`.
        seed: Of everything random.

    Examples:
        >>> import posterity as po
        >>> x = torch.linspace(-2, 2, 41).unsqueeze(1)
        >>> known = (x[18:22], 3 * x[18:22], torch.arange(18, 22))
        >>> model = nn.Linear(1, 1)
        >>> posterior = po.laplace(model, known[:2], structure="full", prior_precision=0.1, noise_precision=1.0)
        >>> learner = ActiveLearner(model, posterior, x, labelled=known, criterion="batch_bald_linearised")
        >>> picks = learner.ask(2)
        >>> sorted(picks.ids.tolist())  # the two ends tell most about a slope
        [0, 40]
        >>> report = learner.tell(picks.ids, 3 * x[picks.ids])
        >>> len(learner.labelled)
        6
    """

    def __init__(
        self,
        model: nn.Module,
        posterior: Posterior,
        pool: Any,
        *,
        labelled: Any = None,
        criterion: str = "auto",
        asking: Mapping[str, Any] | None = None,
        adapting: Mapping[str, Any] | None = None,
        folder: str | Path | None = None,
        seed: int = 0,
    ) -> None:
        check_belongs(model, posterior)
        require_seed(seed)
        self.pool = as_pool(pool, 256)
        self.model = at_mean(model, posterior)
        self.posterior = posterior if labelled is None else _remembering(self.model, posterior, labelled)
        if self.posterior.memory is None:
            raise expected("labelled", "what the model was trained on, or a posterior that carries a memory", None)
        self.criterion, self.seed = criterion, seed
        self.asking, self.adapting = dict(asking or {}), dict(adapting or {})
        self.folder = None if folder is None else _unused(Path(folder))
        self._ids = ids_of(self.pool)
        self._pending: list[int] = []
        self._save()

    @classmethod
    def resume(cls, folder: str | Path, model: nn.Module, pool: Any, **settings: Any) -> Self:
        """Go on from a folder, with a model of the same architecture, the same pool and the same settings.

        What is labelled comes from the folder.
        """
        content = read_json(Path(folder) / FILE)
        fine = isinstance(content, dict) and content.get("version") == VERSION
        if not fine or not {"pending", "pool"} <= content.keys():
            raise RefusedFile(f"{folder}: expected an active learner of format version {VERSION}, got another file")
        posterior = Posterior.load(folder)
        learner = cls(model, posterior, pool, **{**settings, "labelled": None})
        require(learner.pool.n == content["pool"], "pool", f"the {content['pool']} examples of before", learner.pool.n)
        # Killed between the writing of the posterior and of this file, labels may have been taken in already.
        learner._pending = [i for i in content["pending"] if i not in set(learner.labelled.tolist())]
        learner.folder = Path(folder)
        return learner

    @property
    def labelled(self) -> Tensor:
        """Ids of everything that is labelled."""
        assert self.posterior.memory is not None
        return self.posterior.memory.ids

    @property
    def pending(self) -> Tensor:
        """Ids that were asked for and have no label yet."""
        return torch.tensor(self._pending, dtype=torch.int64)

    def ask(self, k: int) -> Picks:
        """The k examples that are to be labelled next; none that was asked for before."""
        closed = torch.cat((self.labelled.cpu(), self.pending))
        # The number of labels is what tells one round from another, also after a pause.
        seed = own_seed(self.seed, len(closed))
        exclude = torch.cat((closed, as_ids("exclude", self.asking.get("exclude", ()))))
        options = {"seed": seed, **self.asking, "exclude": exclude}
        picks = acquire(self.model, self.posterior, self.pool, k, self.criterion, **options)
        self._pending += picks.ids.tolist()
        self._save()
        return picks

    def tell(self, ids: Tensor | Sequence[int], labels: Any) -> Report:
        """Take in labels, of what was asked for or of anything else in the pool; the report lists the changes."""
        wanted = whole_numbers("ids", ids)
        memory = self.posterior.memory
        assert memory is not None
        given = torch.atleast_1d(as_tensor(labels))
        targets = given.to(memory.targets)
        kept = memory.targets.is_floating_point() or bool((targets == given.to(targets.device)).all())
        require(kept, "labels", "whole numbers, as those before", given[:3].tolist())
        require(len(wanted) > 0, "ids", "at least one", "none")
        require(len(targets) == len(wanted), "labels", f"{len(wanted)}, one for each id", len(targets))
        again = wanted[torch.isin(wanted, memory.ids.cpu())]
        once = len(again) == 0 and len(wanted.unique()) == len(wanted)
        require(once, "ids", "examples without a label, each once", again[:3].tolist() or wanted.tolist())
        inputs = self.pool.take(self._positions(wanted)).inputs
        result = adapt(
            self.model, self.posterior, add=(inputs, targets, wanted), **{"seed": self.seed, **self.adapting}
        )
        self.model, self.posterior = result.model, result.posterior
        told = set(wanted.tolist())
        self._pending = [i for i in self._pending if i not in told]
        self._save()
        return result.report

    def _positions(self, wanted: Tensor) -> Tensor:
        """The positions of these ids in the pool."""
        unknown = wanted[~torch.isin(wanted, self._ids)]
        require(len(unknown) == 0, "ids", "ids of the pool", unknown[:3].tolist())
        order = self._ids.argsort()
        return order[torch.searchsorted(self._ids[order], wanted)]

    def _save(self) -> None:
        if self.folder is not None:
            self.posterior.save(self.folder)
            write_json(self.folder / FILE, {"version": VERSION, "pool": self.pool.n, "pending": self._pending})


def _unused(folder: Path) -> Path:
    """A folder in which neither labels nor a posterior would be written over."""
    if (folder / FILE).exists():
        raise InvalidInput(f"folder: expected one without an active learner (or ActiveLearner.resume), got {folder}")
    if (folder / "posterior.json").exists():
        raise InvalidInput(f"folder: expected one without a posterior, got {folder}")
    return folder


def _remembering(model: nn.Module, posterior: Posterior, labelled: Any) -> Posterior:
    """The posterior with a memory of all labelled data; those without ids get negative ones, which no pool has."""
    stream = batches(labelled, batch_size=1024)
    require(stream.n == posterior.n, "labelled", f"the {posterior.n} examples of the posterior", stream.n)
    memory = remember(model, stream)
    if not stream.brings_ids:
        memory = replace(memory, ids=-1 - torch.arange(len(memory)))
    return replace(posterior, memory=memory)
