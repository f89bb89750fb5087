"""Every module is covered by the tests of its own room, or it is written here by which others."""

from __future__ import annotations

import pytest

from covering import MODULES, TESTS, own, table

NEAR = 3  # imports between a test and a module, at most
ELSEWHERE = {
    "__main__": "test_startup.py",
    "checkpoints": "merging/test_checkpoint.py",
    "doubles": "prediction/test_threads.py",
    "errors": "test_messages.py",
    "inputs": "curvature/test_ggn.py",
    "plots.effects": "runs/test_effects.py",
    "plots.merging": "cli/test_merge_command.py",
    "processes": "test_public_names.py",
    "texts": "learning/test_texts.py",
} | dict.fromkeys(
    [name for name in MODULES if name.startswith("likelihoods.")], "test_likelihoods.py"
)  # by their names


@pytest.fixture(scope="module")
def tests():
    return table()


def test_every_module_has_tests_in_its_room_or_a_line_above(tests):
    lonely = [
        name
        for name, found in tests.items()
        if not any(own(test, name) and distance <= NEAR for distance, test in found) and name not in ELSEWHERE
    ]
    assert lonely == []


def test_the_lines_above_name_modules_and_tests():
    assert [path for path in ELSEWHERE.values() if not (TESTS / path).exists()] == []
    assert set(ELSEWHERE) <= set(MODULES)


def test_the_table_knows_who_tests_what(tests):
    found = {test.name: distance for distance, test in tests["rule"]}
    assert found["test_rule.py"] == 0
    assert found["test_table.py"] > 0
