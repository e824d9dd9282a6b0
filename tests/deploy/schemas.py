"""What the manifests use of KubeRay's RayCluster (ray.io/v1) and of Kubernetes, as JSON Schema. Nothing else passes.

KubeRay's own schema has 900 kB. What is here follows it, and Kubernetes' own for the parts of a pod.
"""

from typing import Any

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
TEXTS: Schema = {"type": "array", "items": TEXT}
LABELS: Schema = {"type": "object", "additionalProperties": TEXT}
AMOUNTS: Schema = {
    "type": "object",
    "additionalProperties": {"type": "string", "pattern": r"^\d+(\.\d+)?(m|[KMGT]i)?$"},
}


def fields(required: str = "", **properties: Schema) -> Schema:
    """An object with these fields and no others."""
    return {
        "type": "object", "properties": properties, "required": required.split(), "additionalProperties": False,
    }  # fmt: skip


def several(item: Schema) -> Schema:
    return {"type": "array", "items": item, "minItems": 1}


RESOURCES = fields(requests=AMOUNTS, limits=AMOUNTS)
METADATA = fields("name", name=TEXT, labels=LABELS, annotations=LABELS)
PROBE = fields(
    exec=fields("command", command=TEXTS),
    httpGet=fields("path port", path=TEXT, port={"type": ["string", "integer"]}),
    initialDelaySeconds=NUMBER, periodSeconds=NUMBER, timeoutSeconds=NUMBER, failureThreshold=NUMBER,
)  # fmt: skip
CONTAINER = fields(
    "name image resources securityContext",
    name=TEXT, image=TEXT, command=TEXTS, args=TEXTS, resources=RESOURCES, livenessProbe=PROBE, readinessProbe=PROBE,
    env=several({"anyOf": [
        fields("name value", name=TEXT, value=TEXT),
        fields("name valueFrom", name=TEXT, valueFrom=fields(
            "secretKeyRef", secretKeyRef=fields("name key", name=TEXT, key=TEXT),
        )),
    ]}),
    ports=several(fields("name containerPort", name=TEXT, containerPort=NUMBER)),
    securityContext=fields(
        "allowPrivilegeEscalation capabilities",
        allowPrivilegeEscalation={"const": False}, capabilities=fields("drop", drop={"const": ["ALL"]}),
    ),
    volumeMounts=several(fields("name mountPath", name=TEXT, mountPath=TEXT)),
)  # fmt: skip
VOLUME = fields(
    "name", name=TEXT, persistentVolumeClaim=fields("claimName", claimName=TEXT),
    emptyDir=fields(medium={"const": "Memory"}, sizeLimit=TEXT),
)  # fmt: skip
POD = fields(
    "containers securityContext",
    serviceAccountName=TEXT, containers=several(CONTAINER), volumes=several(VOLUME),
    restartPolicy={"enum": ["Always", "OnFailure", "Never"]},
    securityContext=fields("runAsNonRoot", runAsNonRoot={"const": True}, runAsUser=NUMBER, fsGroup=NUMBER),
)  # fmt: skip
TEMPLATE = fields("spec", metadata=fields(labels=LABELS), spec=POD)
HEAD = fields("rayStartParams template", rayStartParams=LABELS, template=TEMPLATE)
WORKERS = fields(
    "groupName rayStartParams template minReplicas maxReplicas",
    groupName=TEXT, replicas=NUMBER, minReplicas=NUMBER, maxReplicas=NUMBER, rayStartParams=LABELS, template=TEMPLATE,
)  # fmt: skip
RBAC = "rbac.authorization.k8s.io/v1"
SELECTOR = fields("matchLabels", matchLabels=LABELS)
AUTOSCALER = fields(
    version={"enum": ["v1", "v2"]}, upscalingMode={"enum": ["Default", "Aggressive", "Conservative"]},
    idleTimeoutSeconds=NUMBER, resources=RESOURCES,
)  # fmt: skip


def claim(mode: str) -> Schema:
    """Of a disk."""
    modes = {"type": "array", "items": {"enum": [mode]}}
    return fields("accessModes resources", accessModes=modes, resources=RESOURCES)


def kind(api_version: str, spec: Schema) -> Schema:
    """A whole object."""
    return fields(
        "apiVersion kind metadata spec", apiVersion={"const": api_version}, kind=TEXT, metadata=METADATA, spec=spec
    )


KINDS: dict[str, Schema] = {
    "RayCluster": kind("ray.io/v1", fields(
        "headGroupSpec workerGroupSpecs authOptions", rayVersion=TEXT,
        authOptions=fields("mode", mode={"enum": ["disabled", "token"]}), enableInTreeAutoscaling=FLAG,
        autoscalerOptions=AUTOSCALER, headGroupSpec=HEAD, workerGroupSpecs=several(WORKERS),
    )),
    "Job": kind("batch/v1", fields("template", backoffLimit=NUMBER, template=TEMPLATE)),
    "StatefulSet": kind("apps/v1", fields(
        "serviceName selector template", serviceName=TEXT, replicas=NUMBER, selector=SELECTOR, template=TEMPLATE,
        volumeClaimTemplates=several(fields("metadata spec", metadata=METADATA, spec=claim("ReadWriteOnce"))),
    )),
    "ServiceAccount": fields("apiVersion kind metadata", apiVersion={"const": "v1"}, kind=TEXT, metadata=METADATA),
    "Role": fields(
        "apiVersion kind metadata rules", apiVersion={"const": RBAC}, kind=TEXT, metadata=METADATA,
        rules=several(fields("apiGroups resources verbs", apiGroups=TEXTS, resources=TEXTS, verbs=TEXTS)),
    ),
    "RoleBinding": fields(
        "apiVersion kind metadata roleRef subjects", apiVersion={"const": RBAC}, kind=TEXT, metadata=METADATA,
        roleRef=fields("apiGroup kind name", apiGroup=TEXT, kind=TEXT, name=TEXT),
        subjects=several(fields("kind name", kind=TEXT, name=TEXT)),
    ),
    "Service": kind("v1", fields(
        "selector ports", selector=LABELS,
        ports=several(fields("port", name=TEXT, port=NUMBER, targetPort={"type": ["string", "integer"]})),
    )),
    "NetworkPolicy": kind("networking.k8s.io/v1", fields(
        "podSelector policyTypes ingress", podSelector=SELECTOR,
        policyTypes={"type": "array", "items": {"enum": ["Ingress", "Egress"]}},
        ingress=several({"anyOf": [
            fields("from", **{"from": several(fields("podSelector", podSelector=SELECTOR))}),
            fields("ports", ports=several(fields("port", port={"type": ["string", "integer"]}))),
        ]}),
    )),
    "PersistentVolumeClaim": kind("v1", claim("ReadWriteMany")),
}  # fmt: skip
