"""The files of deploy/, read as the tools that use them do."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
import yaml

from bertender.cli.main import build_app
from serve.config import ServeCommandConfig
from tests.packages import ROOT

__all__ = [
    "COMPOSE",
    "DEPLOY",
    "KUBERNETES",
    "KUSTOMIZATION",
    "Container",
    "Manifest",
    "compose_service",
    "containers",
    "manifests",
    "parsed_arguments",
    "rendered",
]

DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose.yaml"
KUBERNETES = DEPLOY / "kubernetes"
KUSTOMIZATION = "kustomization.yaml"

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Container:
    """Our container, with what belongs to its pod."""

    container: Manifest
    initial: tuple[Manifest, ...]
    """Containers that run before it."""
    volumes: Mapping[str, Manifest]
    grace_s: int
    security: Manifest
    """Of the pod."""

    @property
    def mounts(self) -> dict[str, Manifest]:
        """Volumes by the place where they are mounted."""
        return {
            mount["mountPath"]: self.volumes[mount["name"]]
            for mount in self.container["volumeMounts"]
        }

    @property
    def ports(self) -> dict[str, int]:
        """Those that it names."""
        return {port["name"]: port["containerPort"] for port in self.container["ports"]}

    @property
    def config(self) -> ServeCommandConfig:
        return parsed_arguments(self.container["args"])[1]

    @property
    def probes(self) -> dict[str, Manifest]:
        kinds = ("startup", "readiness", "liveness")
        return {kind: self.container[f"{kind}Probe"] for kind in kinds}

    def probed_url(self, kind: str) -> str:
        """Return what a probe asks, from inside of the pod."""
        asked = self.probes[kind]["httpGet"]
        port = self.ports.get(asked["port"], asked["port"])
        return f"{asked.get('scheme', 'HTTP').lower()}://127.0.0.1:{port}{asked['path']}"


def parsed_arguments(words: Sequence[str]) -> tuple[Path, ServeCommandConfig]:
    """Return the artifact and the settings that `bertender serve WORDS` starts with."""
    group = typer.main.get_command(build_app("serve"))
    command = group.commands["serve"]  # type: ignore[attr-defined]
    context = command.make_context("serve", list(words))
    fields = ServeCommandConfig.model_fields.keys()
    explicit = {
        name: value
        for name, value in context.params.items()
        if name in fields and context.get_parameter_source(name).name == "COMMANDLINE"
    }
    (artifact,) = context.params["artifacts"]
    return Path(artifact), ServeCommandConfig.parse(explicit)


def compose_service() -> Manifest:
    """Return the service of deploy/compose.yaml."""
    (whole,) = manifests(COMPOSE)
    (service,) = whole["services"].values()
    return dict(service)


def manifests(path: Path) -> list[Manifest]:
    """Return the objects of a file."""
    return [each for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if each]


def rendered(folder: Path) -> list[Manifest]:
    """Return what `kubectl kustomize FOLDER` shows, but for the digests in generated names:
    resources, then components, each with its patches."""
    (kustomization,) = manifests(folder / KUSTOMIZATION)
    resources = kustomization.get("resources", ())
    objects = [each for name in resources for each in _resource(folder / name)]
    objects += [_secret(each, folder) for each in kustomization.get("secretGenerator", ())]
    if kustomization["kind"] != "Component":
        _patch(kustomization, objects)
    for name in kustomization.get("components", ()):
        objects += rendered(folder / name)
        _patch(manifests(folder / name / KUSTOMIZATION)[0], objects)
    return objects


def _secret(generator: Manifest, folder: Path) -> Manifest:
    contents = {name: (folder / name).read_bytes() for name in generator["files"]}
    data = {name: base64.b64encode(content).decode() for name, content in contents.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": generator["name"]},
        "type": "Opaque",
        "data": data,
    }


def _patch(kustomization: Manifest, objects: Sequence[Manifest]) -> None:
    for patch in kustomization.get("patches", ()):
        _apply(patch, objects)


def _resource(path: Path) -> list[Manifest]:
    return rendered(path) if path.is_dir() else manifests(path)


def _apply(patch: Mapping[str, Any], objects: Sequence[Manifest]) -> None:
    """Apply a JSON patch."""
    (whole,) = (each for each in objects if _is_target(each, patch["target"]))
    for operation in yaml.safe_load(patch["patch"]):
        target: Any = whole
        *parents, last = operation["path"].lstrip("/").split("/")
        for name in parents:
            target = target[int(name) if isinstance(target, list) else name]
        if operation["op"] == "remove":
            del target[last]
        elif isinstance(target, list) and operation["op"] == "replace":
            target[int(last)] = operation["value"]
        elif isinstance(target, list):
            assert (operation["op"], last) == ("add", "-")
            target.append(operation["value"])
        else:
            assert operation["op"] == "add" or last in target
            target[last] = operation["value"]


def _is_target(manifest: Manifest, target: Mapping[str, str]) -> bool:
    return (manifest["kind"], manifest["metadata"]["name"]) == (target["kind"], target["name"])


def containers() -> Iterator[tuple[str, Container]]:
    """Yield our container as base runs it, and as KServe does."""
    (deployment,) = (each for each in rendered(KUBERNETES / "base") if each["kind"] == "Deployment")
    yield "base", _container(deployment["spec"]["template"]["spec"])
    by_kind = {each["kind"]: each["spec"] for each in rendered(KUBERNETES / "kserve")}
    predictor = by_kind["InferenceService"]["predictor"]
    yield "kserve", _container({**by_kind["ServingRuntime"], **predictor})


def _container(pod: Manifest) -> Container:
    (container,) = pod["containers"]
    volumes = {each["name"]: each for each in pod["volumes"]}
    grace, security = pod["terminationGracePeriodSeconds"], pod["securityContext"]
    return Container(container, (*pod.get("initContainers", ()),), volumes, grace, security)
