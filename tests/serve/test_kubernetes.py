"""The objects of deploy/kubernetes: valid, consistent, and of settings that `serve` has."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from bertender import __version__
from bertender.core.artifact import Artifact
from serve.backend.metrics import METRIC_FAMILIES
from serve.probe import parse
from serve.repository.write import write_repository
from serve.server.launch import STOP_TIMEOUT_S
from serve.server.workspace import needed_bytes
from tests.deployed import (
    DEPLOY,
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
ENTRIES = ("base", "overlays/autoscaled", "overlays/claim", "kserve", "fill")
"""Folders that a user applies."""
OBJECTS = {
    f"{entry} {each['kind']} {each['metadata']['name']}": each
    for entry in ENTRIES
    for each in rendered(KUBERNETES / entry)
}
UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
MARGIN_S = 5
NGINX = KUBERNETES / "proxy" / "nginx.conf"


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
        kinds = ("resources", "components", "configurations")
        generated = [name for each in own.get("configMapGenerator", ()) for name in each["files"]]
        for name in (*generated, *(name for kind in kinds for name in own.get(kind, ()))):
            place = (path.parent / name).resolve()
            used.add(place / KUSTOMIZATION if place.is_dir() else place)
    assert used == {path for path in KUBERNETES.rglob("*") if path.is_file()}


@pytest.fixture(params=CONTAINERS)
def own(request: pytest.FixtureRequest) -> Container:
    return CONTAINERS[request.param]


def test_its_arguments_are_those_of_serve(
    own: Container, onnx_artifact: Artifact, tmp_path: Path
) -> None:
    assert write_repository(onnx_artifact, tmp_path / "models", own.config).is_dir()


def test_it_reads_the_model_where_that_is_mounted(own: Container) -> None:
    """Where KServe mounts it, by itself, or where it is in the image."""
    model, image = own.container["args"][0], own.container["image"]
    assert (model, image) in {
        ("/mnt/models", f"bertender-serve:{__version__}"),
        ("/model", "bertender-model:1"),
    }


def test_the_image_with_the_model_is_that_of_the_endpoint() -> None:
    lines = (DEPLOY / "Dockerfile.model").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == [
        f"FROM bertender-serve:{__version__}",
        f"COPY --chown={the('USER')} . /model",
    ]
    assert any("--tag bertender-model:1 " in line for line in lines)


def test_the_claim_takes_the_place_of_the_model_in_the_image() -> None:
    pod = OBJECTS["overlays/claim Deployment bertender"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert container["image"] == f"bertender-serve:{__version__}"
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "model")
    assert mount == {"name": "model", "mountPath": container["args"][0], "readOnly": True}
    filled = OBJECTS["fill Pod bertender-fill"]["spec"]
    assert filled["containers"][0]["volumeMounts"][0]["mountPath"] == mount["mountPath"]


CLAIM = "bertender-model"


@pytest.mark.parametrize("entry", ENTRIES)
def test_who_shares_a_claim_of_one_node_is_on_that_node(entry: str) -> None:
    """A replica on another node would wait for the volume for ever."""
    for pod in pods(entry):
        claims = [each.get("persistentVolumeClaim", {}).get("claimName") for each in pod["volumes"]]
        if CLAIM in claims or CLAIM in pod.get("model", {}).get("storageUri", ""):
            (claim,) = (
                each
                for name, each in OBJECTS.items()
                if name == f"{entry} PersistentVolumeClaim {CLAIM}"
            )
            assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
            if entry == "fill":  # one pod, before the others
                continue
            rules = pod["affinity"]["podAffinity"]
            (rule,) = rules["requiredDuringSchedulingIgnoredDuringExecution"]
            assert rule["topologyKey"] == "kubernetes.io/hostname"
            assert rule["labelSelector"]["matchLabels"].items() <= pod["labels"].items()
            assert "topologySpreadConstraints" not in pod


def pods(entry: str) -> Iterator[Manifest]:
    """Yield the pods of an entry, their labels with them."""
    kinds = {name.split()[1]: each for name, each in OBJECTS.items() if name.split()[0] == entry}
    if "Deployment" in kinds:
        template = kinds["Deployment"]["spec"]["template"]
        yield {**template["spec"], "labels": template["metadata"]["labels"]}
    if "ServingRuntime" in kinds:
        predictor = kinds["InferenceService"]["spec"]["predictor"]
        service = kinds["InferenceService"]["metadata"]["name"]
        labels = {"serving.kserve.io/inferenceservice": service}  # as KServe sets it
        yield {**kinds["ServingRuntime"]["spec"], **predictor, "labels": labels}
    if "Pod" in kinds:
        yield {**kinds["Pod"]["spec"], "labels": {}}


REFERENCES: Mapping[str, tuple[str, str]] = {
    "configMap": ("ConfigMap", "name"),
    "secret": ("Secret", "secretName"),
    "persistentVolumeClaim": ("PersistentVolumeClaim", "claimName"),
}
"""Kind of a volume -> the kind of object that it names, and the field."""


@pytest.mark.parametrize("entry", ENTRIES)
def test_whatever_an_object_names_is_there(entry: str) -> None:
    """What is applied is a whole: nothing waits for ever for what nobody has made."""
    there = {tuple(name.split()[1:]) for name in OBJECTS if name.split()[0] == entry}
    own = [each for name, each in OBJECTS.items() if name.split()[0] == entry]
    for pod in pods(entry):
        volumes = {each["name"]: each for each in pod["volumes"]}
        for volume in volumes.values():
            (kind,) = volume.keys() - {"name"}
            if kind in REFERENCES:
                wanted, field = REFERENCES[kind]
                assert (wanted, volume[kind][field]) in there
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            assert {each["name"] for each in container["volumeMounts"]} <= volumes.keys()
            assert not container.get("envFrom") and not container.get("env")
        account = pod.get("serviceAccountName")
        assert account is None or ("ServiceAccount", account) in there
        uri = pod.get("model", {}).get("storageUri")
        assert uri is None or ("PersistentVolumeClaim", uri.removeprefix("pvc://")) in there
    labels = [pod["labels"] for pod in pods(entry)]
    for selector in selectors_of_pods(own):
        assert any(selector.items() <= each.items() for each in labels), selector


def selectors_of_pods(node: Any, key: str = "") -> Iterator[Mapping[str, str]]:
    """Yield the labels by which objects find pods, wherever they stand."""
    if isinstance(node, dict):
        if key in ("podSelector", "labelSelector") or (key == "selector" and "matchLabels" in node):
            yield node.get("matchLabels", {})
        elif key == "selector" and all(isinstance(value, str) for value in node.values()):
            yield node  # of a Service
        for name, value in node.items():
            yield from selectors_of_pods(value, name)
    if isinstance(node, list):
        for each in node:
            yield from selectors_of_pods(each, key)


@pytest.mark.parametrize("entry", ENTRIES)
def test_kubectl_renders_the_same(entry: str) -> None:
    """It adds a digest to each generated name, and to what names it."""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl here")
    command = ["kubectl", "kustomize", str(KUBERNETES / entry)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (digest,) = set(re.findall(r"bertender-proxy(-[0-9a-z]{10})$", done.stdout, re.M)) or {"-"}
    shown = [
        *yaml.safe_load_all(done.stdout.replace(f"bertender-proxy{digest}", "bertender-proxy"))
    ]
    own = [each for name, each in OBJECTS.items() if name.split()[0] == entry]
    order = ("kind", "metadata")
    assert sorted(shown, key=lambda each: str([each[name] for name in order])) == sorted(
        own, key=lambda each: str([each[name] for name in order])
    )


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
    shell, _, line = own.proxy["lifecycle"]["preStop"]["exec"]["command"]
    waited_s = re.fullmatch(r"sleep (\d+); nginx .* -s quit", line)
    assert shell == "sh" and waited_s and int(waited_s[1]) < int(words[1]), "the proxy goes first"


def test_it_is_locked_down_and_can_write_what_it_must(own: Container) -> None:
    for container in (own.container, own.proxy):
        security = {**own.security, **container["securityContext"]}
        assert security["runAsNonRoot"] and security["readOnlyRootFilesystem"]
        assert f"{security['runAsUser']}:{security['runAsGroup']}" == the("USER")
        assert not security["allowPrivilegeEscalation"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        (folder,) = (each for each in container["volumeMounts"] if each["mountPath"] == "/tmp")
        assert "emptyDir" in own.volumes[folder["name"]]


def test_its_shared_memory_is_in_memory_and_large_enough(own: Container) -> None:
    volume = own.mounts["/dev/shm"]["emptyDir"]
    assert volume["medium"] == "Memory"
    two_versions = 2 * needed_bytes(own.config, [2])  # of a model that reads pairs
    assert size_bytes(volume["sizeLimit"]) >= two_versions


def test_bodies_of_slow_clients_fit_the_memory_of_the_proxy(own: Container) -> None:
    """And none is on a disk: what nginx does not hold itself is in a volume that is memory."""
    setting = partial(re.findall, string=NGINX.read_text("utf-8"))
    (workers,) = setting(r"worker_processes (\d+);")
    (connections,) = setting(r"worker_connections (\d+);")
    (buffer_kib,) = setting(r"client_body_buffer_size (\d+)k;")
    (mount,) = (each for each in own.proxy["volumeMounts"] if each["mountPath"] == "/tmp")
    files = own.volumes[mount["name"]]["emptyDir"]
    assert files["medium"] == "Memory"
    limit = own.proxy["resources"]["limits"]["memory"]
    held = int(workers) * int(connections) * int(buffer_kib) * UNITS["Ki"]
    assert held + size_bytes(files["sizeLimit"]) < size_bytes(limit)


def size_bytes(quantity: str) -> int:
    return int(quantity[:-2]) * UNITS[quantity[-2:]]


def base(kind: str, name: str = "bertender") -> Manifest:
    return dict(OBJECTS[f"base {kind} {name}"])


def test_the_service_leads_to_ports_of_the_proxy() -> None:
    own = CONTAINERS["base"]
    listening = set(map(int, re.findall(r"^ *listen (\d+);", NGINX.read_text("utf-8"), re.M)))
    assert listening == {*own.ports.values()} and "ports" not in own.container
    targets = {each["targetPort"]: each["port"] for each in base("Service")["spec"]["ports"]}
    # under the numbers that the server has by itself
    assert targets == {"http": own.config.http_port, "metrics": own.config.metrics_port}
    assert CONTAINERS["kserve"].ports == {"http1": own.ports["http"]}


def test_the_proxy_leads_to_ports_of_the_server(own: Container) -> None:
    assert own.config.host == "127.0.0.1", "the proxy is the only way in"
    to = set(map(int, re.findall(r"127\.0\.0\.1:(\d+);", NGINX.read_text("utf-8"))))
    assert to == {own.config.http_port, own.config.metrics_port}
    probe = own.proxy["readinessProbe"]["httpGet"]
    port = probe["port"]
    assert own.ports.get(port, port) == CONTAINERS["base"].ports["http"]


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
    metrics = [
        rule for rule in policy["ingress"] if {"metrics"} & {p["port"] for p in rule["ports"]}
    ]
    assert len(metrics) == 1 and "namespaceSelector" in metrics[0]["from"][0]


def test_the_monitor_finds_the_metrics() -> None:
    monitor = OBJECTS["overlays/autoscaled ServiceMonitor bertender"]["spec"]
    service = base("Service")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert {each["port"] for each in monitor["endpoints"]} <= {
        port["name"] for port in service["spec"]["ports"]
    }


def test_the_replicas_follow_our_queue_time() -> None:
    scaled = OBJECTS["overlays/autoscaled ScaledObject bertender"]["spec"]
    deployment = OBJECTS["overlays/autoscaled Deployment bertender"]
    assert scaled["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"], "KEDA sets them"
    assert scaled["minReplicaCount"] >= 2
    (trigger,) = scaled["triggers"]
    wait = dict(selectors(expression(trigger["metadata"]["query"])))
    assert wait.keys() == {"bertender_queue_wait_seconds_sum", "bertender_queue_wait_seconds_count"}
    assert wait.keys() <= {family.name for family in METRIC_FAMILIES}
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
