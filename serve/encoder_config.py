"""config.pbtxt of the model `classifier-encoder`, which a backend of Triton runs.

Its tensors are those of the graph, with all of their dimensions: `max_batch_size` is 0, since a
bucket is a batch already, and buckets of other lengths could not join it. Triton's ONNX Runtime
backend leaves such a configuration as it is, also where it would complete one. The documented
options of the backend (graph optimization, execution providers) stay at their defaults: no other
value has been measured here.

https://github.com/triton-inference-server/onnxruntime_backend#readme
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bertender.core.cores import share_of_cores
from bertender.core.errors import ModelError
from serve.config import ServeConfig
from serve.graph_signature import GraphSignature, TensorSignature
from serve.served_runtimes import ENCODER_NAME, SERVED_RUNTIMES
from serve.triton_config import triton

__all__ = ["encoder_config"]


def encoder_config(
    signature: GraphSignature, config: ServeConfig, shapes: Iterable[tuple[int, int]]
) -> triton.ModelConfig:
    """Return the Triton configuration of a graph.

    Triton's backend takes an output only with the dimensions that it reads from the graph itself.

    Args:
        signature: of the graph.
        config: settings of Triton and the backend.
        shapes: texts and tokens of the buckets that Triton runs before the first request.

    Raises:
        ModelError: the graph does not say how many dimensions a tensor has.
    """
    kinds = triton.ModelInstanceGroup
    kind = kinds.KIND_GPU if config.gpu else kinds.KIND_CPU
    return triton.ModelConfig(
        name=ENCODER_NAME,
        backend=SERVED_RUNTIMES[config.runtime].triton_backend,
        max_batch_size=0,
        input=[triton.ModelInput(**_tensor(each)) for each in signature.inputs],
        output=[triton.ModelOutput(**_tensor(each)) for each in signature.outputs],
        instance_group=[kinds(kind=kind, count=config.instances)],
        parameters={
            name: triton.ModelParameter(string_value=value)
            for name, value in _threads(config).items()
        },
        model_warmup=[_warm_up(signature, *shape) for shape in shapes],
    )


def _tensor(tensor: TensorSignature) -> dict[str, object]:
    if not tensor.dims:
        raise ModelError(
            f"the graph has no shape for {tensor.name!r}, which Triton's backend needs. Export the "
            "model again: bertender export."
        )
    data_type = triton.DataType.Value(tensor.data_type)
    return {"name": tensor.name, "data_type": data_type, "dims": tensor.dims}


def _threads(config: ServeConfig) -> Mapping[str, str]:
    """Return the threads of an instance on the CPU; by default it has its share of the cores.

    Triton gives one that is alone every core by default, on another machine too.
    """
    alone = config.instances == 1 and not config.starts_server
    if config.gpu or (alone and not config.threads_per_instance):
        return {}
    threads = config.threads_per_instance or share_of_cores(config.instances)
    return {"intra_op_thread_count": str(threads)}


def _warm_up(signature: GraphSignature, texts: int, tokens: int) -> triton.ModelWarmup:
    inputs = {
        tensor.name: triton.ModelWarmup.Input(
            data_type=triton.DataType.Value(tensor.data_type),
            dims=[texts, tokens],
            zero_data=True,
        )
        for tensor in signature.inputs
    }
    return triton.ModelWarmup(name=f"{texts}x{tokens}", batch_size=1, inputs=inputs)
