"""AttachedEngine: a Triton behind the door that something else starts and ends.

It is NVIDIA's container in the pod of the door, for one. The door asks it every second whether its
models are ready, is not ready itself while they are not, and starts and ends nothing.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path

import grpc
from tritonclient.grpc import service_pb2 as messages

from bertender.core.errors import ConfigError, ServingError
from serve.config import TRITON_SCHEME, BackendParameters, ServeConfig
from serve.door.engine import Model, RefusedError, model_of
from serve.door.triton import POLL_S, RESTRICTED, AskedTriton
from serve.repository.config_pbtxt import CONFIG_NAME, read_model_config
from serve.repository.write import model_names
from serve.server.triton import TOKEN
from serve.wire import ENCODER_NAME

logger = logging.getLogger(__name__)

LOOK_S = 1.0
ANSWER_S = 5.0
"""Longest wait for Triton to say whether a model is ready."""


class AttachedEngine(AskedTriton):
    """See the module.

    Args:
        repository: what Triton must serve, written from the same artifacts.
        config: of the door.

    Raises:
        ConfigError: the file of the token has none.
    """

    def __init__(self, repository: Path, config: ServeConfig) -> None:
        assert config.triton is not None
        file = config.triton_token_file
        super().__init__(model_names(repository), "" if file is None else token_in(file))
        self.address = config.triton.removeprefix(TRITON_SCHEME)
        self.ready_timeout_s = config.ready_timeout_s
        self.expected = [
            model_of(read_model_config(repository / name / CONFIG_NAME), "")
            for name in self.names
            if name != ENCODER_NAME
        ]
        self.is_here = False
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Return once its models are ready.

        Raises:
            ServingError: they are not in time, or are others.
        """
        await self._end()
        loop = asyncio.get_running_loop()
        self.ended = loop.create_future()
        self._open(self.address)
        deadline = loop.time() + self.ready_timeout_s
        while not await self._are_ready():
            if await self._asks_for_token():
                raise ServingError(
                    f"triton={TRITON_SCHEME}{self.address}: it asks for another token. Name the "
                    "file with that of its --grpc-restricted-protocol: --triton-token-file."
                )
            if loop.time() > deadline:
                raise ServingError(
                    f"triton={TRITON_SCHEME}{self.address}: its models {', '.join(self.names)} were"
                    f" not ready within {self.ready_timeout_s:g} s. Start it with the repository "
                    "of `bertender serve --repository-only`, or give it longer with "
                    "--ready-timeout-s."
                )
            await asyncio.sleep(POLL_S)
        await self._take_on()
        self._looking = asyncio.create_task(self._look())

    async def _are_ready(self) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                return await super()._are_ready()
        return False

    async def _asks_for_token(self) -> bool:
        try:
            async with asyncio.timeout(ANSWER_S):
                await self.stub.ServerLive(messages.ServerLiveRequest(), metadata=self.metadata)
        except grpc.aio.AioRpcError as error:
            return RESTRICTED in (error.details() or "")
        except TimeoutError:
            pass
        return False

    async def _take_on(self) -> None:
        """Take on the models as they are now.

        Raises:
            ServingError: one is of another artifact.
        """
        try:
            await self._refresh()
        except RefusedError as error:
            raise ServingError(f"triton={TRITON_SCHEME}{self.address}: {error}") from None
        for model in self.expected:
            found = self._models.get(model.name)
            if found is None or _about(found) != _about(model):
                self._models = {}
                raise ServingError(
                    f"triton={TRITON_SCHEME}{self.address}: its model {model.name!r} is not of the "
                    "artifact that the door was given. Write its repository anew: bertender serve "
                    "ARTIFACT --repository-only DIRECTORY"
                )
        self.is_here = True

    async def _look(self) -> None:
        """Follow whether the models are ready."""
        while True:
            await asyncio.sleep(LOOK_S)
            is_ready = await self._are_ready()
            if is_ready and not self.is_here:
                try:
                    await self._take_on()
                except ServingError as error:
                    logger.error("%s", error)
            else:
                self.is_here = is_ready

    def is_ready(self) -> bool:
        return self.is_here and super().is_ready()

    async def died(self) -> str:
        assert self.ended is not None
        await asyncio.shield(self.ended)
        return "which the door does not start"

    async def kill(self) -> None:
        """Leave it alone, and open another connection at the next start."""
        await self._end()

    async def stop(self) -> None:
        await self._end()

    async def _end(self) -> None:
        self.is_here = False
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})
        self._looking = None
        await self._close()
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(None)


def token_in(file: Path) -> str:
    """Return the token in a file; ConfigError where there is none."""
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"triton_token_file={file}: {error}.") from None
    if not TOKEN.fullmatch(text):
        raise ConfigError(
            f"triton_token_file={file}: no token in it. It holds one line of 16 to 256 letters, "
            "digits or _ ~ . + / -."
        )
    return text


def _about(model: Model) -> tuple[object, ...]:
    """Return what two configurations of one artifact have in common, whatever their limits."""
    parameters = BackendParameters.from_model_config(model.config)
    return model.inputs, model.outputs, parameters.digest
