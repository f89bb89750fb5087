"""What the page can show: menus, presets with their words, and films."""

from __future__ import annotations

from typing import Any

from posterity.app.rule.choice import CURVATURES, ESTIMATORS, FAMILIES
from posterity.app.rule.landscapes import LANDSCAPES
from posterity.app.rule.presets import PRESETS, TOURS, preset
from posterity.app.rule.running import film
from posterity.app.rule.words import code, equations
from posterity.errors import expected, require
from posterity.table import ROWS


def catalogue() -> dict[str, Any]:
    """Menus and presets; the films come one by one."""
    approximations = {row.name: row.approximations for row in ROWS}
    described = {
        name: {**one.public(), "approximations": approximations[one.rows[0]] if one.rows else ""}
        for name, one in PRESETS.items()
    }
    return {
        "losses": {
            name: {"title": where.title, "formula": where.formula, "dims": where.dims, "data": where.data}
            for name, where in LANDSCAPES.items()
        },
        "families": {name: {"title": title, "estimators": able} for name, (title, able) in FAMILIES.items()},
        "estimators": ESTIMATORS,
        "curvatures": CURVATURES,
        "presets": described,
        "tours": [{"title": title, "presets": names, "look": look} for title, names, look in TOURS],
    }


def asked(body: Any) -> dict[str, Any]:
    """The film that the page asks for: {"preset": name, "changes": {setting: value}}.

    Where settings are changed, the equation and the code are those of the changed choice.
    """
    require(isinstance(body, dict), "body", "an object", body)
    name, changes = body.get("preset"), body.get("changes", {})
    one = preset(name)
    require(isinstance(changes, dict), "changes", "an object", changes)
    if not changes:
        return one.film().public()
    if one.choice is None:
        raise expected("changes", f"none for {name!r}, whose data and model are fixed", sorted(changes))
    choice = one.choice.but(changes)
    words = {} if set(changes) <= {"start", "points", "seed"} else {"equations": equations(choice)}
    return {**film(choice).public(), **words, "code": code(choice), "choice": choice.public()}
