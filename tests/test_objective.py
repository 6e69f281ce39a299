"""The options of the objective: every one is checked by its type when it is set."""

import numpy as np
import pytest

import adawac
from adawac.errors import ConfigError

WRONG = [
    ("eta_beta", True, "a number ≥ 0"),
    ("smooth", float("nan"), "a number ≥ 0"),
    ("sparse_threshold", "0.1", "a number ≥ 0"),
    ("sparse_threshold", -0.1, "a number ≥ 0"),
    ("trim_ratio", [0.5], "a number ≥ 0"),
    ("ignore_index", 255.0, "a whole number"),
    ("ignore_index", True, "a whole number"),
    ("trim_dice", 1, "True or False"),
    ("aligned", "no", "True or False"),
    ("validate", 0, "True or False"),
    ("views", "second", "one of first, both"),
    ("dice", ["sample"], "one of sample, batch"),
    ("supervision", 1.0, "weights ≥ 0"),
    ("supervision", (True, 0.5), "weights ≥ 0"),
]


@pytest.mark.parametrize(("name", "value", "expected"), WRONG)
def test_an_option_of_another_type_is_refused(name, value, expected):
    with pytest.raises(ConfigError) as error:
        adawac.Objective(**{name: value})
    assert str(error.value).startswith(f"Expected {name} to be {expected}")
    assert repr(value) in str(error.value)


@pytest.mark.parametrize("name", ["eta_beta", "aligned", "rho"])
def test_none_is_refused_where_the_option_needs_a_value(name):
    with pytest.raises(ConfigError, match=f"{name} to be .*, but got None"):
        adawac.Objective(**{name: None})


def test_numbers_of_numpy_and_whole_numbers_are_options():
    objective = adawac.Objective(
        eta_beta=np.float32(0.5),
        lambda_ac=2,
        ignore_index=np.int64(255),
        trim_ratio=0,
        supervision=[1, np.float64(0.5)],
    )
    assert (objective.eta_beta, objective.lambda_ac, objective.ignore_index) == (0.5, 2, 255)
