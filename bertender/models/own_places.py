"""OWN_PLACES: where the architectures are written that have a file of their own.

Their files are imported when they are asked for, so that the code of one counts for the steps that
use it alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from bertender.core.table import Place

__all__ = ["OWN_PLACES"]

OWN_PLACES: Mapping[str, Place] = {
    "bertender-bilstm": Place("bertender.models.bilstm:BILSTM", "a BiLSTM over a table of vectors"),
    "bertender-static": Place("bertender.models.static:STATIC", "a weighted mean of vectors"),
}
"""model_type -> the place of its row of OWN_MODELS"""
