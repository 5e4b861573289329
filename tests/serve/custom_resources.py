"""Schemas of the objects that no schema of Kubernetes has: KEDA's, the operators', KServe's.

They hold the fields that the files of deploy/ use and no others, so that a misspelt one is found.
Parts that are Kubernetes' own (containers, pods) are checked as such.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["SCHEMAS"]

TEXT = {"type": "string"}
COUNT = {"type": "integer", "minimum": 0}
FLAG = {"type": "boolean"}
ANYTHING: dict[str, Any] = {}
TEXTS = {"type": "object", "additionalProperties": TEXT}
NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}
DURATION = {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"}


def closed(required: Mapping[str, Any], **optional: Any) -> dict[str, Any]:
    """Return the schema of an object that has these fields and no others."""
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


def listed(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a list that is not empty."""
    return {"type": "array", "items": item, "minItems": 1}


def resource(version: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an object of Kubernetes."""
    metadata = closed({"name": NAME}, labels=TEXTS, annotations=TEXTS)
    return closed(
        {"apiVersion": {"const": version}, "kind": TEXT, "metadata": metadata, "spec": spec}
    )


PROMETHEUS_TRIGGER = closed(
    {
        "type": {"const": "prometheus"},
        "metadata": closed(
            {"serverAddress": TEXT, "query": TEXT, "threshold": {"pattern": r"^[0-9.]+$", **TEXT}},
            activationThreshold=TEXT,
            ignoreNullValues=TEXT,
        ),
    },
    metricType={"enum": ["AverageValue", "Value"]},
)

SCALE_DOWN = closed({"scaleDown": closed({"stabilizationWindowSeconds": COUNT})})

PREDICTOR = closed(
    {
        "model": closed(
            {"modelFormat": closed({"name": TEXT}, version=TEXT), "storageUri": TEXT},
            protocolVersion={"enum": ["v1", "v2", "grpc-v1", "grpc-v2"]},
            runtime=NAME,
        )
    },
    minReplicas=COUNT,
    maxReplicas=COUNT,
    terminationGracePeriodSeconds=COUNT,
    automountServiceAccountToken=FLAG,
    enableServiceLinks=FLAG,
    securityContext=ANYTHING,
    affinity=ANYTHING,
)

SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "ScaledObject": resource(
        "keda.sh/v1alpha1",
        closed(
            {"scaleTargetRef": closed({"name": NAME}), "triggers": listed(PROMETHEUS_TRIGGER)},
            minReplicaCount=COUNT,
            maxReplicaCount=COUNT,
            pollingInterval=COUNT,
            advanced=closed({"horizontalPodAutoscalerConfig": closed({"behavior": SCALE_DOWN})}),
        ),
    ),
    "ServiceMonitor": resource(
        "monitoring.coreos.com/v1",
        closed(
            {
                "selector": closed({"matchLabels": TEXTS}),
                "endpoints": listed(closed({"port": TEXT}, path=TEXT, interval=DURATION)),
            }
        ),
    ),
    "ServingRuntime": resource(
        "serving.kserve.io/v1alpha1",
        closed(
            {
                "supportedModelFormats": listed(
                    closed({"name": TEXT}, version=TEXT, autoSelect=FLAG)
                ),
                "containers": listed(ANYTHING),
            },
            annotations=TEXTS,
            multiModel=FLAG,
            protocolVersions=listed({"enum": ["v1", "v2", "grpc-v1", "grpc-v2"]}),
            volumes=listed(ANYTHING),
        ),
    ),
    "InferenceService": resource("serving.kserve.io/v1beta1", closed({"predictor": PREDICTOR})),
}
"""By kind."""
