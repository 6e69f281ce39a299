"""What was measured of the job layer, as `benchmarks/jobs.py` wrote it down, keeps what is promised."""

import json

import pytest

from tests.places import REPOSITORY

RESULT = json.loads((REPOSITORY / "benchmarks" / "results" / "jobs.json").read_text())


@pytest.mark.parametrize("one", RESULT["overhead"], ids=lambda one: f"{one['at_once']} at once")
def test_jobs_cost_less_than_a_twentieth_of_30_short_runs(one):
    assert one["runs"] == 30
    assert one["run_s"] <= 15  # short
    assert len(one["plain_s"]) == len(one["grid_s"]) >= 3
    assert one["overhead_percent"] < 5
    assert one["cpu_overhead_percent"] < 5


def test_ten_thousand_finished_runs_are_listed_within_five_seconds():
    assert RESULT["listing"]["runs"] == 10_000
    assert RESULT["listing"]["list_runs_s"] < 5
    assert RESULT["listing"]["plan_jobs_s"] + RESULT["listing"]["job_states_s"] < 5
