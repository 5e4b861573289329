"""What `make test` leaves to `make test-slow`, and what tests share."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distill.methods import METHODS
from tests.conftest import Once
from tests.repeats import FOLDERS, OF_STUDENTS, ONE_PATH, REPEATED, SAME_PAPER, repeats

HERE = Path(__file__).parent


def items_of(
    folder: str, function: str = "test_b", *, of_fixtures: bool = False, **values: list[Any]
) -> list[Any]:
    """Tests of one function, for each combination of its parameters, or of its fixtures'."""
    marks = [] if of_fixtures else [SimpleNamespace(args=(name, [])) for name in values]
    combinations = itertools.product(*values.values())
    return [
        SimpleNamespace(
            path=HERE / folder / "test_a.py",
            nodeid=f"tests/{folder}/test_a.py::{function}[{number}]",
            callspec=SimpleNamespace(params=dict(zip(values, row, strict=True))),
            iter_markers=lambda _: iter(marks),
        )
        for number, row in enumerate(combinations)
    ]


def quick(items: list[Any]) -> list[list[Any]]:
    slow = [id(item) for item in repeats(items)]
    return [[*item.callspec.params.values()] for item in items if id(item) not in slow]


def test_each_value_of_each_parameter_is_quick_once() -> None:
    items = items_of("export", model=["bert", "mpnet"], precision=["a", "b"])
    assert quick(items) == [["bert", "a"], ["bert", "b"], ["mpnet", "a"]]


def test_one_parameter_is_no_combination() -> None:
    assert quick(items_of("distill", method=["a", "b", "c"])) == [["a"], ["b"], ["c"]]


@pytest.mark.parametrize("first", ["a", "b"])
@pytest.mark.parametrize(("second", "third"), [("c", "d"), ("e", "f"), ("c", "f")])
def test_rows_of_several_values_are_one_parametrization(
    first: str, second: str, third: str, request: pytest.FixtureRequest
) -> None:
    """With what pytest has collected of this test. By single values, (a, c, f) would be one too."""
    own = request.node.originalname
    collected = [each for each in request.session.items if getattr(each, "originalname", "") == own]
    slow = [item.nodeid for item in repeats(map(elsewhere, collected))]
    repeated = len(collected) == 6 and first == "b" and (second, third) != ("c", "d")
    assert (request.node.nodeid in slow) is repeated


def elsewhere(item: Any) -> Any:
    """The same test as if it lay in a folder whose tests are marked."""
    return SimpleNamespace(
        path=HERE / "export" / item.path.name,
        nodeid=item.nodeid,
        callspec=item.callspec,
        iter_markers=item.iter_markers,
    )


def test_an_architecture_under_another_name_is_slow() -> None:
    assert {"camembert", "xlm-roberta", "bertender-pruned-camembert"} <= REPEATED
    assert not REPEATED & {"bert", "roberta", "deberta-v2", "mpnet", "bertender-pruned-bert"}
    assert quick(items_of("core", name=["camembert", "roberta"])) == [["roberta"]]


@pytest.mark.parametrize("name", sorted(OF_STUDENTS))
def test_a_student_of_each_kind_is_quick(name: str) -> None:
    kinds = [
        METHODS[method].student
        for (method,) in quick(items_of("distill", name, student=[*METHODS]))
    ]
    assert set(kinds) == {row.student for row in METHODS.values()}
    assert len(kinds) == len(set(kinds)) < len(METHODS)
    assert len(quick(items_of("distill", student=[*METHODS]))) == len(METHODS)
    assert _is_defined(name)


def test_a_student_is_trained_by_one_method_of_a_paper_and_a_kind() -> None:
    trained = [name for (name,) in quick(items_of("distill", of_fixtures=True, student=[*METHODS]))]
    assert {*METHODS} - {*trained} == SAME_PAPER >= {"internal-all", "minilm-v2"}
    assert "mobilebert-tiny" in trained, "a kind of its own"


def test_folders_whose_tests_cost_little_are_left_alone() -> None:
    items = items_of("report", model=["camembert", "bert"], port=[1, 2])
    assert len(quick(items)) == 4


@pytest.mark.parametrize("name", sorted(ONE_PATH))
def test_one_test_of_a_path_that_many_go_is_quick(name: str) -> None:
    assert quick(items_of("distill", name, method=["a", "b"], point=[1, 2])) == [["a", 1]]
    assert _is_defined(name)


def _is_defined(name: str) -> bool:
    """Return whether a file of the folders whose repeats are slow has this test."""
    files = [path for folder in FOLDERS for path in (HERE / folder).rglob("test_*.py")]
    return any(f"def {name}(" in path.read_text(encoding="utf-8") for path in files)


def test_a_shared_folder_is_made_once_and_whole(once: Once) -> None:
    made: list[Path] = []

    def fill(folder: Path) -> None:
        (folder / "half").touch()
        made.append(folder)
        if len(made) == 1:
            raise KeyboardInterrupt
        assert len([*folder.iterdir()]) == 1, "what a killed process left is gone"

    with pytest.raises(KeyboardInterrupt):
        once("killed", fill)
    assert [once("killed", fill) for _ in range(3)] == [made[0]] * 3
    assert len(made) == 2
