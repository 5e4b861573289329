"""bertender schemes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bertender.cli.flags import JsonFlag
from bertender.cli.output import print_entry, print_json, print_listing
from quantize.integers import AUTO, CALIBRATORS, TARGETS
from quantize.schemes import CANDIDATES, SCHEMES
from quantize.sensitivity import SENSITIVITIES


def schemes_command() -> Callable[..., None]:
    """Build `bertender schemes`."""

    def command(as_json: JsonFlag = False) -> None:
        rows = [
            {
                "scheme": name,
                "summary": scheme.summary,
                "starts from": scheme.source,
                "settings": sorted(scheme.reads),
                "without --scheme": _turn(name),
            }
            for name, scheme in SCHEMES.items()
        ]
        choices: dict[str, dict[str, list[str]]] = {
            "target": {
                AUTO: ["what suits the machine that quantizes"],
                **{name: [row.summary, row.refused] for name, row in TARGETS.items()},
            },
            "calibrator": {name: [row.summary] for name, row in CALIBRATORS.items()},
            "sensitivity": {name: [row.summary] for name, row in SENSITIVITIES.items()},
        }
        if as_json:
            print_json({"schemes": rows, **{key: _as_rows(of) for key, of in choices.items()}})
            return
        print_listing(rows)
        for setting, lines_by_name in choices.items():
            for name, lines in lines_by_name.items():
                print_entry(f"--{setting} {name}", lines, "")

    return command


def _turn(scheme: str) -> str:
    """Return when a scheme is tried where none is named."""
    names = [row["scheme"] for row in CANDIDATES]
    if scheme not in names:
        return "not tried"
    return f"tried as number {names.index(scheme) + 1} of {len(names)}"


def _as_rows(lines_by_name: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Return the choices: name, summary, and the reason of a refusal, if there is one."""
    return [
        dict(zip(("name", "summary", "refused"), (name, *filter(None, lines)), strict=False))
        for name, lines in lines_by_name.items()
    ]
