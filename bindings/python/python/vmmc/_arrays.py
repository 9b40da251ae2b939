"""Views of mapped memory as NumPy arrays. NumPy is needed only here."""

from __future__ import annotations

from typing import Any


def array(memory: Any, dtype: Any, shape: Any, offset: int) -> Any:
    """An array over the memory of an export, import, buffer or binding, from `offset` on, without a
    copy. Without a shape it takes all whole items there are.
    """
    import numpy

    kind = numpy.dtype("u1" if dtype is None else dtype)
    count = -1
    if shape is not None:
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        count = 1
        for extent in shape:
            count *= extent
    elif (len(memory) - offset) % kind.itemsize:
        count = (len(memory) - offset) // kind.itemsize
    flat = numpy.frombuffer(memory, dtype=kind, count=count, offset=offset)
    return flat if shape is None else flat.reshape(shape)
