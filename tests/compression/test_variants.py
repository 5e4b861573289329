"""Ways to quantize: all that go together, and an error for a part that goes with nothing."""

from __future__ import annotations

import pytest

from bertender.compression.candidates import Variant, variants_of
from bertender.compression.config import CompressConfig
from bertender.core.errors import ConfigError
from bertender.models.runtimes import DEFAULT_RUNTIME

ALL = {
    "schemes": "static,dynamic,four-bit-embeddings",
    "runtimes": "onnxruntime,openvino",
    "fused_attention": True,
}


def _names(**settings: object) -> list[str]:
    return [each.variant_name for each in variants_of(CompressConfig.parse(settings))]


def test_schemes_come_in_their_order_then_attention_then_runtimes() -> None:
    assert _names(**ALL) == [
        "static",
        "dynamic",
        "four-bit-embeddings",
        "dynamic-fused-attention",
        "four-bit-embeddings-fused-attention",
        "static-openvino",
    ]


def test_what_is_named_twice_is_a_variant_once() -> None:
    assert _names(schemes="static,static", runtimes="openvino,openvino") == ["static-openvino"]


def test_by_default_another_runtime_has_a_scheme_that_it_runs_in_integers() -> None:
    assert _names(runtimes="openvino") == ["static-openvino"]
    assert _names(runtimes="onnxruntime,openvino") == [
        "dynamic",
        "four-bit-embeddings",
        "static",
        "static-openvino",
    ]


def test_nothing_but_schemes_differs_by_default() -> None:
    assert all(
        (each.runtime, each.fused_attention) == (DEFAULT_RUNTIME, False)
        for each in variants_of(CompressConfig())
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schemes": "four-bit-embeddings", "runtimes": "openvino"}, "tables of 4 bits"),
        ({"schemes": "dynamic", "runtimes": "openvino"}, "schemes=dynamic: .*in float"),
        ({"schemes": "dynamc"}, "^schemes: no quantization scheme 'dynamc'.*Did you mean 'dyn"),
        ({"schemes": "dynamic,mixed"}, "schemes=mixed: .*how much of it may be lost"),
        ({"schemes": "static", "fused_attention": True}, "'static' does not read it"),
        (
            {"schemes": "four-bit-embeddings", "runtimes": "onnxruntime,openvino"},
            "runtimes=openvino: no candidate.*tables of 4 bits",
        ),
    ],
)
def test_what_goes_with_nothing_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        variants_of(CompressConfig.parse(settings))


def test_settings_are_those_of_quantize_without_its_defaults() -> None:
    assert Variant(scheme="dynamic").settings == {"scheme": "dynamic"}
    fused = Variant(scheme="dynamic", runtime="openvino", fused_attention=True)
    assert fused.settings == {"scheme": "dynamic", "runtime": "openvino", "fused_attention": True}
