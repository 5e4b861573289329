"""Tensors of requests and responses as they travel: a name, a datatype, a shape and bytes.

The bytes are those of the Open Inference Protocol's binary forms (`raw_input_contents` of gRPC, the
binary part of an HTTP body): values in rows, little endian; each value of BYTES has its length
before it, in 4 bytes.

https://github.com/kserve/open-inference-protocol
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

DATATYPES: Mapping[str, str] = {
    "BOOL": "?",
    "UINT8": "u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "INT8": "i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
}
"""Datatypes of the protocol, besides BYTES, and numpy's names for them."""
BYTES = "BYTES"
LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class Tensor:
    """A tensor with its values as bytes."""

    name: str
    datatype: str
    """BYTES, or a row of DATATYPES."""
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of_array(cls, name: str, array: npt.NDArray[Any]) -> Tensor:
        """Make one of a numpy array; an array of objects holds bytes."""
        if array.dtype == np.object_:
            return cls(name, BYTES, array.shape, joined(array.reshape(-1).tolist()))
        datatype = next(key for key, dtype in DATATYPES.items() if np.dtype(dtype) == array.dtype)
        return cls(name, datatype, array.shape, np.ascontiguousarray(array).tobytes())

    def array(self) -> npt.NDArray[Any]:
        """Return the values as a numpy array; those of BYTES as objects.

        Raises:
            ValueError: the bytes are more or fewer than the shape says.
        """
        if self.datatype != BYTES:
            return np.frombuffer(self.data, np.dtype(DATATYPES[self.datatype])).reshape(self.shape)
        values = np.empty(math.prod(self.shape), np.object_)
        values[:] = split(self.data, len(values))
        return values.reshape(self.shape)


def joined(values: Iterable[bytes]) -> bytes:
    """Return the bytes of a tensor of BYTES."""
    parts: list[bytes] = []
    for value in values:
        parts += (LENGTH.pack(len(value)), value)
    return b"".join(parts)


def split(data: bytes, count: int) -> Sequence[bytes]:
    """Return the values of a tensor of BYTES.

    Raises:
        ValueError: there are more or fewer values than `count`, or one ends beyond the data.
    """
    values: list[bytes] = []
    place = 0
    while place < len(data) and len(values) < count:
        if place + LENGTH.size > len(data):
            raise ValueError(f"the length of value {len(values)} ends beyond the data")
        (length,) = LENGTH.unpack_from(data, place)
        place += LENGTH.size
        if place + length > len(data):
            raise ValueError(f"value {len(values)} of {length} bytes ends beyond the data")
        values.append(data[place : place + length])
        place += length
    if place < len(data) or len(values) < count:
        raise ValueError(f"{len(data)} bytes are not the {count} values of the shape")
    return values
