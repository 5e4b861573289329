"""The files of deploy/, read as the tools that use them do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
import yaml

from bertender.cli.main import build_app
from serve.config import ServeConfig
from tests.packages import ROOT

__all__ = [
    "DEPLOY",
    "KUBERNETES",
    "KUSTOMIZATION",
    "Container",
    "Manifest",
    "containers",
    "manifests",
    "parsed_arguments",
    "rendered",
]

DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
KUSTOMIZATION = "kustomization.yaml"

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Container:
    """A container of ours, with what belongs to its pod."""

    container: Manifest
    proxy: Manifest
    """The container next to it, the only way in."""
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
        """Of the pod."""
        ports = [*self.container.get("ports", ()), *self.proxy.get("ports", ())]
        return {port["name"]: port["containerPort"] for port in ports}

    @property
    def config(self) -> ServeConfig:
        return parsed_arguments(self.container["args"])[1]

    @property
    def probes(self) -> dict[str, Manifest]:
        return {
            kind: self.container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")
        }


def parsed_arguments(words: Sequence[str]) -> tuple[Path, ServeConfig]:
    """Return the artifact and the settings that `bertender serve WORDS` starts with."""
    group = typer.main.get_command(build_app("serve"))
    command = group.commands["serve"]  # type: ignore[attr-defined]
    context = command.make_context("serve", list(words))
    fields = ServeConfig.model_fields.keys()
    explicit = {
        name: value
        for name, value in context.params.items()
        if name in fields and context.get_parameter_source(name).name == "COMMANDLINE"
    }
    (artifact,) = context.params["artifacts"]
    return Path(artifact), ServeConfig.parse(explicit)


def manifests(path: Path) -> list[Manifest]:
    """Return the objects of a file."""
    return [each for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if each]


def rendered(folder: Path) -> list[Manifest]:
    """Return what `kubectl kustomize FOLDER` shows, but for the digests in generated names:
    resources, then components, each with its patches."""
    (kustomization,) = manifests(folder / KUSTOMIZATION)
    resources = kustomization.get("resources", ())
    objects = [each for name in resources for each in _resource(folder / name)]
    objects += [_config_map(each, folder) for each in kustomization.get("configMapGenerator", ())]
    if kustomization["kind"] != "Component":
        _patch(kustomization, objects)
    for name in kustomization.get("components", ()):
        objects += rendered(folder / name)
        _patch(manifests(folder / name / KUSTOMIZATION)[0], objects)
    return objects


def _config_map(generator: Manifest, folder: Path) -> Manifest:
    data = {name: (folder / name).read_text(encoding="utf-8") for name in generator["files"]}
    metadata = {"name": generator["name"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


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
        elif last == "-":
            assert operation["op"] == "add"
            target.append(operation["value"])
        elif operation["op"] == "add" and isinstance(target, dict):
            target[last] = operation["value"]
        else:
            assert operation["op"] == "replace" and last in target
            target[last] = operation["value"]


def _is_target(manifest: Manifest, target: Mapping[str, str]) -> bool:
    return (manifest["kind"], manifest["metadata"]["name"]) == (target["kind"], target["name"])


def containers() -> Iterator[tuple[str, Container]]:
    """Yield our container as base runs it, and as KServe does."""
    (deployment,) = (each for each in rendered(KUBERNETES / "base") if each["kind"] == "Deployment")
    yield "base", _container(deployment["spec"]["template"]["spec"])
    by_kind = {each["kind"]: each.get("spec") for each in rendered(KUBERNETES / "kserve")}
    predictor = by_kind["InferenceService"]["predictor"]
    yield "kserve", _container({**by_kind["ServingRuntime"], **predictor})


def _container(pod: Manifest) -> Container:
    container, proxy = pod["containers"]
    assert proxy["name"] == "proxy"
    volumes = {each["name"]: each for each in pod["volumes"]}
    grace = pod["terminationGracePeriodSeconds"]
    return Container(container, proxy, volumes, grace, pod["securityContext"])
