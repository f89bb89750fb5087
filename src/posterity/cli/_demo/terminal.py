"""The demo in the terminal: six short tables of this run's own numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posterity.cli._demo.study import CUTS, NEW, OURS, PLANTED, Study

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console
    from rich.table import Table

_DIGITS = {"steps": 0, "seconds": 1, "passes": 1}


def show(study: Study, console: Console) -> None:
    """Print what was found out, in the order in which it was asked."""
    digits, found, now, tumours = study.digits, study.found, study.estimate, study.tumours
    console.print(
        f"[bold]Tumours[/], {tumours.rows} to learn from, the others to test with, in {CUTS} cuts. One network is "
        f"trained by AdamW for {study.steps} steps, by AdamW for as long as cross-validation finds best, and by {OURS} "
        "as it is."
    )
    console.print(_table("Learning", tumours.quality))
    console.print(
        f"[bold]Digits 0 to {NEW - 1}[/], {len(digits.labels)} images, {PLANTED} of them with a wrong label that was "
        f"planted; tested on {len(digits.known[1])} images with right labels. A {NEW} is a foreign input."
    )
    learnt = _lines("What was learnt", ("", ""))
    learnt.add_row("accuracy", f"{study.accuracy:.4f}")
    learnt.add_row(f"AUROC of entropy, which tells a {NEW} from known digits", f"{study.foreign_auroc:.4f}")
    console.print(learnt)
    wrong = _lines("Which labels are wrong?", ("", ""))
    wrong.add_row("planted", str(PLANTED))
    wrong.add_row(f"among the {PLANTED} that the memory map suspects first", f"[bold]{found}[/]")
    wrong.add_row("AUROC of its ranking", f"{study.label_auroc:.4f}")
    console.print(wrong)
    answer = _lines("What if they were gone?", ("held-out loss", ""))
    answer.add_row("now", f"{now['now']:.4f}")
    answer.add_row("without them, estimated without training", f"[bold]{study.direction}[/]")
    answer.add_row("without them, after retraining", f"{now['retrained']:.4f}")
    console.print(answer)
    console.print(_table(f"They are removed, and the {NEW} is learnt", study.changed))
    console.print(f"{study.seconds:.0f} s in all, on one core.")


def _lines(title: str, heads: tuple[str, ...]) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", show_header=any(heads))
    for k, head in enumerate(heads):
        table.add_column(head, justify="right" if k else "left")
    return table


def _table(title: str, frame: pd.DataFrame) -> Table:
    table = _lines(title, ("", *frame.columns))
    for name, row in frame.to_dict("index").items():
        cells = (f"{v:.{_DIGITS.get(str(column), 4)}f}" for column, v in row.items())
        table.add_row(str(name), *cells)
    return table
