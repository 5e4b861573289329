"""The objects of deploy/kubernetes: valid, consistent, and of settings that `serve` has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bertender import __version__
from bertender.core.artifact import Artifact
from serve.backend_metrics import FAMILIES
from serve.probe import parse
from serve.repository import write_repository
from serve.server import STOP_TIMEOUT_S
from serve.shared_memory import needed_bytes
from tests.deployed import (
    KUBERNETES,
    KUSTOMIZATION,
    Container,
    Manifest,
    containers,
    manifests,
    rendered,
)
from tests.promql import expression, selectors
from tests.serve.custom_resources import SCHEMAS
from tests.serve.test_dockerfile import the

CONTAINERS = dict(containers())
ENTRIES = ("base", "overlays/autoscaled", "kserve")
"""Folders that a user applies."""
OBJECTS = {
    f"{entry} {each['kind']} {each['metadata']['name']}": each
    for entry in ENTRIES
    for each in rendered(KUBERNETES / entry)
}
UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
MARGIN_S = 5


def validate(manifest: Mapping[str, Any]) -> None:
    """Check an object of Kubernetes itself, strictly: an unknown field is an error."""
    library = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    library.validate(manifest, library.latest_version().rpartition(".")[0], strict=True)


@pytest.mark.parametrize("name", OBJECTS)
def test_every_object_is_valid(name: str) -> None:
    manifest = OBJECTS[name]
    schema = SCHEMAS.get(manifest["kind"])
    if schema is None:
        validate(manifest)
    else:
        jsonschema = pytest.importorskip("jsonschema", reason="pip install kubernetes-validate")
        jsonschema.Draft202012Validator(schema).validate(manifest)


def test_a_misspelt_field_is_found() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="pip install kubernetes-validate")
    wrong = {**OBJECTS["overlays/autoscaled ScaledObject bertender"], "specs": {}}
    assert not jsonschema.Draft202012Validator(SCHEMAS["ScaledObject"]).is_valid(wrong)


def test_the_pod_of_kserve_is_valid() -> None:
    """Kubernetes' own schema checks what KServe copies into a pod."""
    runtime = OBJECTS["kserve ServingRuntime bertender"]["spec"]
    predictor = OBJECTS["kserve InferenceService sentiment"]["spec"]["predictor"]
    of_kserve = {"model", "minReplicas", "maxReplicas"}
    pod = {name: value for name, value in predictor.items() if name not in of_kserve}
    pod |= {"containers": runtime["containers"], "volumes": runtime["volumes"]}
    validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod})


def test_every_file_is_part_of_a_kustomization() -> None:
    used = {KUBERNETES / folder / KUSTOMIZATION for folder in ENTRIES}
    for path in tuple(KUBERNETES.rglob(KUSTOMIZATION)):
        (own,) = manifests(path)
        assert own["kind"] == ("Component" if "components" in path.parts else "Kustomization")
        for name in (*own["resources"], *own.get("components", ())):
            place = (path.parent / name).resolve()
            used.add(place / KUSTOMIZATION if place.is_dir() else place)
    assert used == {path for path in KUBERNETES.rglob("*") if path.is_file()}


@pytest.fixture(params=CONTAINERS)
def own(request: pytest.FixtureRequest) -> Container:
    return CONTAINERS[request.param]


def test_its_arguments_are_those_of_serve(
    own: Container, onnx_artifact: Artifact, tmp_path: Path
) -> None:
    assert own.container["image"] == f"bertender-serve:{__version__}"
    assert (
        own.ports.items()
        <= {
            "http": own.config.http_port,
            "http1": own.config.http_port,
            "grpc": own.config.grpc_port,
            "metrics": own.config.metrics_port,
        }.items()
    )
    assert write_repository(onnx_artifact, tmp_path / "models", own.config).is_dir()


def test_it_reads_the_model_where_that_is_mounted(own: Container) -> None:
    model = own.container["args"][0]
    read_only = [each["mountPath"] for each in own.container["volumeMounts"] if "readOnly" in each]
    assert [model] == (read_only or ["/mnt/models"])  # where KServe mounts it, by itself


def test_its_probes_classify_a_text(own: Container) -> None:
    for kind, probe in own.probes.items():
        words = probe["exec"]["command"]
        assert words[:3] == ["python", "-m", "serve.probe"], kind
        settings = parse(words[3:])
        assert settings.url == f"http://127.0.0.1:{own.config.http_port}"
        # a text may wait so long in the queue; then the probe gives up, then Kubernetes does
        waited_s = own.config.queue_timeout_ms / 1000
        assert waited_s < settings.timeout_s < probe["timeoutSeconds"]
    startup = own.probes["startup"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= own.config.ready_timeout_s


def test_it_may_finish_what_it_has_begun(own: Container) -> None:
    words = own.container["lifecycle"]["preStop"]["exec"]["command"]
    assert words[0] == "sleep"
    assert own.grace_s >= int(words[1]) + STOP_TIMEOUT_S + 5 + MARGIN_S


def test_it_is_locked_down_and_can_write_what_it_must(own: Container) -> None:
    security = {**own.security, **own.container["securityContext"]}
    assert security["runAsNonRoot"] and security["readOnlyRootFilesystem"]
    assert f"{security['runAsUser']}:{security['runAsGroup']}" == the("USER")
    assert not security["allowPrivilegeEscalation"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert "emptyDir" in own.mounts["/tmp"]


def test_its_shared_memory_is_in_memory_and_large_enough(own: Container) -> None:
    volume = own.mounts["/dev/shm"]["emptyDir"]
    assert volume["medium"] == "Memory"
    size = volume["sizeLimit"]
    assert int(size[:-2]) * UNITS[size[-2:]] >= 4 * needed_bytes(own.config)


def base(kind: str, name: str = "bertender") -> Manifest:
    return dict(OBJECTS[f"base {kind} {name}"])


@pytest.mark.parametrize("name", ["bertender", "bertender-grpc"])
def test_the_services_lead_to_ports_of_the_pods(name: str) -> None:
    labels = base("Deployment")["spec"]["template"]["metadata"]["labels"]
    service = base("Service", name)["spec"]
    assert service["selector"].items() <= labels.items()
    for port in service["ports"]:
        assert CONTAINERS["base"].ports[port["targetPort"]] == port["port"]


def test_grpc_clients_see_every_replica() -> None:
    service = base("Service", "bertender-grpc")["spec"]
    assert service["clusterIP"] == "None" and [own["name"] for own in service["ports"]] == ["grpc"]


def test_replicas_are_not_taken_away_together() -> None:
    deployment = base("Deployment")["spec"]
    budget = base("PodDisruptionBudget")["spec"]
    assert budget["selector"] == deployment["selector"]
    assert budget["maxUnavailable"] < deployment["replicas"]
    assert deployment["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_the_network_lets_a_proxy_and_monitoring_in_and_nothing_out() -> None:
    policy = base("NetworkPolicy")["spec"]
    assert policy["podSelector"] == base("Deployment")["spec"]["selector"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"} and policy["egress"] == []
    opened = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    assert opened == CONTAINERS["base"].ports.keys()
    assert all(rule["from"] for rule in policy["ingress"])


def test_the_monitor_finds_the_metrics() -> None:
    monitor = OBJECTS["overlays/autoscaled ServiceMonitor bertender"]["spec"]
    service = base("Service")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert {each["port"] for each in monitor["endpoints"]} <= {
        port["name"] for port in service["spec"]["ports"]
    }
    other = base("Service", "bertender-grpc")["metadata"]["labels"]
    assert not monitor["selector"]["matchLabels"].items() <= other.items(), "scraped once"


def test_the_replicas_follow_our_queue_time() -> None:
    scaled = OBJECTS["overlays/autoscaled ScaledObject bertender"]["spec"]
    deployment = OBJECTS["overlays/autoscaled Deployment bertender"]
    assert scaled["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"], "KEDA sets them"
    assert scaled["minReplicaCount"] >= 2
    (trigger,) = scaled["triggers"]
    wait = dict(selectors(expression(trigger["metadata"]["query"])))
    assert wait.keys() == {"bertender_queue_wait_seconds_sum", "bertender_queue_wait_seconds_count"}
    assert wait.keys() <= {family.name for family in FAMILIES}
    service = {"namespace": "default", "service": base("Service")["metadata"]["name"]}
    assert all(labels == service for labels in wait.values())


def test_kserve_finds_the_runtime_by_the_format() -> None:
    runtime = OBJECTS["kserve ServingRuntime bertender"]
    model = OBJECTS["kserve InferenceService sentiment"]["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    formats = runtime["spec"]["supportedModelFormats"]
    assert model["modelFormat"] in [
        {"name": own["name"], "version": own["version"]} for own in formats
    ]
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
