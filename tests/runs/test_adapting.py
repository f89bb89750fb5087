"""Decisions about rows, and a run that is adapted by them."""

import pandas as pd
import pytest

from posterity.app.run_report import contents
from posterity.errors import InvalidInput
from posterity.runs import RunFolder, fitting
from posterity.runs.adapting import adapt_run
from posterity.runs.data import DataSource
from posterity.runs.decisions import RowDecisions, proposal
from posterity.runs.doctor import examine
from posterity.runs.mapping import map_run, suspects
from posterity.runs.what_if import what_if_run
from runs.problems import flowers, line, plan, trained


def test_decisions(run, tmp_path):
    _, found = map_run(run)
    proposal(suspects(run, found, 10)).to_csv(tmp_path / "d.csv", index=False)
    decided = RowDecisions.read(tmp_path / "d.csv")
    assert len(decided.kept) + len(decided.dropped) == 10
    for wrong, why in (
        ("id,decision\n1,burn\n", "a decision among"),
        ("id,decision,label\n1,relabel,\n", "the new label"),
        ("id,decision\n1,drop\n1,keep\n", "one decision"),
        ("id\n1\n", "the columns"),
        ("id,decision\nx,keep\n", "whole number"),
        ("id,decision\n²,keep\n", "whole number below 2.63 as id, got '²'"),
        ("id,decision\n--3,keep\n", "whole number"),
        (f"id,decision\n{'9' * 5000},keep\n", "whole number"),
        (f"id,decision\n{2**63},keep\n", "whole number"),
        ("id,decision,label\n5,1,drop,\n", "expected a name for every column in the first line, got more values"),
        ("id,decision,decision\n1,keep,drop\n", "columns of different names, got 'decision' twice"),
        ("id,id,decision\n1,2,drop\n", "columns of different names, got 'id' twice"),
    ):
        (tmp_path / "d.csv").write_text(wrong)
        with pytest.raises(InvalidInput, match=why):
            RowDecisions.read(tmp_path / "d.csv")
    (tmp_path / "d.csv").write_text(f"id;decision;label\n-3;drop;\n{2**63 - 1};relabel;NA\n")
    decided = RowDecisions.read(tmp_path / "d.csv")
    assert (decided.dropped, decided.relabelled) == ((-3,), {2**63 - 1: "NA"})
    labels = pd.DataFrame({"id": [1.0, 2.0], "decision": "relabel", "label": ["1.0", " None "]})
    labels.to_csv(tmp_path / "d.csv", index=False)
    assert RowDecisions.read(tmp_path / "d.csv").relabelled == {1: "1.0", 2: "None"}
    labels.assign(label=[1.0, 2.5]).to_parquet(tmp_path / "d.parquet")
    assert RowDecisions.read(tmp_path / "d.parquet").relabelled == {1: "1", 2: "2.5"}


def test_decisions_about_amounts(tmp_path):
    line(tmp_path / "line.csv").assign(decision=["to be", "or not"] * 30).to_csv(tmp_path / "line.csv", index=False)
    run = trained(tmp_path / "run", tmp_path / "line.csv", target="y")
    _, found = map_run(run)
    proposal(suspects(run, found, 5)).to_csv(tmp_path / "d.csv", index=False)
    assert len(RowDecisions.read(tmp_path / "d.csv").kept) == 5  # without labels to suspect, nothing is to be dropped
    assert list(proposal(suspects(run, found, 5)))[:4] == ["id", "decision", "label", "given"]


def test_corrected_amounts_that_made_the_noise(tmp_path):
    table = line(tmp_path / "line.csv")
    table["y"] = table["y"].round(3)
    table.loc[::12, "y"] = 1000.25
    table.to_csv(tmp_path / "line.csv", index=False)
    run = trained(tmp_path / "run", tmp_path / "line.csv", target="y")
    _, found = map_run(run)
    written = proposal(suspects(run, found, 60)).set_index("id")["given"]
    assert written.tolist() == table.loc[written.index, "y"].tolist()  # as in the file, to its last digit
    ids = run.data("train").ids.tolist()
    wrong = tuple(i for i in ids if i % 12 == 0)
    _, _, notes = adapt_run(run, tmp_path / "dropped", decisions=RowDecisions((), wrong, {}))
    assert any("train again" in note for note in notes)
    harmless = tuple(i for i in ids if i % 12)[:1]
    _, _, notes = adapt_run(run, tmp_path / "other", decisions=RowDecisions((), harmless, {}))
    assert not any("train again" in note for note in notes)


def test_a_class_that_only_held_out_rows_have(run, here, tmp_path):
    table = pd.read_csv(here / "flowers.csv")
    lonely = run.data("test").ids[0].item()
    table.loc[lonely, "species"] = "unheard of"
    table.to_csv(tmp_path / "flowers.csv", index=False)
    found = trained(tmp_path / "run", tmp_path / "flowers.csv")
    assert found.class_names == run.class_names
    assert any("1 held-out rows" in note for note in found.content["notes"])
    wanted = [i for i in run.data("test").ids.tolist() if i != lonely]
    assert found.data("test").ids.tolist() == found.predictions["id"].tolist() == found.records("test")["id"].tolist()
    assert found.predictions["id"].tolist() == wanted


def test_adapting_changes_the_rows(run, here, tmp_path):
    ids = run.data("train").ids.tolist()
    new = pd.read_csv(here / "flowers.csv").head(5).assign(species="a new one")
    new.to_csv(tmp_path / "new.csv", index=False)
    decisions = RowDecisions((ids[0],), (ids[1], ids[2]), {ids[3]: "setosa"})
    adapted, report, _ = adapt_run(run, tmp_path / "b", add=tmp_path / "new.csv", decisions=decisions)
    assert report.exact
    assert adapted.class_names == (*run.class_names, "a new one")
    records = adapted.records("train").set_index("id")
    assert len(records) == 120 - 2 + 5 == adapted.posterior.n
    assert records.loc[ids[3], "species"] == "setosa"
    assert ids[1] not in records.index
    assert (records["species"] == "a new one").sum() == 5
    assert min(records.index[-5:]) == 150  # after every row of the old file
    again, _, _ = adapt_run(adapted, tmp_path / "c", decisions=RowDecisions((), (150,), {}))
    assert len(again.data("train").ids) == 122
    assert RunFolder.open(run.folder).data("train").ids.tolist() == ids


def chunk(path, first, rows=20, **changes):
    table = flowers(path).assign(**changes)
    table.iloc[first : first + rows].to_csv(path, index=False)
    return path


@pytest.mark.parametrize("settings", [{}, {"model": "mlp", "hidden": (8,), "method": "variational", "lr": 0.01}])
def test_a_run_that_has_forgotten_can_be_adapted_again(here, tmp_path, settings):
    """The command of a stream, chunk after chunk: rows that count for less are no longer those of the posterior."""
    found = trained(tmp_path / "0", here / "flowers.csv", **settings)
    for k, forget in enumerate((0.5, "auto", 0.0), 1):
        new = chunk(tmp_path / f"{k}.csv", 20 * k, sepal_length=6.0 + k)
        found, report, notes = adapt_run(found, tmp_path / str(k), add=new, forget=forget, seed=0)
        assert found.forgets
        assert len(report.added) == 20
        assert any("was forgotten before" in note for note in notes) == (k > 1)
        assert len(found.data("train").ids) == 120 + 20 * k > found.posterior.n
        assert [finding.name for finding in examine(found) if finding.name == "rows"] == []
    assert RunFolder.open(tmp_path / "3").forgets  # also after an adaptation that forgets nothing itself
    remembered = set(found.posterior.memory.ids.tolist())
    if settings:  # a linear model remembers every row
        gone = next(i for i in found.data("train").ids.tolist() if i not in remembered)
        with pytest.raises(InvalidInput, match="rows that the run remembers"):
            adapt_run(found, tmp_path / "4", decisions=RowDecisions((), (gone,), {}))
    known = next(iter(remembered))
    fewer, _, _ = adapt_run(found, tmp_path / "5", decisions=RowDecisions((), (known,), {}))
    assert known not in fewer.data("train").ids
    with pytest.raises(InvalidInput, match="forgotten"):
        adapt_run(found, tmp_path / "6", decisions=RowDecisions((), (known,), {}), memory=5)
    with pytest.raises(InvalidInput, match="forgotten"):
        what_if_run(found, RowDecisions((), (known,), {}), measured=True)


def test_added_rows_have_the_columns_of_training(run, here, tmp_path):
    new = pd.read_csv(here / "flowers.csv").head(5).rename(columns={"colour": "color"})
    new.to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(InvalidInput, match="none named 'colour'"):
        adapt_run(run, tmp_path / "b", add=tmp_path / "new.csv")


def test_a_new_class_is_named(run, here, tmp_path):
    new = pd.read_csv(here / "flowers.csv").head(5)
    new.loc[:1, "species"] = "Setosa"
    new.to_csv(tmp_path / "new.csv", index=False)
    _, _, notes = adapt_run(run, tmp_path / "b", add=tmp_path / "new.csv")
    assert "species: 'Setosa' is a new class, of 2 added rows" in notes


def test_ids_of_dropped_rows_are_not_given_again(run, here, tmp_path):
    pd.read_csv(here / "flowers.csv").head(4).to_csv(tmp_path / "new.csv", index=False)
    last = [i for i in range(140, 150) if i in run.data("train").ids]
    fewer, _, _ = adapt_run(run, tmp_path / "b", decisions=RowDecisions((), tuple(last), {}))
    more, _, _ = adapt_run(fewer, tmp_path / "c", add=tmp_path / "new.csv")
    assert more.data("train").ids[-4:].tolist() == [150, 151, 152, 153]
    less, _, _ = adapt_run(more, tmp_path / "d", decisions=RowDecisions((), (152, 153), {}))
    pd.read_csv(here / "flowers.csv").tail(4).to_csv(tmp_path / "newer.csv", index=False)
    again, _, _ = adapt_run(less, tmp_path / "e", add=tmp_path / "newer.csv")
    assert again.data("train").ids[-6:].tolist() == [150, 151, 154, 155, 156, 157]
    assert len(again.data("train").ids) == again.posterior.n == 120 - len(last) + 6


def test_rows_are_not_added_twice(run, here, tmp_path):
    pd.read_csv(here / "flowers.csv").head(4).to_csv(tmp_path / "new.csv", index=False)
    more, _, _ = adapt_run(run, tmp_path / "more", add=tmp_path / "new.csv")
    tested = {"source": vars(DataSource.of(tmp_path / "new.csv", tmp_path))}
    apart = fitting.train(plan(tmp_path / "apart", here / "flowers.csv", test=tested))
    for known, rows in ((run, here / "flowers.csv"), (more, tmp_path / "new.csv"), (apart, tmp_path / "new.csv")):
        with pytest.raises(InvalidInput, match="expected new rows"):
            adapt_run(known, tmp_path / "again", add=rows)


def test_an_adapted_run_moves_together_with_its_data(tmp_path):
    (tmp_path / "there").mkdir()
    flowers(tmp_path / "there" / "flowers.csv")
    flowers(tmp_path / "there" / "new.csv", rows=5)
    run = trained(tmp_path / "there" / "run", tmp_path / "there" / "flowers.csv")
    deep = tmp_path / "there" / "runs" / "of" / "today"
    adapt_run(run, deep, add=tmp_path / "there" / "new.csv")
    (tmp_path / "there").rename(tmp_path / "here")
    assert len(RunFolder.open(tmp_path / "here" / "runs" / "of" / "today").data("train").ids) == 125


def test_adapting_by_rows_that_are_not_there(run, tmp_path):
    test = run.data("test").ids.tolist()[0]
    with pytest.raises(InvalidInput, match=f"ids of training rows, got {test}, a held-out row"):
        adapt_run(run, tmp_path / "b", decisions=RowDecisions((), (test,), {}))
    with pytest.raises(InvalidInput, match="ids of training rows, got 9999, which is no row"):
        adapt_run(run, tmp_path / "b", decisions=RowDecisions((), (9999,), {}))
    with pytest.raises(InvalidInput, match="another folder"):
        adapt_run(run, run.folder, decisions=RowDecisions((), (test,), {}))


def test_the_report_of_an_adapted_run_counts_its_steps(run, tmp_path):
    adapted, report, _ = adapt_run(
        run, tmp_path / "b", decisions=RowDecisions((), (run.data("train").ids[0].item(),), {})
    )
    cost = contents(adapted).cost
    assert (cost["steps"], cost["steps of the adaptation"]) == (run.record.steps, report.steps)
    assert "steps of the adaptation" not in contents(run).cost
