"""EfficientNet-lite0: its size, its padding, and pictures that cannot be read."""

import numpy as np
import pytest
import torch
from PIL import Image

from features.encoders import tiny_picture_weights
from posterity.errors import RefusedFile
from posterity.features import PictureEncoder
from posterity.features.efficientnet import EfficientNetLite0, SameConv
from posterity.features.pictures import square


def test_has_the_published_number_of_parameters():
    with torch.device("meta"):
        model = EfficientNetLite0()
    assert sum(p.numel() for p in model.parameters()) == 4_652_008
    assert len(model._blocks) == 16


@pytest.mark.parametrize(("size", "kernel", "stride"), [(8, 3, 2), (7, 3, 2), (8, 5, 2), (6, 5, 1)])
def test_pads_as_tensorflow_does(size, kernel, stride):
    torch.manual_seed(0)
    layer = SameConv(1, 1, kernel, stride, bias=False)
    x = torch.randn(1, 1, size, size)
    out = -(-size // stride)
    total = max((out - 1) * stride + kernel - size, 0)
    padded = np.pad(x[0, 0].numpy(), (total // 2, total - total // 2))
    weight = layer.weight[0, 0].detach().numpy()
    windows = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel))[::stride, ::stride]
    wanted = (windows * weight).sum((2, 3))
    np.testing.assert_allclose(layer(x)[0, 0].detach().numpy(), wanted, atol=1e-5)  # float32 sums of 25 terms


def test_the_middle_of_a_picture_is_read(tmp_path):
    pixels = np.zeros((20, 40, 3), np.uint8)
    pixels[:, 6:34] = 200  # the square and what its filter reaches
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    assert (square(tmp_path / "wide.png", 8) == 200).all()


def test_pictures_that_cannot_be_read_are_nan(tmp_path):
    encoder = PictureEncoder(tiny_picture_weights(tmp_path / "weights.pth"), side=32)
    Image.fromarray(np.full((40, 40), 90, np.uint8)).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"no picture")
    found = encoder.encode([tmp_path / "a.png", tmp_path / "b.png"])
    assert found.shape == (2, encoder.width)
    assert np.isfinite(found[0]).all()
    assert np.isnan(found[1]).all()


def test_weights_in_the_old_format_of_torch_are_read(tmp_path):
    model = EfficientNetLite0()
    torch.save(model.state_dict(), tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    found = PictureEncoder(tmp_path / "old.pth")._model.state_dict()
    assert all(torch.equal(t, found[name]) for name, t in model.state_dict().items())


def test_other_weights_are_refused(tmp_path):
    torch.save({"weight": torch.zeros(3)}, tmp_path / "other.pth")
    with pytest.raises(RefusedFile, match="expected the weights of EfficientNet-lite0"):
        PictureEncoder(tmp_path / "other.pth").encode([tmp_path / "a.png"])


def test_damaged_pictures_of_any_kind_are_none_without_a_word(tmp_path):
    random, picture = np.random.default_rng(0), tmp_path / "picture"
    whole = Image.fromarray(random.integers(0, 255, (20, 30, 3), dtype=np.uint8))
    for kind in ("png", "jpeg", "webp", "gif", "tiff"):
        whole.save(picture, kind)
        raw = picture.read_bytes()
        for _ in range(20):
            damaged = bytearray(raw)
            for place in random.integers(0, min(len(raw), 200), 3):
                damaged[place] = random.integers(256)
            picture.write_bytes(damaged[: random.integers(len(raw) // 2, len(raw))])
            found = square(picture, 8)
            assert found is None or found.shape == (8, 8, 3)
