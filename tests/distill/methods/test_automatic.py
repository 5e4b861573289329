"""`auto`: what is chosen by what there is, and what stays explicit."""

from __future__ import annotations

from typing import Any

import pytest

from bertender.core.errors import UnknownNameError
from distill.distillation.config import DistillConfig, GeneralConfig
from distill.methods import CHOICES, METHODS, automatic_settings


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.settings["method"])
def test_every_choice_is_a_method_with_settings_that_it_has(choice: Any) -> None:
    assert choice.settings["method"] in METHODS
    DistillConfig.parse(choice.settings)


def test_some_choice_always_holds() -> None:
    assert not CHOICES[-1].given


@pytest.mark.parametrize("explicit", [{}, {"student": "an-encoder"}])
def test_auto_is_the_default_and_takes_the_first_that_holds(explicit: dict[str, Any]) -> None:
    chosen = automatic_settings(explicit)
    for config in (
        DistillConfig.parse(explicit),
        DistillConfig.parse({"method": "auto", **explicit}),
    ):
        for name, value in chosen.items():
            assert getattr(config, name) == value
        assert not config.is_explicit("method")


def test_what_is_explicit_comes_before_what_is_chosen() -> None:
    assert DistillConfig.parse({"epochs": 7}).epochs == 7
    assert DistillConfig.parse({"student": "an-encoder", "method": "hard"}).method == "hard"


def test_a_start_that_comes_later_changes_what_is_chosen() -> None:
    """A recipe's step has its student once an earlier step is known."""
    assert DistillConfig.parse({}).changed({"student": "an-encoder"}).method == "pd"


def test_a_methods_own_settings_do_not_outlive_it() -> None:
    named = DistillConfig.parse({"method": "pd"})
    assert not named.is_explicit("learning_rate")
    assert (
        named.changed({"method": "hard"}).learning_rate
        == DistillConfig.parse({"method": "hard"}).learning_rate
    )


def test_a_general_distillation_knows_no_auto() -> None:
    with pytest.raises(UnknownNameError, match="'auto'"):
        GeneralConfig.parse({"method": "auto"})
