"""`run.loader: dali`: NVIDIA DALI brings packed micro-batches to the device.

The pipeline takes each field of a micro-batch as one flat, unpadded array in the narrowest dtype, queues `prefetch` of
them, copies them from pinned memory on a stream of its own and widens them on the device (a third of the bytes of int64
tensors go over the bus). Without a GPU it runs on the CPU, where it only queues and widens.

The arrays come from our own threads through an external source that is called in the process of the rank, not in
workers of DALI's: they read with pread and copy, which lets go of the interpreter's lock, so processes would gain
nothing; nothing is forked after CUDA is initialised, and nothing needs to be pickled.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np


def dali_missing() -> str | None:
    """Why DALI cannot be used here, as a clause; None if it can."""
    if find_spec("nvidia") is None or find_spec("nvidia.dali") is None:
        return "DALI is not installed"
    try:
        import nvidia.dali.fn  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:  # built for another CUDA, say
        return f"DALI cannot be imported ({' '.join(str(error).split())[:200]})"
    return None


class DaliStage:
    """Endless micro-batches of `source` on the device.

    `source()` gives the arrays of the next micro-batch by name: whole numbers [any length, maybe 0], in practice uint8,
    uint16 or int32. `next` calls it in the consumer's thread, `prefetch` micro-batches ahead. What it raises is raised
    by `next` as it is, once the micro-batches before it were drawn, and again ever after; only what is no Exception
    (KeyboardInterrupt) comes at once. `dtypes` are those wanted, "int32" or "int64", by name. `device_id` None runs on
    the CPU.
    """

    def __init__(
        self,
        source: Callable[[], Mapping[str, np.ndarray]],
        *,
        dtypes: Mapping[str, str],
        device_id: int | None,
        prefetch: int = 2,
    ) -> None:
        self._source = source
        self._dtypes, self._device_id, self._prefetch = dict(dtypes), device_id, prefetch
        self._fed_dtypes: dict[str, np.dtype] = {}  # in which DALI gets the arrays, from the first micro-batch on
        self._waiting: Mapping[str, np.ndarray] | None = None  # a micro-batch for which they are too narrow
        self._error: Exception | None = None  # of the source
        self._pipeline: Any = self._build()

    def __next__(self) -> dict[str, Any]:
        """The next micro-batch: by name, what torch.from_dlpack takes, [length]. It stays valid as long as it is
        held, whatever is drawn afterwards."""
        while self._pipeline is not None:
            with suppress(StopIteration):  # it is drained
                outputs = self._pipeline.run()
                return {name: output[0] for name, output in zip(self._dtypes, outputs, strict=True)}
            if self._error is not None:
                raise self._error
            self._pipeline = self._build()
        raise StopIteration

    def close(self) -> None:
        """Lets go of the pipeline and its threads; what was drawn stays valid."""
        self._pipeline = self._waiting = self._error = None  # the error's frames would hold the pipeline

    def _build(self) -> Any:
        from nvidia.dali import Pipeline, fn

        types: Any = import_module("nvidia.dali.types")
        wanted = {"int32": types.INT32, "int64": types.INT64}
        pipeline = Pipeline(
            batch_size=1,  # one micro-batch, flat
            num_threads=1,
            device_id=self._device_id,  # None, not -1, without a GPU
            prefetch_queue_depth=self._prefetch,
            exec_dynamic=True,  # outputs are counted references, not slots of a ring
        )
        with pipeline:
            fields = fn.external_source(source=self._next_arrays, num_outputs=len(self._dtypes), batch=True, ndim=1)
            if self._device_id is not None:
                fields = [field.gpu() for field in fields]
            dtypes = [wanted[dtype] for dtype in self._dtypes.values()]
            pipeline.set_outputs(*[fn.cast(x, dtype=dtype) for x, dtype in zip(fields, dtypes, strict=True)])
        pipeline.build()
        return pipeline

    def _next_arrays(self) -> list[list[np.ndarray]]:
        """DALI's source. StopIteration, which lets DALI drain, if the source failed or another pipeline is needed."""
        try:
            arrays, self._waiting = (self._source() if self._waiting is None else self._waiting), None
            needed = {
                name: np.promote_types(self._fed_dtypes.get(name, arrays[name].dtype), arrays[name].dtype)
                for name in self._dtypes
            }
        except Exception as error:
            self._error = error
            raise StopIteration from None
        if self._fed_dtypes not in ({}, needed):  # a pipeline keeps the dtypes of its first micro-batch
            self._fed_dtypes, self._waiting = needed, arrays
            raise StopIteration
        self._fed_dtypes = needed
        return [[np.ascontiguousarray(arrays[name], needed[name])] for name in self._dtypes]
