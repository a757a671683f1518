"""`run.loader: dali`: NVIDIA DALI brings packed micro-batches to the device.

The pipeline takes each field of a micro-batch as one flat, unpadded array in the narrowest dtype, queues `prefetch` of
them, copies them from pinned memory on a stream of its own and widens them on the device (a third of the bytes of int64
tensors go over the bus). Without a GPU it runs on the CPU, where it only queues and widens.

The arrays come from our own threads through an external source that is called in the process of the rank, not in
workers of DALI's: they read with pread and copy, which lets go of the interpreter's lock, so processes would gain
nothing; nothing is forked after CUDA is initialised, and nothing needs to be pickled.
"""

from collections.abc import Callable, Mapping
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

    `source()` gives the arrays of the next micro-batch by name: uint8, uint16 or int32 [any length, maybe 0]. It is
    called `prefetch` micro-batches ahead; what it raises is raised by `next`. `dtypes` are those wanted, "int32" or
    "int64", by name. `device_id` None runs on the CPU.
    """

    def __init__(
        self,
        source: Callable[[], Mapping[str, np.ndarray]],
        *,
        dtypes: Mapping[str, str],
        device_id: int | None,
        prefetch: int = 2,
    ) -> None:
        self._names = tuple(dtypes)
        self._source = source
        self._first: Mapping[str, np.ndarray] | None = source()  # its dtypes are those of all
        self._pipeline: Any = self._build(dtypes, device_id, prefetch)

    def __next__(self) -> dict[str, Any]:
        """The next micro-batch: by name, what torch.from_dlpack takes, [length]. It stays valid as long as it is
        held, whatever is drawn afterwards."""
        if self._pipeline is None:
            raise StopIteration
        outputs = self._pipeline.run()
        return {name: output[0] for name, output in zip(self._names, outputs, strict=True)}

    def close(self) -> None:
        """Lets go of the pipeline; what was drawn stays valid."""
        self._pipeline = None

    def _build(self, dtypes: Mapping[str, str], device_id: int | None, prefetch: int) -> Any:
        from nvidia.dali import Pipeline, fn

        types: Any = import_module("nvidia.dali.types")
        narrow = {"uint8": types.UINT8, "uint16": types.UINT16, "int32": types.INT32, "int64": types.INT64}
        assert self._first is not None
        pipeline = Pipeline(
            batch_size=1,  # one micro-batch, flat
            num_threads=1,
            device_id=device_id,
            prefetch_queue_depth=prefetch,
            exec_dynamic=True,  # outputs are counted references, not slots of a ring
        )
        with pipeline:
            fields = fn.external_source(
                source=self._next_arrays,
                num_outputs=len(self._names),
                batch=True,
                ndim=1,
                dtype=[narrow[self._first[name].dtype.name] for name in self._names],
            )
            if device_id is not None:
                fields = [field.gpu() for field in fields]
            wide = [fn.cast(x, dtype=narrow[dtypes[name]]) for name, x in zip(self._names, fields, strict=True)]
            pipeline.set_outputs(*wide)
        pipeline.build()
        return pipeline

    def _next_arrays(self) -> list[list[np.ndarray]]:
        arrays, self._first = (self._source() if self._first is None else self._first), None
        return [[arrays[name]] for name in self._names]
