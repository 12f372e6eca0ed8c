"""Chart values that the tests install, one entry for each kind of platform."""

from typing import Any

import yaml

from .helm import CHART

Json = dict[str, Any]

DIGEST = f"sha256:{'a' * 64}"

#: Values for the security context constraint restricted-v2, as users install them.
OPENSHIFT: Json = yaml.safe_load((CHART / "values-openshift.yaml").read_text())
#: The same, where a value cannot be null: in a chart that has this one as a dependency.
EMPTY_USERS: Json = {
    "operator": {"runAsUser": "", "fsGroup": ""},
    "dashboard": {"runAsUser": "", "fsGroup": ""},
    "redis": {"embedded": {"runAsUser": "", "fsGroup": ""}},
    "sandbox": {"runAsUser": "", "fsGroup": ""},
    "jobs": {"runAsUser": "", "fsGroup": ""},
}
#: Additions of a company to every pod: its certificate authority, a proxy and names of its own.
EXTRAS: Json = {
    "extraEnv": [{"name": "SSL_CERT_FILE", "value": "/etc/corporate-ca/ca.crt"}],
    "extraEnvFrom": [{"configMapRef": {"name": "proxy"}}],
    "extraVolumes": [{"name": "corporate-ca", "configMap": {"name": "corporate-ca"}}],
    "extraVolumeMounts": [{"name": "corporate-ca", "mountPath": "/etc/corporate-ca", "readOnly": True}],
    "hostAliases": [{"ip": "10.9.0.1", "hostnames": ["proxy.example"]}],
    "podLabels": {"team": "ml"},
    "podAnnotations": {"sidecar.example/inject": "false"},
}


def _account(name: str, *, is_created: bool) -> Json:
    annotations = {"cloud.example/role": name} if is_created else {}
    return {"serviceAccount": {"create": is_created, "name": name, "annotations": annotations}}


VALUES: dict[str, Json] = {
    "default": {},
    "two-namespaces": {"watchNamespaces": ["team-a", "team-b"], "rbac": {"userRoles": False}},
    "external-redis": {
        "redis": {
            "embedded": {"enabled": False},
            "existingSecret": "redis-login",
            "external": {
                "host": "redis.example",
                "port": 6380,
                "tls": True,
                "caSecret": "redis-ca",
                "egressCidrs": ["10.2.0.0/16"],
            },
        }
    },
    "shared-redis": {
        "clusterId": "east",
        "redis": {
            "embedded": {"enabled": False},
            "existingSecret": "redis-login",
            "external": {
                "host": "redis.example",
                "user": "operator-east",
                "dashboardUser": "dashboard-east",
            },
        },
    },
    "no-redis": {"redis": {"embedded": {"enabled": False}}},
    "plain-redis": {"redis": {"embedded": {"tls": False, "persistence": {"enabled": False}}}},
    "own-secret": {"redis": {"existingSecret": "redis-login"}},
    "dashboard": {
        "dashboard": {
            "image": {"repository": "board", "digest": DIGEST},
            "replicas": 2,
            "readOnly": True,
            "tls": {"existingSecret": "board-certificate"},
            "ingress": {
                "enabled": True,
                "className": "nginx",
                "host": "align.example",
                "tlsSecret": "public",
            },
        },
        "networkPolicy": {"dashboardFrom": [{"namespaceSelector": {}}]},
    },
    "plain-dashboard": {"dashboard": {"tls": {"enabled": False}}, "rbac": {"dashboardUsers": []}},
    "no-dashboard": {"dashboard": {"enabled": False}},
    "everything": {
        "fullnameOverride": "align",
        "crds": {"keep": False},
        "imagePullSecrets": [{"name": "registry"}],
        "operator": {
            "image": {"repository": "registry.example:5000/operator", "tag": "7"},
            "replicas": 1,
            "priorityClassName": "system-cluster-critical",
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "dedicated", "operator": "Exists"}],
            "affinity": {"podAntiAffinity": {}},
            "podLabels": {"team": "ml"},
            "podAnnotations": {"note": "yes"},
            "resources": {"requests": {"cpu": 1}},
        },
        "jobs": {
            "podTemplate": {
                "metadata": {"labels": {"team": "ml"}},
                "spec": {"imagePullSecrets": [{"name": "registry"}]},
            },
            "profiles": {"rdma": {"podTemplate": {"spec": {"hostNetwork": True}}}},
            "defaultResources": {"trainer": {"requests": {"cpu": "2", "memory": "4Gi"}}},
            "runAsUser": 1000,
            "fsGroup": 2000,
            "credentialsLifetimeDays": 30,
            "startOneAtATime": True,
            "startTurnSeconds": 600,
            "egressExcept": ["10.0.0.0/28"],
        },
        "tracing": {"endpoint": "http://collector.observability.svc:4318", "peers": [{"podSelector": {}}]},
        "redis": {"embedded": {"persistence": {"storageClassName": "fast", "retain": True}}},
        "networkPolicy": {"metricsFrom": []},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    },
    "sandbox": {
        "sandbox": {"enabled": True, "tokenSecret": "sandbox-token"},
        "watchNamespaces": ["team-a"],
    },
    "tls-sandbox": {
        "sandbox": {
            "enabled": True,
            "replicas": 3,
            "tokenSecret": "sandbox-token",
            "tlsSecret": "sandbox-certificate",
            "seccompProfile": "",
            "appArmorProfile": "sandbox",
            "maxima": {"secondsPerTest": 7.5, "memoryMib": 2048},
        }
    },
    "openshift": OPENSHIFT,
    "company": {
        "global": {"imageRegistry": "mirror.example:5000/ml", "imagePullSecrets": [{"name": "mirror"}]},
        "imagePullSecrets": [{"name": "registry"}],
        "commonLabels": {"cost-centre": "7"},
        "commonAnnotations": {"owner": "ml-platform"},
        "operator": EXTRAS | _account("aligner", is_created=True),
        "dashboard": EXTRAS | _account("board", is_created=False),
        "redis": {"embedded": EXTRAS | _account("store", is_created=True)},
        "grafana": {"dashboards": {"enabled": True, "annotations": {"owner": "board-team"}}},
        "kubeStateMetrics": {"enabled": True},
        "jobs": {"bus": {"image": {"repository": "kubealign-nats"}}},
        "kueue": {"enabled": True},
    },
    "kueue": {"kueue": {"enabled": True}, "watchNamespaces": ["team-a"]},
    "no-policies": {"networkPolicy": {"enabled": False}, "crds": {"install": False}},
}
