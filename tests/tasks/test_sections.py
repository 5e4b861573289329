"""Sections of docstrings: three layouts are read, and nothing that gives the section away stays."""

from __future__ import annotations

import pytest

from bertender.tasks.sections import SECTIONS, read_sections

NUMPYDOC = """
Pour the beer
into a glass.

An extended description that belongs to no section.

Parameters
----------
glass : Glass, default: None
    Where the beer goes.
speed, angle : float
    How it is
    poured.

    Ignored when the glass is full.

Returns
-------
foam : ndarray of shape (n_glasses,)
    The height of the foam.

Raises
------
ValueError
    If the glass is upside down.

See Also
--------
drink : Empty the glass.

Notes
-----
The angle matters [1]_.

.. math:: a = b

.. versionadded:: 1.2
   Pouring sideways.

- Cold glasses foam less.

Examples
--------
Pour one out:

>>> pour(glass)
Foam(3)
"""

GOOGLE = """Pour the beer into a glass.

    Args:
        glass (`Glass`, *optional*, defaults to `None`):
            Where the beer goes.
        speed (dict(str, float)): How it is
            poured.
        *args: More of it.

    Returns:
        `Foam`: The height of the foam.

    Raises:
        ValueError: If the glass is upside down.

    .. note::
        The angle matters.

    Note:
        Cold glasses foam less.

    Example::

        pour(glass)

    Attributes:
        level (int): How full it is.
"""

SPHINX = """
Pour the beer into a glass.
:param glass: Where the beer goes.
:type glass: Glass
:param float speed: How it is
    poured.
:returns: The height of the foam.
:rtype: Foam
:raises ValueError: If the glass is upside down.

.. note:: The angle matters.

Closing words of no section.
"""

SHARED = {
    ("summary", "Pour the beer into a glass."),
    ("parameter", "Where the beer goes."),
    ("parameter", "How it is poured."),
    ("return value", "The height of the foam."),
    ("exception", "If the glass is upside down."),
}


@pytest.mark.parametrize(
    ("docstring", "more"),
    [
        (
            NUMPYDOC,
            {
                ("parameter", "Ignored when the glass is full."),
                ("note", "The angle matters [1]_."),
                ("note", "Cold glasses foam less."),
            },
        ),
        (
            GOOGLE,
            {
                ("parameter", "More of it."),
                ("note", "The angle matters."),
                ("note", "Cold glasses foam less."),
            },
        ),
        (SPHINX, {("note", "The angle matters.")}),
    ],
    ids=["numpydoc", "google", "sphinx"],
)
def test_a_layout(docstring: str, more: set[tuple[str, str]]) -> None:
    found = list(read_sections(docstring))
    assert set(found) == SHARED | more
    assert len(found) == len(set(found))
    assert {section for section, _ in found} == set(SECTIONS)


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("", [("summary", "")]),
        ("One line.", [("summary", "One line.")]),
        ("Args:\nnothing indented", [("summary", "Args: nothing indented")]),
        (
            "Parameters\n----------\nx : int\n    Its size.",
            [("summary", ""), ("parameter", "Its size.")],
        ),
        (
            "A.\n\nArgs:\n    no colon in this line\n    x: Its size.",
            [("summary", "A."), ("parameter", "Its size.")],
        ),
        (
            "A.\n\nReturns:\n    A tensor of: two, three",
            [("summary", "A."), ("return value", "A tensor of: two, three")],
        ),
        (
            "A.\n\nNote:\n    One.\n\n    ```\n    code()\n    ```\n    Two.",
            [("summary", "A."), ("note", "One."), ("note", "Two.")],
        ),
        ("A.\n\nUnknown:\n    Left out.\n\nNote:\n    In.", [("summary", "A."), ("note", "In.")]),
        ("A.\n\n.. deprecated:: 2\n   Left out.\n\n.. a comment", [("summary", "A.")]),
        (":param x: Its size.\n:return", [("summary", ""), ("parameter", "Its size.")]),
    ],
)
def test_edges(docstring: str, expected: list[tuple[str, str]]) -> None:
    assert list(read_sections(docstring)) == expected
