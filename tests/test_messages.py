"""The claims of pictures in the gallery, held to the numbers that their scripts wrote beside them."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "pictures"


def numbers(name):
    return json.loads((PICTURES / f"{name}.json").read_text(encoding="utf-8"))


def test_every_recorded_picture_is_there():
    for path in PICTURES.glob("*.json"):
        assert path.with_suffix(".png").exists() or path.with_suffix(".gif").exists(), path.name


def test_every_picture_has_a_script_and_every_film_its_numbers():
    """A script names the file that it writes; some put the names together."""
    scripts = [*(ROOT / "examples").glob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    written = "\n".join(path.read_text(encoding="utf-8") for path in scripts)
    together = {
        f"{which}_relevant_{data}": "{which}_relevant_{name}.png"
        for which in ("least", "most")
        for data in ("mnist", "cifar10")
    } | {
        "generalisation_lenet_5": "generalisation_{name}.png",
        "generalisation_resnet_20": "generalisation_{name}.png",
    }
    for path in PICTURES.glob("*.png"):
        named = f'"{path.stem}"', f"{path.stem}.png", together.get(path.stem, "?")
        assert any(name in written for name in named), path.name
    for path in PICTURES.glob("*.gif"):
        assert path.with_suffix(".json").exists(), path.name


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


def test_a_network_leans_on_wrong_labels_all_along_and_on_unusual_digits_until_it_has_learnt_them():
    wrong, unusual, typical = numbers("sensitivity")["median_influence_in_thirds_of_training"].values()
    assert min(wrong) > 0.8 * max(wrong)
    assert unusual[0] > 0.5 * wrong[0]
    assert unusual[2] < 0.1 * wrong[2]
    assert all(few < 0.03 * many for few, many in zip(typical, wrong, strict=True))


def test_posteriors_doubt_far_from_the_data_and_fit_as_well():
    found = numbers("deep_uncertainty")
    mean = {name: {key: statistics.fmean(values) for key, values in one.items()} for name, one in found.items()}
    point = mean.pop("One network (AdamW)")
    ratio = {name: one["entropy_far"] / point["entropy_far"] for name, one in mean.items()}
    assert 1 < ratio.pop("Ensemble of five") < 1.5
    least = {"IVON": 4, "VOGN": 5, "Laplace": 5}  # the others: more than twice as much
    assert len(ratio) == 5
    assert all(least.get(name, 2) < value < 9.5 for name, value in ratio.items())
    assert all(one["accuracy"] > point["accuracy"] - 0.01 for one in mean.values())


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


def test_films_show_what_their_titles_say():
    """In the order of the films: wide where nothing was seen, fewer lines left, both modes, last down, both tasks."""
    for deviation in numbers("film_polynomial").values():
        assert deviation["elsewhere"] > 1.5 * deviation["near"]
    doubt = numbers("film_logistic")
    assert doubt["0"] > 0.47  # nothing is known, up to the noise of the draws
    assert doubt["6"] > 1.5 * doubt["30"]
    left, right = sorted(mean[0] for mean in numbers("film_modes")["means"])
    assert left == pytest.approx(-1.27, abs=0.1)  # where mixture_approximation.png has its two Gaussians
    assert right == pytest.approx(1.25, abs=0.1)
    errors = list(numbers("film_memory").values())
    assert all(one["wrong"] > 2 * one["right"] for one in errors[3:])
    highest = max(one["wrong"] for one in errors)
    assert errors[len(errors) // 4]["right"] < 0.5 < 0.9 * highest < errors[len(errors) // 4]["wrong"]
    assert errors[-1]["wrong"] < 0.75 * highest
    alone, kept = numbers("film_adaptation").values()
    assert alone[0] < 0.6 < 0.95 < kept[0]
    assert kept[1] > alone[1] - 0.05


def test_leave_one_out_finds_when_to_stop():
    cost = numbers("early_stopping")["cost_of_stopping"]
    assert max(cost["leave-one-out"]) < 0.05
    assert statistics.median(cost["leave-one-out"]) < 0.01
    assert min(cost["training"]) > 0.05
    assert max(cost["training"]) > 0.2


def test_street_scenes_are_doubted_where_they_are_wrong():
    found = numbers("camvid")
    assert found["errors_in_most_doubtful_fifth"] > 0.6  # chance would have a fifth
    assert found["error"] < 0.15


def test_two_curves_fit_earthquakes_equally_well_and_differ_about_a_magnitude_9():
    found = numbers("earthquakes")
    line, kinked = found["a straight line"], found["a line with a kink"]
    assert abs(line["log_likelihood"] - kinked["log_likelihood"]) < 0.5
    (low, middle, high), (lower, other, higher) = (fit["years_between_magnitude_9"] for fit in (line, kinked))
    assert 4 < other / middle < 5  # "a factor of four"
    assert higher / lower > 100 * high / low


def test_doubt_is_near_the_data_small_and_far_away_large():
    for found in numbers("polynomial_regression")["standard_deviation"].values():
        assert found["elsewhere"] > 2 * found["near"]
    far = numbers("logistic_regression")["mean_probability_of_the_other_class_far_away"]
    assert far["average"] > 2 * far["one"]


def test_pixels_are_doubted_where_they_are_wrong_and_a_cross_more_than_known_shapes():
    found = numbers("segmentation")
    assert found["errors_in_most_doubtful_twentieth"] > 0.9
    assert found["doubt_of_crosses_over_known_shapes"] > 1.2
    assert round(found["auroc_of_crosses"], 2) == 0.80  # in the gallery


def test_fine_tuning_forgets_and_priors_on_functions_do_not():
    found = numbers("forgetting")
    assert found["fine-tuning"]["forgetting"] > 0.5
    for name in ("K-prior, 40 examples a task", "FROMP, 40 examples a task"):
        assert found[name]["forgetting"] < 0.1
        assert found[name]["average"] > 0.85


def test_a_k_prior_learns_the_second_task_and_keeps_the_first():
    found = numbers("kprior_intuition")["accuracy_of_both_tasks"]
    before, alone, kept = (found[name] for name in list(found)[:3])
    assert alone[0] < 0.6
    assert kept[0] > before[0] - 0.01
    assert kept[1] > alone[1] - 0.01


def test_clear_examples_are_irrelevant_and_few_examples_carry_a_posterior():
    label = numbers("relevant_examples")["mean_probability_of_the_label"]
    assert label["least relevant"] > 0.999
    assert label["most relevant"] < 0.6
    assert numbers("model_and_data")["share_of_the_largest_tenth"] > 0.6


def test_suspects_have_wrong_labels():
    assert numbers("memory_map")["share_of_wrong_labels_among_the_first"] > 0.75


def test_one_equation_tells_nearly_what_training_again_does_and_passes_the_rest():
    """The equation is compared where retraining changes the prediction by a hundredth at least."""
    for name, found in numbers("what_if").items():
        first, taken_out, passes = list(found)[1:]
        ratios = {way: [e / t for e, t in zip(found[way], found["retrained"]) if abs(t) > 0.01] for way in found}
        most = 1.1 if name == "Softmax regression" else 1.6
        assert all(1 / most < ratio < most for ratio in ratios[taken_out]), name
        assert statistics.median(ratios[first]) < statistics.median(ratios[taken_out]), name
        assert all(0.98 < ratio < 1.02 for ratio in ratios[passes]), name


def test_the_weight_of_a_merge_hardly_matters_by_curvature():
    found = numbers("merging")
    some = [i for i, alpha in enumerate(found["weights"]) if alpha >= 0.5]
    spread = {
        way: max(values[i] for i in some) - min(values[i] for i in some) for way, values in found["accuracy"].items()
    }
    assert spread["gradient matching (posteriors)"] < 3
    assert min(spread["task arithmetic"], spread["TIES"]) > 10


def test_ivon_reaches_the_wide_valley_and_sam_stops_between():
    found = numbers("sam_and_bayes")
    assert all(abs(place - 1.2) < 0.05 for name, place in found["minima"].items() if name != "the loss")
    sam, ivon = found["ends"].values()
    far = [i for i, scale in enumerate(found["looked"]) if scale > 0.3]
    assert all(abs(ivon[i] - 1.2) < 0.2 and -0.8 < sam[i] < 0.2 for i in far)


def test_components_lower_the_divergence():
    for kl in numbers("mixture_approximation")["kl"].values():
        assert kl[0] > 2 * kl[1] > 4 * kl[2]


def test_the_first_layer_is_decided_and_the_last_is_not():
    sizes = numbers("filters")["mean_over_standard_deviation"]
    assert sizes["1.weight"] > 3
    assert max(sizes["4.weight"], sizes["7.weight"]) < 1


def test_images_that_the_boundary_rests_on_would_be_taken_for_something_else():
    for data, images in (("mnist", 60_000), ("cifar10", 50_000)):
        least, most = (numbers(f"{which}_relevant_{data}") for which in ("least", "most"))
        assert least["images"] == most["images"] == images
        assert least["predicted_otherwise"] == 0
        assert most["predicted_otherwise"] == most["shown"] == 20
