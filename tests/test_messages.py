"""The claims of pictures in the gallery, held to the numbers that their scripts wrote beside them."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from PIL import Image

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"


def numbers(name):
    return json.loads((PICTURES / f"{name}.json").read_text(encoding="utf-8"))


def test_every_recorded_picture_is_there():
    for path in PICTURES.glob("*.json"):
        assert path.with_suffix(".png").exists(), path.name


def test_both_lines_are_right_today_and_one_fails_on_the_past():
    scores = numbers("good_classifier")["right_today_and_past"]
    (alone_today, alone_past), (prior_today, prior_past) = scores["today's points alone"], scores["the past as prior"]
    assert alone_today == prior_today == 1.0
    assert alone_past < 0.8 < 0.99 < prior_past


def test_thompson_sampling_finds_what_greedy_choice_never_does():
    regret = numbers("bandit")["regret_percent_of_uniform"]
    assert max(regret["Thompson sampling"]) < 60 < 100 < min(regret["greedy"])
    assert statistics.fmean(regret["Thompson sampling"]) < statistics.fmean(regret["ε-greedy, 0.1"])


def test_averaging_masks_has_the_fewest_errors_with_all_data_and_with_a_quarter():
    error = numbers("mc_dropout")["error_percent"]
    for share in ("all", "a quarter"):
        mine = {name.split(": ")[1]: value for name, value in error.items() if name.startswith(f"{share}:")}
        assert min(mine, key=mine.get) == "dropout everywhere, MC dropout"
        assert max(mine, key=mine.get) == "dropout everywhere, weight averaging"


def test_wrong_labels_stand_out_early_and_fade():
    found = numbers("sensitivity")
    by_epoch = found["auroc_of_wrong_labels_by_epoch"]
    assert by_epoch[found["early"]] > 0.97
    assert by_epoch[found["last"]] < by_epoch[found["early"]] - 0.03


def test_posteriors_doubt_far_from_the_data_and_fit_as_well():
    found = numbers("deep_uncertainty")
    point = found.pop("One network (AdamW)")
    for name in found:
        much = 5 if name in ("Laplace, linearised", "VOGN") else 1.5
        assert found[name]["entropy_far"] > much * point["entropy_far"], name
        assert found[name]["accuracy"] > point["accuracy"] - 0.01, name


def test_a_batch_spreads_where_single_scores_do_not():
    distance = numbers("active_learning")["mean_distance_of_eight"]
    assert distance["batch_bald_linearised"] > 1.5 * distance["bald"]


def test_leave_one_out_chooses_a_prior_near_the_best():
    for found in numbers("generalisation")["held_out_nll_of_the_choice"].values():
        best = found["held out"]
        assert found["leave-one-out, estimated"] < best + 0.05
        assert found["training"] > best + 0.5


def test_one_step_is_right_for_small_groups_and_passes_correct_it_for_classes():
    found = numbers("groups")
    small = [ratio for kind in ("random examples", "part of a class") for ratio in found[kind]["one step"]]
    assert all(0.5 < ratio < 2.5 for ratio in small)
    assert 0.8 < statistics.median(small) < 1.3
    assert max(found["a whole class"]["one step"]) < 0.5
    assert all(0.95 < ratio < 1.05 for kind in found.values() for ratio in kind["passes"])


def test_films_are_short_and_small():
    films = sorted(PICTURES.glob("film_*.gif"))
    assert len(films) == 5
    for path in films:
        assert path.stat().st_size < 10**6, path.name
        with Image.open(path) as film:
            assert film.n_frames > 15, path.name


def test_street_scenes_are_doubted_where_they_are_wrong():
    found = numbers("camvid")
    assert found["errors_in_most_doubtful_fifth"] > 0.6  # chance would have a fifth
    assert found["error"] < 0.15
