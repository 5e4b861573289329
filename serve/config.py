"""Settings of an endpoint: addresses, batching, cores.

`ServeConfig` has the user's settings, `BackendParameters` those that reach the Python backend
through config.pbtxt. SERVED_RUNTIMES has the possible runtimes of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field

from bertender.core.config import Config, Rule, Table, parts_of
from bertender.core.errors import ServerMissingError
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES
from bertender.problems import PROBLEMS
from bertender.problems.single_label_classification import SINGLE_LABEL
from serve.client.access import AccessConfig
from serve.server.installation import find_installation, is_installed
from serve.wire import MODEL_NAME

QUEUED_BATCHES = 4
TOKENS_OF_A_THREAD, MOST_TOKENS = 128, 256
"""Default tokens of a bucket: for each thread of a run, and at most.

On two cores, 256 was the fastest of 64 to 4096. One thread takes twice as long for them, and short
texts of other callers wait until a bucket of long ones has run; with 128, they wait for half of it
(`python -m benchmarks bad-clients`).
"""

PORT_FIELDS = ("http_port", "grpc_port", "metrics_port")

TRITON_SCHEME = "http://"
"""Scheme for the address of a Triton started by another program."""

STANDARD_OUTPUT = Path("-")
"""Log on standard output instead of in a file."""

SERVER_SETTINGS = frozenset(
    {
        *PORT_FIELDS,
        *("host", "metrics_host", "behind_proxy", "tritonserver", "admin_token_file"),
        "ready_timeout_s",
        *("log_file", "log_max_mb", "restart"),
        *("triton", "triton_token_file"),
        *("server", "tls_certificate", "tls_key", "api_keys", "allow_origin", "access_log"),
        "otlp_endpoint",
        "page",
    }
)
"""Settings of the server that are not in a model repository."""

REQUEST_SETTINGS = (
    "max_batch_size",
    "queue_delay_us",
    "tokens_per_bucket",
    "max_length",
    "max_text_bytes",
    "max_queue_texts",
    "queue_timeout_ms",
    "abstain_below",
)
MODEL_SETTINGS = ("runtime", "gpu", "instances", "threads_per_instance", "concurrent_buckets")
"""Settings that a model repository holds, as REQUEST_SETTINGS."""


@dataclass(frozen=True)
class ServedRuntime:
    """A row of SERVED_RUNTIMES."""

    summary: str
    in_process: str | None = None
    """The row of RUNTIMES that runs in the Python backend's process."""
    triton_backend: str | None = None
    """The Triton backend that runs the graph, as the model `classifier-encoder`."""
    buckets_at_once: int = 1
    """Fewest buckets to run at once."""

    def compiles_shapes(self, graph: Path) -> bool:
        """Return whether the first bucket of each shape takes long."""
        return self.in_process is not None and RUNTIMES[self.in_process].compiles_shapes(graph)

    def tokens_of_buckets(self, threads: int) -> int:
        """Return the default of `tokens_per_bucket` for the threads of a run."""
        is_on_cpu = self.in_process is not None and not RUNTIMES[self.in_process].needs_gpu
        return min(TOKENS_OF_A_THREAD * threads, MOST_TOKENS) if is_on_cpu else MOST_TOKENS

    @property
    def runs_while_loading(self) -> bool:
        """Whether it can run before Triton has loaded the model and takes requests."""
        return self.triton_backend is None


SERVERS = Table(
    "server",
    {
        "triton": "Triton Inference Server",
        "embedded": "a process of the door's own, with the same queue and runtime",
    },
)
"""Engines that run the models behind the door."""

ServerName = Annotated[str, SERVERS.validator()]
"""A row of SERVERS, as a setting."""

SERVED_RUNTIMES = Table(
    "runtime",
    {
        **{name: ServedRuntime(row.summary, in_process=name) for name, row in RUNTIMES.items()},
        "triton-onnxruntime": ServedRuntime(
            summary="ONNX Runtime as a backend of Triton, on a GPU or on the CPU",
            triton_backend="onnxruntime",
            buckets_at_once=2,  # while one runs, the next is being sent
        ),
    },
)
"""Runtimes for the buckets of an endpoint: a row of RUNTIMES in the Python backend's process, or
another Triton model (`classifier-encoder`), on a GPU or on the CPU."""

Origin = Annotated[str, Field(pattern=r"^(\*|https?://[^/\s]+)$")]
"""Scheme and host of a page, without path, as sent by browsers."""

ServedRuntimeName = Annotated[str, SERVED_RUNTIMES.validator()]
"""A row of SERVED_RUNTIMES, as a setting."""


def _lacks_backend(config: ServeConfig) -> bool:
    is_ours = config.starts_server and config.server != "embedded" and config.triton is None
    if config.triton_backend is None or not is_ours:
        return False
    try:
        return not find_installation(config.tritonserver).has_backend(config.triton_backend)
    except ServerMissingError:  # the start will report that nothing can be started
        return False


IN_ITS_REPOSITORY = (
    "the repository of that Triton holds what runs there. Leave it out, and set it where the "
    "repository is written: bertender serve ARTIFACT --repository-only DIRECTORY."
)

RULES: Mapping[str, Rule[ServeConfig]] = {
    "equal ports": Rule(
        lambda config: config.starts_server and len(set(config.ports)) < len(config.ports),
        lambda config: (
            f"{config.as_set(PORT_FIELDS)}: the ports must differ. Use 0 for any free one."
        ),
    ),
    "log size without a log file": Rule(
        lambda config: config.log_file == STANDARD_OUTPUT,
        "only a file has a greatest size. Leave it out, or name a file.",
        settings=frozenset({"log_max_mb"}),
        against="log_file",
    ),
    "TLS certificate or key alone": Rule(
        lambda config: (config.tls_certificate is None) != (config.tls_key is None),
        lambda config: (
            f"tls_certificate={config.tls_certificate} and tls_key={config.tls_key}: TLS needs "
            "both. Set --tls-certificate and --tls-key."
        ),
    ),
    "setting of the repository with an attached Triton": Rule(
        lambda config: config.triton is not None,
        IN_ITS_REPOSITORY,
        settings=frozenset({*REQUEST_SETTINGS, *MODEL_SETTINGS}),
        against="triton",
    ),
    "GPU without a Triton backend": Rule(
        lambda config: config.gpu and config.triton_backend is None,
        lambda config: (
            f"gpu=True and runtime={config.runtime}, which runs in the process of the Python "
            "backend. Choose --runtime onnxruntime-cuda without --gpu, or --runtime "
            "triton-onnxruntime for a server that has the backend onnxruntime, or leave --gpu out."
        ),
    ),
    "Triton runtime with the embedded server": Rule(
        lambda config: config.server == "embedded" and config.triton_backend is not None,
        lambda config: (
            f"server=embedded and runtime={config.runtime}, which Triton runs. Choose --server "
            f"triton, or one of {', '.join(RUNTIMES)}."
        ),
    ),
    "Triton binary with the embedded server": Rule(
        lambda config: config.server == "embedded",
        "--server embedded runs no Triton. Leave it out, or choose --server triton.",
        settings=frozenset({"tritonserver"}),
        against="server",
    ),
    "attached Triton with the embedded server": Rule(
        lambda config: config.server == "embedded",
        "--server embedded asks no Triton. Leave them out, or choose --server triton.",
        settings=frozenset({"triton", "triton_token_file"}),
        against="server",
    ),
    "Triton binary with an attached Triton": Rule(
        lambda config: config.triton is not None,
        "--triton starts and restarts none. Leave it out.",
        settings=frozenset({"tritonserver", "log_max_mb", "restart"}),
        against="triton",
    ),
    "Triton token without an attached Triton": Rule(
        lambda config: config.triton is None,
        "it is the token of the Triton of --triton. Set that, too.",
        settings=frozenset({"triton_token_file"}),
    ),
    "Triton setting with the embedded server": Rule(
        lambda config: config.starts_server and config.is_embedded,
        "the embedded server runs the model here, and only Triton reads that. Leave it out, or "
        "choose --server triton.",
        settings=frozenset({"queue_delay_us", "log_max_mb"}),
    ),
    "missing Triton backend": Rule(
        _lacks_backend,
        lambda config: (
            f"runtime={config.runtime}: the server has no backend {config.triton_backend!r} in "
            f"{find_installation(config.tritonserver).backends}. Write the repository for one that "
            "has it, such as NVIDIA's container: --repository-only DIRECTORY; or start it: "
            f"--tritonserver ROOT/bin/tritonserver, with ROOT/backends/{config.triton_backend}."
        ),
    ),
}
"""Conflicts of the settings of `serve`."""


class ServeConfig(Config):
    """Settings of a model repository and of the server that runs it."""

    panel: ClassVar[str] = "Server"
    panels: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Addresses": (
            "host",
            "behind_proxy",
            "http_port",
            "grpc_port",
            "metrics_port",
            "metrics_host",
        ),
        "Access": ("api_keys", "tls_certificate", "tls_key", "allow_origin", "admin_token_file"),
        "Requests": REQUEST_SETTINGS,
        "Model": MODEL_SETTINGS,
    }
    rules: ClassVar[Mapping[str, Rule[Any]]] = RULES
    shown_defaults: ClassVar[Mapping[str, str]] = {
        "max_queue_texts": "4 batches",
        "tokens_per_bucket": f"{TOKENS_OF_A_THREAD} a thread, at most {MOST_TOKENS}",
    }

    host: str = Field("127.0.0.1", description="address to listen on; by default this machine only")
    behind_proxy: bool = Field(
        False,
        description="nothing but a proxy reaches the host: callers are whom it names in "
        "X-Forwarded-For",
    )
    tritonserver: Path | None = Field(
        None,
        description="another server than that of the wheel, laid out as in NVIDIA's container: "
        "ROOT/bin/tritonserver",
    )
    triton: str | None = Field(
        None,
        pattern=rf"^{TRITON_SCHEME}[^/\s]+:\d+$",
        description="start no Triton, and ask this one, as http://127.0.0.1:8004; it serves what "
        "--repository-only writes of the same artifacts",
    )
    triton_token_file: Path | None = Field(
        None, description="the token of its --http-restricted-api; by default it asks for none"
    )
    http_port: int = Field(8000, ge=0, le=65535, description="HTTP port; 0 takes any free one")
    grpc_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="listen for gRPC on this port too; 0 takes any free one",
    )
    metrics_port: int = Field(
        8002, ge=0, le=65535, description="Prometheus metrics port; 0 takes any free one"
    )
    metrics_host: str | None = Field(
        None, description="address of the metrics port; by default the host's"
    )
    max_batch_size: int = Field(64, ge=1, description="most texts in one batch")
    # without a wait, texts that arrive while the model is busy still share its next batch; waiting
    # 500 or 2000 us made single clients slower and eight clients no faster
    queue_delay_us: int = Field(
        0, ge=0, description="microseconds that a text may wait for others to share its batch"
    )
    tokens_per_bucket: int | None = Field(
        None, ge=1, description="most tokens, padding included, that the model sees at once"
    )
    runtime: ServedRuntimeName = Field(
        DEFAULT_RUNTIME, description=f"the runtime of the model: {', '.join(SERVED_RUNTIMES)}"
    )
    gpu: bool = Field(
        False, description="run the model on a GPU, with the runtime triton-onnxruntime"
    )
    instances: int = Field(1, ge=1, description="copies of the model that run in parallel")
    threads_per_instance: int = Field(
        0,
        ge=0,
        description="threads of a run of each copy; 0 shares the cores out evenly, and gives a "
        "small bucket one",
    )
    concurrent_buckets: int = Field(1, ge=1, description="buckets that each copy runs at once")
    max_length: int | None = Field(
        None,
        ge=2,
        description="longest input in tokens; by default the artifact's, at which it was trained",
    )
    max_text_bytes: int = Field(
        32 * 1024, ge=1, description="longest text in bytes; a longer one is refused unread"
    )
    max_queue_texts: int | None = Field(
        None,
        ge=1,
        description="most texts that wait for a copy of the model; what comes then is rejected at "
        "once",
    )
    queue_timeout_ms: float = Field(
        10_000.0,
        ge=0,
        description="longest wait in that queue for a request's first text to run, then rejected; "
        "0 for no limit",
    )
    abstain_below: float | None = Field(
        None,
        gt=0,
        le=1,
        description="add the output ABSTAINED: true where the least probable decision about a text "
        "is less probable than this; the label stays. By default there is none",
    )
    server: ServerName | None = Field(
        None,
        description=f"what runs the model: {', '.join(SERVERS)}; by default triton where it is "
        "installed",
    )
    tls_certificate: Path | None = Field(
        None, description="file of the certificate for https:// and grpcs://, its chain in it"
    )
    tls_key: Path | None = Field(None, description="file of its unencrypted key")
    api_keys: Path | None = Field(
        None,
        description="file of the keys that clients need, by their digests; `bertender api-key` "
        "makes them. By default clients need none",
    )
    allow_origin: Annotated[tuple[Origin, ...], BeforeValidator(parts_of)] = Field(
        (),
        description="origins of web pages elsewhere that may ask, by commas, as "
        "https://example.com; * for all",
    )
    access_log: Path | None = Field(
        None,
        description="append a line of JSON for each request to this file, or write it to standard "
        "output with -; no text is in it",
    )
    page: bool = Field(
        False,
        description="show a page to try the models on, at the HTTP port: a text box, the scores, "
        "the lineage",
    )
    otlp_endpoint: str | None = Field(
        None,
        pattern=r"^https?://\S+$",
        description="send a span of OpenTelemetry for each request to this collector, as "
        "http://127.0.0.1:4318; no text is in it. By default the variables OTEL_* say it, or none "
        "is sent",
    )
    admin_token_file: Path | None = Field(
        None,
        description="token that opens the administrative routes; a missing file is written, for "
        "this user alone. By default nobody has the token",
    )
    log_file: Path | None = Field(
        None,
        description="append the server's log to this file, or write it to standard output with -; "
        "by default it is removed with the server",
    )
    log_max_mb: float = Field(
        64.0,
        gt=0,
        description="megabytes of a log file, beyond which it is copied to one that ends in .1, "
        "and emptied",
    )
    ready_timeout_s: float = Field(
        120.0, gt=0, description="seconds that the server may take to load the model"
    )
    restart: bool = Field(
        True,
        description="start what runs the model again when it ends or hangs, at most 10 times in 10 "
        "minutes; then, or without it, `serve` ends with an error",
    )

    @property
    def starts_server(self) -> bool:
        """Whether a server runs with these settings."""
        return True

    @property
    def is_embedded(self) -> bool:
        """Whether the model runs without Triton: as set, or because there is none here.

        If the server or a runtime is set explicitly, a missing Triton is an error.
        """
        if self.server or self.tritonserver or self.triton or self.triton_backend:
            return self.server == "embedded"
        return not is_installed()  # one that is installed but does not run is an error

    @property
    def triton_backend(self) -> str | None:
        """The Triton backend that runs the graph, if the Python backend does not."""
        return SERVED_RUNTIMES[self.runtime].triton_backend

    @property
    def ports(self) -> list[int]:
        """The ports of the host that are set, without 0 for any free port."""
        has_own_host = self.metrics_host not in (None, self.host)
        names = [name for name in PORT_FIELDS if name != "metrics_port" or not has_own_host]
        return [port for name in names if (port := getattr(self, name))]

    @property
    def queue_texts(self) -> int:
        """`max_queue_texts`, or its default."""
        return self.max_queue_texts or QUEUED_BATCHES * self.max_batch_size


class BackendParameters(Config):
    """Settings in config.pbtxt for the Python backend, besides those for Triton.

    The stub reads these without gRPC or protobuf.
    """

    artifact: str = Field("artifact", description="folder, relative to the model version's")
    tokens_per_bucket: int | None = Field(None, description="None: by the threads of a run")
    digest: str | None = Field(
        None, description="of the artifact: by it, a client knows whether it is still the same"
    )
    stamp: str | None = Field(
        None,
        description="of the artifact's files when their digests were checked; while they have it, "
        "they are not read again",
    )
    runtime: ServedRuntimeName = DEFAULT_RUNTIME
    encoder: str | None = Field(
        None, description="the Triton model that runs the graph, where the runtime is Triton's"
    )
    encoder_inputs: Annotated[tuple[str, ...], BeforeValidator(parts_of)] = Field(
        (), description="names of its inputs, by commas"
    )
    threads: int = Field(description="of a run of the model; 0: see `ServeConfig`")
    concurrent_buckets: int = ServeConfig().concurrent_buckets
    max_length: int | None = None
    longest_input: int | None = Field(
        None,
        description="most tokens of an input that the artifact's tokenizer states; a client says "
        "by it, and by max_length, what texts were cut to",
    )
    max_text_bytes: int = ServeConfig().max_text_bytes
    max_queue_texts: int = ServeConfig().queue_texts
    queue_timeout_ms: float = ServeConfig().queue_timeout_ms
    abstain_below: float | None = None
    problem_type: Annotated[str, PROBLEMS.validator()] = Field(
        SINGLE_LABEL.name, description="a row of PROBLEMS; the client reads responses by it"
    )

    @property
    def most_tokens(self) -> int | None:
        """Most tokens of an input: the server's limit, else the artifact's."""
        return self.max_length or self.longest_input

    def as_strings(self) -> dict[str, str]:
        """Return the parameters for config.pbtxt: settings with a value."""
        values = self.model_dump(exclude_none=True).items()
        texts = {name: ",".join(v) if isinstance(v, tuple) else str(v) for name, v in values}
        return {name: text for name, text in texts.items() if text}

    @classmethod
    def from_model_config(cls, config: Mapping[str, Any]) -> Self:
        """Read the parameters from the model configuration that Triton passes to its backends."""
        parameters = config["parameters"].items()
        return cls.parse({name: value["string_value"] for name, value in parameters})


COMMAND_RULES: Mapping[str, Rule[ServeCommandConfig]] = {
    "server setting without a server": Rule(
        lambda config: not config.starts_server,
        "--repository-only starts no server, and a repository does not hold that. Leave them out, "
        "and set them when the server is started.",
        settings=SERVER_SETTINGS,
        against="repository_only",
    ),
    "copies that each take all cores": Rule(
        lambda config: (
            not config.starts_server
            and config.triton_backend is not None
            and config.instances > 1
            and not (config.gpu or config.threads_per_instance)
        ),
        lambda config: (
            f"instances={config.instances} and threads_per_instance=0 with runtime="
            f"{config.runtime}: the backend of Triton gives each copy all cores, and those of the "
            "machine that will read the repository are not known here. Set --threads-per-instance."
        ),
    ),
}


class LocalServeConfig(ServeConfig):
    """Settings of a server; a profile may provide those that are not explicit."""

    panel: ClassVar[str] = "Server"
    rules: ClassVar[Mapping[str, Rule[Any]]] = {
        "profile with an attached Triton": Rule(
            lambda config: config.triton is not None,
            IN_ITS_REPOSITORY,
            settings=frozenset({"profile"}),
            against="triton",
        ),
    }

    profile: Path | None = Field(
        None,
        description="take the settings that no option sets from this file of `bertender tune "
        "--out`",
    )


class ServeCommandConfig(LocalServeConfig):
    """Settings of `bertender serve`, which may also only write a repository."""

    panel: ClassVar[str] = "Server"
    main: ClassVar[tuple[str, ...]] = (
        "http_port",
        "runtime",
        "instances",
        "max_batch_size",
        "page",
    )
    rules: ClassVar[Mapping[str, Rule[Any]]] = COMMAND_RULES

    repository_only: Path | None = Field(
        None, description="write the model repository to this directory and stop"
    )

    @property
    def starts_server(self) -> bool:
        return self.repository_only is None


class DeployConfig(Config):
    """Settings of `deploy`."""

    panel: ClassVar[str] = "Deployment"

    model: str = Field(MODEL_NAME, description="name of the model on the server")
    admin_token_file: Path | None = Field(
        None, description="the file that `bertender serve --admin-token-file` was started with"
    )
    api_key_file: Path | None = Field(
        None, description="a key of `bertender serve --api-keys`, for its golden texts"
    )
    ca_file: Path | None = Field(
        None,
        description="PEM file of the authority that signed the server's certificate, for https://; "
        "by default those that this machine trusts",
    )
    other_task: bool = Field(
        False,
        description="replace a model of another task, or with other inputs or outputs",
    )
    keep: int = Field(1, ge=0, description="earlier versions that stay in the repository")
    timeout_s: float = Field(
        120.0,
        gt=0,
        description="seconds that each step may take: to load a model, to unload one, to answer a "
        "golden text",
    )
    tritonserver: Path | None = Field(
        None,
        description="for a directory: another server than that of the wheel to try the model in, "
        "ROOT/bin/tritonserver",
    )

    @property
    def access(self) -> AccessConfig:
        """The client settings for accessing the server."""
        return AccessConfig(api_key_file=self.api_key_file, ca_file=self.ca_file)


class EndpointConfig(Config):
    """Settings of the recipe's step `endpoint`."""

    texts: int = Field(8, ge=1, description="held-out texts to classify through it")
    seed: int = Field(0, ge=0, description="which texts are drawn")
