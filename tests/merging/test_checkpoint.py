"""Checkpoints that are damaged, forged or none at all are refused before anything is read from them."""

import json
import shutil

import pytest
import torch

from posterity.checkpoints import open_checkpoint
from posterity.errors import RefusedFile


@pytest.mark.parametrize("cut", [-1, 1])
def test_truncated_and_padded_files_are_refused(files, cut):
    path = files / "a" / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:cut] if cut < 0 else data + b"x")
    with pytest.raises(RefusedFile, match="the file is damaged"):
        open_checkpoint(files / "a")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"w":{}}', "the same name twice"),
        (b'{"w":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}}', "expected a dtype among"),
        (b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}', "the file is damaged"),
        (b'{"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}', "got another header"),
        (b'{"w":7}', "got another header"),
        (b"nonsense", "expected a header in JSON"),
    ],
)
def test_bad_headers_are_refused(tmp_path, header, message):
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(RefusedFile, match=message):
        open_checkpoint(path)


def test_bad_indices_are_refused(files):
    index = files / "base" / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    good = dict(content["weight_map"])

    def refuses(message, **changes):
        index.write_text(json.dumps({"weight_map": {**good, **changes}}))
        with pytest.raises(RefusedFile, match=message):
            open_checkpoint(files / "base")

    refuses("shards that lie beside it", scale="../a/model.safetensors")
    refuses("shards that lie beside it", scale="missing.safetensors")
    refuses("expected 'ghost' in", ghost=good["scale"])
    shutil.copy(files / "base" / good["scale"], files / "base" / "copy.safetensors")
    refuses("expected each tensor once", scale="copy.safetensors")
    del good["scale"]
    refuses("got 'scale' in a shard only")


def test_state_dicts_are_loaded_in_safe_mode(tmp_path):
    torch.save({"w": torch.ones(2), "hook": print}, tmp_path / "evil.pt")
    with pytest.raises(RefusedFile, match="expected a state dict of tensors only"):
        open_checkpoint(tmp_path / "evil.pt")
    torch.save({"state_dict": {"w": torch.ones(2)}, "epoch": 3}, tmp_path / "nested.pt")
    assert list(open_checkpoint(tmp_path / "nested.pt").entries) == ["w"]


@pytest.mark.parametrize(("name", "message"), [("nowhere", "no such file"), ("x.csv", "one of"), ("dir", "got none")])
def test_what_is_no_checkpoint_is_refused(tmp_path, name, message):
    (tmp_path / "x.csv").write_text("1,2")
    (tmp_path / "dir").mkdir()
    with pytest.raises(RefusedFile, match=message):
        open_checkpoint(tmp_path / name)
