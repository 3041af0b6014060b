"""Arrow's functions on columns, called by name.

`pyarrow.compute` makes a Python function of every function of Arrow when it is imported. That takes as long as the check
of a small bundle, and a check uses four of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pyarrow as pa
from pyarrow._compute import MatchSubstringOptions, call_function

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def matches(text: pa.Array, pattern: str) -> NDArray[np.bool_]:
    """Which strings a regular expression matches; a null is no string that it does not match."""
    found = call_function("match_substring_regex", [text], MatchSubstringOptions(pattern))
    mask: NDArray[np.bool_] = call_function("coalesce", [found, pa.scalar(True)]).to_numpy(
        zero_copy_only=False
    )
    return mask


def compare(how: Literal["less", "equal"], one: pa.Array, other: pa.Array) -> NDArray[np.bool_]:
    """Two columns without nulls, compared row by row; text by its UTF-8 bytes."""
    mask: NDArray[np.bool_] = call_function(how, [one, other]).to_numpy(zero_copy_only=False)
    return mask


def distinct(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """A column as positions in a list of its distinct values, and the list."""
    encoded = call_function("dictionary_encode", [column])
    return encoded.indices, encoded.dictionary


def is_known(column: pa.Array) -> NDArray[np.bool_]:
    """Which rows of a column are not null."""
    mask: NDArray[np.bool_] = call_function("is_valid", [column]).to_numpy(zero_copy_only=False)
    return mask
