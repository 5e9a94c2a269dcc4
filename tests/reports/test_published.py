"""The published figures: what the paper says of its own Table 1 holds of ours."""

import pytest

from joslim.reports.published import TABLE_1, US_NETS, US_NETS_ACCURACY, published_lines

# Multiply-adds of the smallest and the full network, as `tests/costs` counts them, in millions.
ENDS = {
    "mobilenet_v2": (59.56, 300.77),
    "mobilenet_v3_large": (43.40, 216.59),
    "resnet18": (338.87, 1814.07),
}
METHODS = ("slim", "bignas", "joslim")


def test_the_table_has_three_networks_of_eight_rows() -> None:
    assert TABLE_1.keys() == ENDS.keys()
    for table in TABLE_1.values():
        assert list(table) == ["macs", *METHODS]
        assert {len(values) for values in table.values()} == {8}


@pytest.mark.parametrize("model", ENDS)
def test_its_ends_are_the_smallest_and_the_full_network(model: str) -> None:
    macs = TABLE_1[model]["macs"]
    assert macs[0] == pytest.approx(ENDS[model][0], abs=1)
    assert macs[-1] == pytest.approx(ENDS[model][1], abs=1)


@pytest.mark.parametrize("model", ENDS)
@pytest.mark.parametrize("method", METHODS)
def test_more_multiply_adds_are_never_worse(model: str, method: str) -> None:
    accuracies = TABLE_1[model][method]
    assert list(accuracies) == sorted(accuracies)


def test_what_is_bold_is_the_highest() -> None:
    """Joslim is, everywhere but for MobileNetV3 at 43 million."""
    for model, table in TABLE_1.items():
        rows = list(zip(table["macs"], *(table[method] for method in METHODS)))
        beaten = [macs for macs, slim, bignas, joslim in rows if joslim < max(slim, bignas)]
        assert beaten == ([43] if model == "mobilenet_v3_large" else [])


def test_the_gain_that_the_abstract_names() -> None:
    table = TABLE_1["mobilenet_v2"]
    gains = [ours - theirs for ours, theirs in zip(table["joslim"], table["slim"])]
    assert max(gains) == pytest.approx(1.7)


def test_lines_are_errors_at_multiply_adds() -> None:
    lines = published_lines("mobilenet_v2")
    assert lines["joslim"][0] == (59e6, 38.5)
    assert lines["slim"][-1] == (300e6, 28.2)
    assert lines[US_NETS] == [
        (59e6, 37.7), (97e6, 34.9), (151e6, 32.4), (209e6, 30.4), (300e6, 28.5)
    ]  # fmt: skip


def test_slim_of_the_paper_follows_us_nets() -> None:
    """That is how the paper checked it: at the ends, which both have, within a percent."""
    slim = TABLE_1["mobilenet_v2"]["slim"]
    assert abs(slim[0] - US_NETS_ACCURACY[0]) < 1
    assert abs(slim[-1] - US_NETS_ACCURACY[-1]) < 1


def test_other_networks_have_nothing() -> None:
    assert published_lines("resnet20") == {}
    assert US_NETS not in published_lines("resnet18")
