"""The examples in the docstrings of the library's modules run, and every public name has one."""

import doctest
import importlib

import pytest
import torch

import adawac

MODULES = ["algorithm", "objective", "methods", "losses", "features", "registry", "lazy"]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name):
    module = importlib.import_module(f"adawac.{name}")
    torch.manual_seed(0)
    failed, attempted = doctest.testmod(module, raise_on_error=False)
    assert failed == 0
    assert attempted > 0


@pytest.mark.parametrize("name", ["AdaWAC", "Criterion", "EncoderTap", "Objective", "SampleWeights", "build_method"])
def test_a_public_name_of_the_library_has_an_example(name):
    assert ">>>" in getattr(adawac, name).__doc__
