"""The options of the objective: every one is checked by its type when it is set."""

from dataclasses import FrozenInstanceError
from typing import get_type_hints

import numpy as np
import pytest
import torch

import adawac
from adawac.config.objective_options import MethodOptions, ObjectiveOptions
from adawac.errors import ConfigError
from adawac.objective import SampleTerms

WRONG = [
    ("eta_beta", True, "a number"),
    ("smooth", float("nan"), "a number"),
    ("sparse_threshold", "few", "a number"),
    ("sparse_threshold", -0.1, "a number ≥ 0"),
    ("trim_ratio", [0.5], "a number or null"),
    ("trim_ratio", 1, "a number ≥ 0 and < 1 or null"),
    ("ignore_index", 255.5, "a whole number"),
    ("ignore_index", True, "a whole number"),
    ("trim_dice", 1, "true or false"),
    ("aligned", "no", "true or false"),
    ("validate", 0, "true or false"),
    ("views", "second", "one of first, both"),
    ("dice", ["sample"], "one of sample, batch"),
    ("supervision", 1.0, "a list, each a number or null"),
    ("supervision", (True, 0.5), "a list, each a number or null"),
    ("supervision", (1.0, -0.5), "a list, each a number ≥ 0 or null"),
    ("supervision", (0.0, 0.0), "at least one weight above 0"),
]


@pytest.mark.parametrize(("name", "value", "expected"), WRONG)
def test_an_option_of_another_type_is_refused(name, value, expected):
    with pytest.raises(ConfigError) as error:
        adawac.Objective(**{name: value})
    assert f"  {name}: expected {expected}" in str(error.value)
    assert repr(value).strip("()") in str(error.value)


@pytest.mark.parametrize("name", ["eta_beta", "aligned", "rho"])
def test_none_is_refused_where_the_option_needs_a_value(name):
    with pytest.raises(ConfigError, match=f"{name}: expected .*, but got None"):
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


def test_type_checkers_know_the_same_options():
    """The methods' keyword arguments, which may be None, are the fields of the objective."""
    fields = get_type_hints(ObjectiveOptions)
    assert get_type_hints(MethodOptions) == {name: kind | None for name, kind in fields.items()}


def test_a_method_cannot_change_the_terms_that_it_is_given():
    none = torch.zeros(2)
    terms = SampleTerms(index=torch.arange(2), ell_ce=none, ell_dice=none, reg_ac=none, dense=none > 0)
    with pytest.raises(FrozenInstanceError):
        terms.ell_ce = none + 1
