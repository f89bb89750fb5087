"""The data of the study without tuning, packed into one small folder, so that the study can travel to a GPU."""

from __future__ import annotations

import io
import lzma
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from datasets import _sheet, digits_like, tabular, text, uci_regression
from safetensors.torch import load_file, save_file
from torch import Tensor
from untuned_made import MADE, Rows

Arrays = dict[str, Tensor]
WORDS = 32  # words of a sentence that text classifiers see
VOCABULARY = 32_000  # words that they know at most


def prepare(root: Path, out: Path) -> None:
    """Pack what the tasks need: train rows first, then test rows."""
    out.mkdir(parents=True, exist_ok=True)
    for name, make in _SOURCES.items():
        if not (out / f"{name}.safetensors").exists():
            save_file({k: t.contiguous() for k, t in make(root).items()}, out / f"{name}.safetensors")


def load(folder: Path, name: str) -> Arrays:
    """Packed data: `x`, `y` (train), `test_x`, `test_y`; inputs as networks take them."""
    found = load_file(folder / f"{name}.safetensors")
    if "sheet" in found:
        found |= _unpacked(found.pop("sheet"), len(found["y"]))
    for key in ("x", "test_x"):
        if found[key].dtype == torch.uint8 and found[key].ndim == 4:
            found[key] = (found[key].float() / 255 - 0.5) / 0.25
        elif found[key].dtype in (torch.uint8, torch.int16):
            found[key] = found[key].long()
    return found


def _unpacked(sheet: Tensor, train: int) -> Arrays:
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None
    pixels = np.asarray(Image.open(io.BytesIO(sheet.numpy().tobytes())))
    images = torch.from_numpy(pixels.reshape(-1, 32, pixels.shape[1] // 32, 32, 3)).permute(0, 2, 4, 1, 3)
    images = images.reshape(-1, 3, 32, 32)
    return {"x": images[:train], "test_x": images[train:]}


def _cifar(root: Path) -> Arrays:
    from PIL import Image

    labels, place = np.load(root / "cifar10" / "labels.npz"), root / "cifar10"
    parts = [_sheet(place / f"{name}.webp", 32, 32) for name in ("data_batch_1", "data_batch_2", "test_batch")]
    images = np.concatenate([*parts[:2], parts[2]])[np.r_[:12_000, 20_000:24_000]]
    sheet = images.reshape(-1, 100, 3, 32, 32).transpose(0, 3, 1, 4, 2).reshape(-1, 3200, 3)
    packed = io.BytesIO()
    Image.fromarray(sheet).save(packed, "webp", lossless=True, quality=100)
    raw = torch.from_numpy(np.frombuffer(packed.getvalue(), np.uint8).copy())
    y, test_y = (torch.from_numpy(labels[split]).long() for split in ("train", "test"))
    return {"sheet": raw, "y": y[:12_000], "test_y": test_y[:4000]}


def _pictures(name: str) -> Callable[[Path], Arrays]:
    def make(root: Path) -> Arrays:
        (x, y), (test_x, test_y) = digits_like(root, name, "train"), digits_like(root, name, "t10k")
        return {
            "x": (x[:12_000] * 255).byte(), "y": y[:12_000],
            "test_x": (test_x * 255).byte(), "test_y": test_y,
        }  # fmt: skip

    return make


def _kmnist(root: Path) -> Arrays:
    x, y = digits_like(root, "KMNIST_test", "t10k")
    images = (x * 255).byte()
    return {"x": images[:8000], "y": y[:8000], "test_x": images[8000:], "test_y": y[8000:]}


def _mnist(root: Path) -> Arrays:
    (x, y), (test_x, test_y) = digits_like(root, "MNIST", "train"), digits_like(root, "MNIST", "t10k")
    return {
        "x": (x[:3000] * 255).byte(), "y": y[:3000],
        "test_x": (test_x[:5000] * 255).byte(), "test_y": test_y[:5000],
    }  # fmt: skip


def _all_digits(_: Path) -> Arrays:
    from sklearn.datasets import load_digits

    x, y = (torch.from_numpy(a) for a in load_digits(return_X_y=True))
    x, y = x.float() / 16, y.long()
    return {"x": x[:1200], "y": y[:1200], "test_x": x[1200:], "test_y": y[1200:]}


def _digits(_: Path) -> Arrays:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    images, labels = torch.from_numpy(x[order]).float().view(-1, 1, 8, 8) / 8 - 1, torch.from_numpy(y[order]).long()
    return {"x": images[:500], "y": labels[:500], "test_x": images[500:], "test_y": labels[500:]}


def _usps(root: Path) -> Arrays:
    z = np.load(root / "usps" / "usps.npz")
    x, test_x = (torch.from_numpy(z[f"X_{s}"].astype("float32") / 2000).view(-1, 1, 16, 16) for s in ("train", "test"))
    y, test_y = (torch.from_numpy(z[f"y_{s}"].astype("int64")) for s in ("train", "test"))
    return {"x": x, "y": y, "test_x": test_x, "test_y": test_y}


def _split(root: Path, name: str) -> tuple[list[tuple[str, object]], list[tuple[str, object]]]:
    records = text(root, name)
    if "split" not in records[0]:
        order = np.random.default_rng(0).permutation(len(records))
        cut = int(0.8 * len(order))
        for place, i in enumerate(order):
            records[i]["split"] = "train" if place < cut else "test"
    train, test = ([(r["text"], r["label"]) for r in records if r["split"] == s] for s in ("train", "test"))
    return train, test


def _sentences(name: str) -> Callable[[Path], Arrays]:
    def make(root: Path) -> Arrays:
        train, test = _split(root, name)
        counts: dict[str, int] = {}
        for sentence, _ in train:
            for word in sentence.lower().split():
                counts[word] = counts.get(word, 0) + 1
        common = sorted(counts.items(), key=lambda item: -item[1])[:VOCABULARY]
        known = {w: i + 2 for i, (w, c) in enumerate(common) if c > 1}
        labels = sorted({str(label) for _, label in train})

        def encode(rows: list[tuple[str, object]]) -> tuple[Tensor, Tensor]:
            x = torch.zeros(len(rows), WORDS, dtype=torch.int16)
            for i, (sentence, _) in enumerate(rows):
                ids = [known.get(w, 1) for w in sentence.lower().split()[:WORDS]]
                x[i, : len(ids)] = torch.tensor(ids, dtype=torch.int16)
            return x, torch.tensor([labels.index(str(label)) for _, label in rows])

        (x, y), (test_x, test_y) = encode(train), encode(test)
        return {"x": x, "y": y, "test_x": test_x, "test_y": test_y}

    return make


def _characters(files: tuple[str, str] | str) -> Callable[[Path], Arrays]:
    def make(root: Path) -> Arrays:
        if isinstance(files, str):
            whole = (root / "lm" / files).read_text()
            cut = int(0.9 * len(whole))
            parts = whole[:cut], whole[cut:]
        else:
            one, two = (lzma.decompress((root / "lm" / name).read_bytes()).decode() for name in files)
            parts = one, two[:200_000]
        known = sorted(c for c, count in Counter(parts[0]).items() if count > 20)
        index = {c: i + 1 for i, c in enumerate(known)}
        x, test = (torch.tensor([index.get(c, 0) for c in part], dtype=torch.uint8) for part in parts)
        return {"x": x, "y": torch.zeros(0), "test_x": test, "test_y": torch.zeros(0)}

    return make


def _standardised(x: Tensor, y: Tensor, test_x: Tensor, test_y: Tensor) -> Arrays:
    shift, scale = x.mean(0), x.std(0).clamp_min(1e-6)
    if y.is_floating_point():
        middle, size = y.mean(), y.std()
        y, test_y = (y - middle) / size, (test_y - middle) / size
    return {"x": (x - shift) / scale, "y": y, "test_x": (test_x - shift) / scale, "test_y": test_y}


def _regression(name: str, take: int | None = None) -> Callable[[Path], Arrays]:
    def make(root: Path) -> Arrays:
        z = uci_regression(root, name)
        train, test = z["train_idx"][0][:take], z["test_idx"][0]
        x, y = torch.from_numpy(z["X"]).float(), torch.from_numpy(z["y"]).float().flatten()
        return _standardised(x[train], y[train], x[test], y[test])

    return make


def _adult(root: Path) -> Arrays:
    import pandas as pd

    frame = pd.read_csv(root / "tabular" / "adult.csv.gz").drop(columns="fnlwgt")
    y = torch.tensor((frame["income"].astype(str).str.contains(">")).to_numpy().astype("int64"))
    train = torch.tensor((frame["split"] == "train").to_numpy())
    numeric = frame.select_dtypes("number")
    hot = pd.get_dummies(frame.drop(columns=[*numeric, "income", "split"]))
    x = torch.tensor(np.concatenate([numeric.to_numpy(float), hot.to_numpy(float)], 1), dtype=torch.float32)
    return _standardised(x[train], y[train], x[~train], y[~train])


def _some_adult(root: Path) -> Arrays:
    whole = _adult(root)
    return {name: t[: 8000 if name.startswith("test") else 6000].clone() for name, t in whole.items()}


def _cut(take: int, load: Callable[[Path], Rows]) -> Callable[[Path], Arrays]:
    """The first `take` rows of a table, in a shuffled order, to train on, and the others to test."""

    def make(root: Path) -> Arrays:
        x, y = load(root)
        order = torch.from_numpy(np.random.default_rng(0).permutation(len(y)))
        return _standardised(x[order[:take]], y[order[:take]], x[order[take:]], y[order[take:]])

    return make


def _classes(x: np.ndarray, y: np.ndarray) -> Rows:
    return torch.tensor(np.asarray(x)).float(), torch.tensor(np.asarray(y)).long()


def _cancer(_: Path) -> Rows:
    from sklearn.datasets import load_breast_cancer

    return _classes(*load_breast_cancer(return_X_y=True))


def _abalone(root: Path) -> Rows:
    z = tabular(root, "abalone_scale")
    return _classes(z["X"], np.digitize(z["y"], (9, 11)))  # young, middle and old: rings up to 8, up to 10, more


def _biopsies(root: Path) -> Rows:
    z = tabular(root, "breast_cancer_scale")
    return _classes(z["X"][:, 1:], z["y"] > 0)  # the first column is an id


def _banana(root: Path) -> Rows:
    z = tabular(root, "banana")
    return _classes(z["X"], z["y"] > 0)


def _fair(_: Path) -> Rows:
    from statsmodels.datasets import fair

    frame = fair.load_pandas().data
    return _classes(frame.drop(columns="affairs"), frame["affairs"] > 0)


def _anes96(_: Path) -> Rows:
    from statsmodels.datasets import anes96

    frame = anes96.load_pandas().data
    return _classes(frame.drop(columns="vote"), frame["vote"])


def _a7a(root: Path) -> Arrays:
    z = tabular(root, "adult_a7a")
    parts = [torch.from_numpy(z[k].astype("float32")) for k in ("X_train", "X_test")]
    labels = [torch.from_numpy((z[k] > 0).astype("int64")) for k in ("y_train", "y_test")]
    return {"x": parts[0], "y": labels[0], "test_x": parts[1], "test_y": labels[1]}


def _electricity(root: Path) -> Arrays:
    z = np.load(root / "streams" / "electricity.npz")
    order = np.random.default_rng(0).permutation(len(z["y"]))
    x, y = torch.from_numpy(z["X"][order]).float(), torch.from_numpy(z["y"][order].astype("int64"))
    return _standardised(x[:8000], y[:8000], x[8000:20_000], y[8000:20_000])


_SOURCES: dict[str, Callable[[Path], Arrays]] = {
    "adult": _adult, "a7a": _a7a, "electricity": _electricity, "kin8nm": _regression("kin8nm"),
    "protein": _regression("protein", 10_000), "cifar": _cifar, "fashion": _pictures("FashionMNIST"),
    "digits": _digits, "usps": _usps, "sst2": _sentences("sst2"), "sst5": _sentences("sst5"),
    "trec": _sentences("trec"), "rotten": _sentences("rotten_tomatoes"), "clinc": _sentences("clinc150"),
    "wikitext": _characters(("wikitext2_valid.txt.xz", "wikitext2_test.txt.xz")),
    "shakespeare": _characters("tinyshakespeare.txt"), "names": _characters("names.txt"),
    "some_adult": _some_adult, "mnist": _mnist, "all_digits": _all_digits, "kmnist": _kmnist,
    "cancer": _cut(300, _cancer), "abalone": _cut(3000, _abalone), "biopsies": _cut(400, _biopsies),
    "banana": _cut(1000, _banana), "banking": _sentences("banking77"), "amazon": _sentences("amazon_multidomain"),
    "imdb": _sentences("imdb"), "sentences": _sentences("uci_sentiment_sentences"), "power": _regression("power"),
    "concrete": _regression("concrete"), "quality": _regression("wine"),
    "fair": _cut(4500, _fair), "anes96": _cut(600, _anes96),
    **{name: _cut(take, make) for name, (take, make) in MADE.items()},
}  # fmt: skip
