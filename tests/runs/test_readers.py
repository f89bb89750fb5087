"""Files of every kind, read as rows; files that are not what they say are refused."""

import gzip
import os
import struct

import numpy as np
import pandas as pd
import pytest

from fuzz import fuzz
from posterity.errors import InvalidInput, PosterityError, RefusedFile
from posterity.runs.data import DataSource
from posterity.runs.locating import locate
from posterity.runs.readers import read_rows, with_block

FRAME = pd.DataFrame({"a": [1, 2, 3], "b": ["x", None, "z"], "y": ["no", "yes", "no"]})


def idx(array):
    return struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.tsv", "t.jsonl", "t.parquet"])
def test_tables(tmp_path, name):
    path = tmp_path / name
    if name.endswith("parquet"):
        FRAME.to_parquet(path)
    elif name.endswith("jsonl"):
        FRAME.to_json(path, orient="records", lines=True)
    else:
        FRAME.to_csv(path, index=False, sep="\t" if name.endswith("tsv") else ",")
    found = read_rows(path).table
    assert found["b"].isna().tolist() == [False, True, False]
    assert [float(v) for v in found["a"]] == [1, 2, 3]


def test_question_marks_are_missing(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1, ?\n2,x\n")
    assert read_rows(tmp_path / "t.csv").table["b"].isna().tolist() == [True, False]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", "a;b;y\n1,5;2;no\n3,1;4;yes\n"),
        ("t.csv", "\ufeffa\tb\ty\n1,5\t2\tno\n3,1\t4\tyes\n"),
        ("t.txt", "a|b|y\n1,5|2|no\n3,1|4|yes\n"),
        ("t.csv", '"a","b","y"\n"1,5",2,no\n"3,1",4,yes\n'),
    ],
)
def test_what_separates_columns_is_found(tmp_path, name, content):
    (tmp_path / name).write_text(content, encoding="utf-8")
    wanted = pd.DataFrame({"a": ["1,5", "3,1"], "b": ["2", "4"], "y": ["no", "yes"]}, dtype="str")
    pd.testing.assert_frame_equal(read_rows(tmp_path / name).table, wanted)


def test_long_tables_are_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("posterity.runs.delimited._PIECE", 7)
    table = pd.DataFrame({"a": [str(i) for i in range(30)], "y": ["no", "yes", None] * 10}, dtype="str")
    table.to_csv(tmp_path / "t.csv.gz", index=False)
    pd.testing.assert_frame_equal(read_rows(tmp_path / "t.csv.gz").table, table)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("t.csv", "a,b,a\n1,2,3\n", "'a' twice"),
        ("t.csv", "a,b\n1,2,\n3,4,\n", "more values than names"),
        ("t.jsonl", '{"a": [1, 2], "y": 0}\n{"a": [3], "y": 1}\n', "one value in each cell of 'a', got a list"),
    ],
)
def test_tables_that_would_be_misread_are_refused(tmp_path, name, content, said):
    (tmp_path / name).write_text(content)
    with pytest.raises(InvalidInput, match=said):
        read_rows(tmp_path / name)


def test_arrays(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.zeros((4, 3)), y=np.arange(4), other=np.zeros(9))
    rows = read_rows(tmp_path / "t.npz")
    assert rows.block.shape == (4, 3)
    assert list(rows.table) == ["y"]
    np.savez(tmp_path / "u.npz", first=np.zeros((4, 3)), second=np.zeros((4, 2)))
    with pytest.raises(PosterityError, match="--inputs"):
        read_rows(tmp_path / "u.npz")
    assert read_rows(tmp_path / "u.npz", inputs="second").block.shape == (4, 2)
    assert with_block(rows, tmp_path / "t.npz", None).block.shape == (4, 3)
    (tmp_path / "v.npz").write_bytes(b"no arrays")
    with pytest.raises(RefusedFile, match=r"v\.npz"):
        with_block(rows, tmp_path / "v.npz", None)


@pytest.mark.parametrize("shape", [(3,), (4, 1)])
def test_labels_that_do_not_fit_their_inputs(tmp_path, shape):
    np.savez(tmp_path / "t.npz", x=np.ones((4, 2)), y=np.ones(shape), names=np.array(["a", "b"]))
    assert read_rows(tmp_path / "t.npz").table.columns.tolist() == []
    with pytest.raises(
        InvalidInput, match=r"expected 4 values of 'y', one for each row of inputs, got an array of sha"
    ):
        read_rows(tmp_path / "t.npz", target="y")


def test_idx(tmp_path):
    pictures, labels = np.arange(24, dtype=np.uint8).reshape(2, 3, 4), np.array([7, 9], dtype=np.uint8)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(pictures)))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    rows = read_rows(tmp_path / "train-images-idx3-ubyte.gz")
    np.testing.assert_array_equal(rows.block, pictures)
    assert rows.table["label"].tolist() == [7, 9]
    (tmp_path / "short-idx3-ubyte").write_bytes(idx(pictures)[:-1])
    with pytest.raises(RefusedFile, match="bytes"):
        read_rows(tmp_path / "short-idx3-ubyte")


def test_pictures(tmp_path):
    from PIL import Image

    for name, size in (("cats/a.png", (6, 4)), ("dogs/b.png", (6, 4)), ("dogs/c.png", (12, 8))):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", size, (10, 20, 30)).save(tmp_path / name)
    rows = read_rows(tmp_path)
    assert rows.block.shape == (3, 4, 6, 3)
    assert rows.table["label"].tolist() == ["cats", "dogs", "dogs"]
    assert read_rows(tmp_path / "cats").table["label"].isna().all()
    with pytest.raises(InvalidInput, match=r"smaller --size\), got '3 of 1000000000 x 1000000000 pixels'"):
        read_rows(tmp_path, size=10**9)
    (tmp_path / "dogs" / "d.png").write_bytes(b"no picture")
    found = read_rows(tmp_path)
    assert len(found) == len(found.block) == 3
    assert found.remarks == ("skipped 1 picture that cannot be read: dogs/d.png",)
    with pytest.raises(RefusedFile, match=r"d\.png"):
        read_rows(tmp_path / "dogs" / "d.png")


def test_what_to_predict_of_pictures_is_clear_without_decoding_them(tmp_path):
    (tmp_path / "photos" / "cats").mkdir(parents=True)
    (tmp_path / "photos" / "cats" / "a.png").write_bytes(b"no picture")
    found = locate(tmp_path / "photos", tmp_path / "run", None, "0.2", None, 0, None, None, None)
    assert found.target == "label"


def test_only_pictures_that_are_seen_count(tmp_path):
    from PIL import Image

    (tmp_path / "cats" / ".thumbnails").mkdir(parents=True)
    for name in ("cats/a.png", "cover.png"):
        Image.new("L", (3, 2)).save(tmp_path / name)
    before = DataSource.of(tmp_path, tmp_path)
    for name in ("cats/._a.png", "cats/.thumbnails/a.png", ".DS_Store", "Thumbs.db"):
        (tmp_path / name).write_bytes(b"what a system leaves behind")
    found = read_rows(tmp_path).table
    assert found["file"].tolist() == ["cats/a.png", "cover.png"]
    assert found["label"].fillna("none").tolist() == ["cats", "none"]
    assert before.locate(tmp_path) == tmp_path


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.float32])
def test_pictures_that_bytes_do_not_hold_are_refused(tmp_path, dtype):
    from PIL import Image

    Image.fromarray(np.full((2, 3), 3000, dtype)).save(tmp_path / "x-ray.tif")
    with pytest.raises(RefusedFile, match="8 bits a channel"):
        read_rows(tmp_path)


def test_photographs_stand_upright(tmp_path):
    from PIL import Image

    turned = Image.Exif()
    turned[0x0112] = 6  # its first column is the top of the scene
    scene = np.zeros((2, 4), dtype=np.uint8)
    scene[:, -1] = 200
    Image.fromarray(scene).save(tmp_path / "a.png", exif=turned)
    found = read_rows(tmp_path).block[0]
    assert found.shape == (4, 2)
    assert (found[-1] == 200).all()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_white(tmp_path, mode):
    from PIL import Image

    picture = Image.new("RGBA", (2, 1), (0, 0, 0, 255))
    picture.putpixel((1, 0), (0, 0, 0, 0))
    picture.convert(mode).save(tmp_path / "logo.png")
    assert read_rows(tmp_path).block.tolist() == [[[0, 255]]]


def test_pictures_are_in_colour_if_any_is(tmp_path):
    from PIL import Image

    for number in range(120):
        Image.new("L", (3, 2), 2 * number).save(tmp_path / f"{number:03d}.png")
    assert read_rows(tmp_path).block[:, 0, 0].tolist() == [2 * number for number in range(120)]
    assert read_rows(tmp_path, like=(3, 4, 5)).block.shape == (120, 4, 5, 3)
    Image.new("RGBA", (3, 2), (10, 200, 30, 255)).save(tmp_path / "the last.png")
    assert read_rows(tmp_path).block[-1, 0, 0].tolist() == [10, 200, 30]
    assert read_rows(tmp_path, like=(1, 2, 3)).block.shape == (121, 2, 3)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", b""),
        ("t.csv", b"a,b\n"),
        ("t.csv", b'a,b\n"unfinished'),
        ("t.csv", b"a,a\n1,2\n\xff\xfe"),
        ("t.parquet", b"PAR1 no"),
        ("t.npz", b"PK no"),
        ("t.jsonl", b"{"),
        ("t.csv.gz", b"no gzip"),
        ("t-idx3-ubyte", b"\0\0"),
        ("t.pkl", b"cos\nsystem\n"),
    ],
)
def test_other_content_is_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(PosterityError):
        read_rows(tmp_path / name)


def test_pickled_arrays_are_not_executed(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "executed"), "w"))

    np.savez(tmp_path / "t.npz", x=np.array([Trap(), Trap()], dtype=object))
    with pytest.raises(PosterityError):
        read_rows(tmp_path / "t.npz")
    assert not (tmp_path / "executed").exists()


def test_nothing_there(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(PosterityError, match=r"got .*pipe\.csv, which is a pipe or a device: save it as a file"):
        read_rows(tmp_path / "pipe.csv")
    with pytest.raises(PosterityError, match="not there"):
        read_rows(tmp_path / "t.csv")


@pytest.mark.filterwarnings("ignore")  # libraries warn about the damage in many ways
def test_damaged_files_are_read_or_refused(tmp_path):
    assert fuzz(tmp_path, rounds=25) == []


def test_names_of_many_columns(tmp_path):
    names = [f"measurement_{k}" for k in range(10_000)]  # more characters than a cell of Python's csv may have
    for mark in ",;":
        (tmp_path / "wide.csv").write_text(f"{mark.join(names)}\n{mark.join('1' * 10_000)}\n")
        assert list(read_rows(tmp_path / "wide.csv").table) == names
