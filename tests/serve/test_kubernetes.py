"""The objects of deploy/kubernetes: valid, consistent, and of settings that `serve` has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from bertender import __version__
from bertender.core.artifact import Artifact
from serve.backend.metrics import METRIC_FAMILIES
from serve.door.callers import read_keys
from serve.door.service import DoorSettings
from serve.door.watch import Patience
from serve.repository import model_names, write_repository
from serve.server.server import END_TIMEOUT_S
from serve.server.triton_process import IN_FLIGHT_TIMEOUT_S, attached_command
from serve.server.workspace import needed_bytes
from tests.deployed import (
    DEPLOY,
    KUBERNETES,
    KUSTOMIZATION,
    Container,
    Manifest,
    containers,
    manifests,
    parsed_arguments,
    rendered,
)
from tests.promql import expression, selectors
from tests.serve.custom_resources import SCHEMAS
from tests.serve.test_dockerfile import the

CONTAINERS = dict(containers())
ENTRIES = (
    *("base", "overlays/autoscaled", "overlays/claim", "overlays/keys", "overlays/triton"),
    *("kserve", "fill"),
)
"""Folders that a user applies."""
OBJECTS = {
    f"{entry} {each['kind']} {each['metadata']['name']}": each
    for entry in ENTRIES
    for each in rendered(KUBERNETES / entry)
}
WRITTEN = ("/tmp", "/dev/shm")
"""Folders that a server may write to."""
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
        kinds = ("resources", "components")
        generated = [name for each in own.get("secretGenerator", ()) for name in each["files"]]
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
    """Where KServe mounts it, by itself, or where the first container has copied it."""
    model = own.container["args"][0]
    assert own.container["image"] == f"bertender-serve:{__version__}"
    if not own.initial:
        assert model == "/mnt/models"
        return
    (first,) = own.initial
    (copied,) = first["volumeMounts"]
    assert first["command"] == ["cp", "-R", "/model/.", copied["mountPath"]]
    assert own.mounts[model]["name"] == copied["name"]
    mounts = own.container["volumeMounts"]
    assert all(each.get("readOnly") or each["mountPath"] in WRITTEN for each in mounts)


def test_the_image_of_the_model_is_what_the_first_container_copies() -> None:
    lines = (DEPLOY / "Dockerfile.model").read_text(encoding="utf-8").splitlines()
    start, copy = [line for line in lines if line and not line.startswith("#")]
    assert start.startswith("FROM busybox:") and copy == f"COPY --chown={the('USER')} . /model"
    (first,) = CONTAINERS["base"].initial
    assert any(f"--tag {first['image']} " in line for line in lines)


def test_the_claim_takes_the_place_of_the_copied_model() -> None:
    pod = OBJECTS["overlays/claim Deployment bertender"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert "initContainers" not in pod
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "model")
    assert mount == {"name": "model", "mountPath": container["args"][0], "readOnly": True}
    filled = OBJECTS["fill Pod bertender-fill"]["spec"]
    assert filled["containers"][0]["volumeMounts"][0]["mountPath"] == mount["mountPath"]


def test_the_file_of_keys_is_mounted_where_the_server_reads_it() -> None:
    pod = OBJECTS["overlays/keys Deployment bertender"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    file = parsed_arguments(container["args"])[1].api_keys
    secret = OBJECTS["overlays/keys Secret bertender-api-keys"]
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "api-keys")
    assert file is not None and mount["mountPath"] == str(file.parent)
    assert secret["data"].keys() == {file.name}
    assert not read_keys(KUBERNETES / "overlays" / "keys" / file.name), "a key that all know"


def test_triton_beside_the_door_serves_what_the_door_asks(
    onnx_artifact: Artifact, tmp_path: Path
) -> None:
    """Its command line is the one that is printed where the repository is written."""
    pod = OBJECTS["overlays/triton Deployment bertender"]["spec"]["template"]["spec"]
    door, triton = pod["containers"]
    _, first = pod["initContainers"]
    assert first["command"][:2] == json.loads(the("ENTRYPOINT"))
    artifact, config = parsed_arguments(first["command"][2:])
    assert str(artifact) == door["args"][0] and config.repository_only is not None
    written = write_repository(onnx_artifact, tmp_path / "models", config)
    command = attached_command(config.repository_only, model_names(written))
    assert triton["command"] == command
    mounts = [
        {each["name"]: each["mountPath"] for each in own["volumeMounts"]} for own in (first, triton)
    ]
    assert mounts[0]["repository"] == mounts[1]["repository"]
    assert config.repository_only.is_relative_to(mounts[0]["repository"])
    asked = parsed_arguments(door["args"])[1].triton
    (port,) = (word.partition("=")[2] for word in command if word.startswith("--http-port="))
    assert asked == f"http://127.0.0.1:{port}"
    addresses = [word for word in command if "-address=" in word]
    assert addresses == ["--http-address=127.0.0.1", "--metrics-address=127.0.0.1"]


def test_triton_ends_after_the_door() -> None:
    pod = OBJECTS["overlays/triton Deployment bertender"]["spec"]["template"]["spec"]
    door, triton = (
        int(each["lifecycle"]["preStop"]["exec"]["command"][1]) for each in pod["containers"]
    )
    assert triton >= door + IN_FLIGHT_TIMEOUT_S + MARGIN_S
    assert pod["terminationGracePeriodSeconds"] >= triton + IN_FLIGHT_TIMEOUT_S + MARGIN_S


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
    shown = [*yaml.safe_load_all(re.sub(r"(bertender-api-keys)-[0-9a-z]{10}", r"\1", done.stdout))]
    own = [each for name, each in OBJECTS.items() if name.split()[0] == entry]
    order = ("kind", "metadata")
    assert sorted(shown, key=lambda each: str([each[name] for name in order])) == sorted(
        own, key=lambda each: str([each[name] for name in order])
    )


def test_its_probes_ask_the_door(own: Container) -> None:
    door = f"http://127.0.0.1:{own.config.http_port}/v2/health"
    assert {kind: own.probed_url(kind) for kind in own.probes} == {
        "startup": f"{door}/ready",
        "readiness": f"{door}/ready",
        "liveness": f"{door}/live",
    }
    startup, liveness = own.probes["startup"], own.probes["liveness"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= own.config.ready_timeout_s
    # the door starts again what hangs, before it is ended itself
    assert liveness["periodSeconds"] * liveness["failureThreshold"] > Patience().hung_s


def test_it_may_finish_what_it_has_begun(own: Container) -> None:
    words = own.container["lifecycle"]["preStop"]["exec"]["command"]
    assert words[0] == "sleep"
    readiness = own.probes["readiness"]
    assert int(words[1]) > readiness["periodSeconds"] * readiness["failureThreshold"]
    assert own.grace_s >= int(words[1]) + END_TIMEOUT_S + MARGIN_S


def test_it_is_locked_down_and_can_write_what_it_must(own: Container) -> None:
    for container in (own.container, *own.initial):
        security = {**own.security, **container["securityContext"]}
        assert security["runAsNonRoot"] and security["readOnlyRootFilesystem"]
        assert f"{security['runAsUser']}:{security['runAsGroup']}" == the("USER")
        assert not security["allowPrivilegeEscalation"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert "memory" in container["resources"]["limits"]
    assert "emptyDir" in own.mounts["/tmp"]


def test_its_shared_memory_is_in_memory_and_large_enough(own: Container) -> None:
    volume = own.mounts["/dev/shm"]["emptyDir"]
    assert volume["medium"] == "Memory"
    two_versions = 2 * needed_bytes(own.config, [2])  # of a model that reads pairs
    assert size_bytes(volume["sizeLimit"]) >= two_versions


def test_what_clients_send_fits_its_memory(own: Container) -> None:
    """Next to the server itself, which takes about 400 MB with a small model."""
    limit = size_bytes(own.container["resources"]["limits"]["memory"])
    shared = size_bytes(own.mounts["/dev/shm"]["emptyDir"]["sizeLimit"])
    assert DoorSettings().most_held_bytes + shared < limit / 2


def size_bytes(quantity: str) -> int:
    return int(quantity[:-2]) * UNITS[quantity[-2:]]


def base(kind: str, name: str = "bertender") -> Manifest:
    return dict(OBJECTS[f"base {kind} {name}"])


def test_the_service_leads_to_ports_of_the_server() -> None:
    own = CONTAINERS["base"]
    assert own.ports == {"http": own.config.http_port, "metrics": own.config.metrics_port}
    targets = {each["targetPort"]: each["port"] for each in base("Service")["spec"]["ports"]}
    assert targets == own.ports
    of_kserve = CONTAINERS["kserve"]
    assert of_kserve.ports == {"http1": of_kserve.config.http_port}
    annotations = OBJECTS["kserve ServingRuntime bertender"]["spec"]["annotations"]
    assert annotations["prometheus.kserve.io/port"] == str(of_kserve.config.metrics_port)


def test_the_door_is_reached_from_outside_of_the_pod(own: Container) -> None:
    assert own.config.host == "0.0.0.0"
    assert str(own.config.access_log) == "-"


def test_replicas_are_not_taken_away_together() -> None:
    deployment = base("Deployment")["spec"]
    budget = base("PodDisruptionBudget")["spec"]
    assert budget["selector"] == deployment["selector"]
    assert budget["maxUnavailable"] < deployment["replicas"]
    assert deployment["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


POLICIES = {
    "base": base("NetworkPolicy"),
    "kserve": dict(OBJECTS["kserve NetworkPolicy sentiment-predictor"]),
}


@pytest.mark.parametrize("name", POLICIES)
def test_the_network_lets_callers_and_monitoring_in_and_nothing_out(name: str) -> None:
    own, policy = CONTAINERS[name], POLICIES[name]["spec"]
    (pod,) = pods(name)
    assert policy["podSelector"]["matchLabels"].items() <= pod["labels"].items()
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"} and policy["egress"] == []
    requests, metrics = policy["ingress"]
    opened = [
        [own.ports.get(p["port"], p["port"]) for p in rule["ports"]] for rule in (requests, metrics)
    ]
    assert opened == [[own.config.http_port], [own.config.metrics_port]]
    assert {"podSelector": {}} in requests["from"]
    assert all("namespaceSelector" in each for each in metrics["from"])


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
