"""The operator's configuration file and its errors."""

from pathlib import Path

import pytest

from kubealign_operator.controller.config import ConfigError, load_config
from kubealign_operator.manifests.context import Platform

_PLATFORM = "platform: {image: 'services:1', redisHost: redis.svc}\n"


def _file(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text)
    return path


def test_a_minimal_file(tmp_path: Path) -> None:
    config = load_config(_file(tmp_path, _PLATFORM))
    assert config.platform.platform() == Platform(image="services:1", redis_host="redis.svc")
    assert config.leader_election is not None
    assert config.leader_election.lease_seconds == 15
    assert config.redis is None


def test_the_platform_section_has_every_field_of_platform(tmp_path: Path) -> None:
    text = """
platform:
  image: services:1
  imagePullPolicy: Always
  python: /opt/python
  busImage: nats:1
  redisHost: redis.svc
  redisPort: 7000
  redisTls: true
  redisPeers:
  - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kubealign}}
    podSelector: {matchLabels: {app: redis}}
  - ipBlock: {cidr: 10.2.0.0/16}
  otlpEndpoint: http://collector.observability.svc:4318
  otlpPeers:
  - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: observability}}
  egressExcept: [10.0.0.0/28]
  dnsPorts: [53, 5353]
  podTemplate: {spec: {runtimeClassName: nvidia}}
  profiles: {rdma: {spec: {hostNetwork: true}}}
  defaultResources: {trainer: {requests: {cpu: 2}}}
  runAsUser: 1000
  fsGroup: 1001
  startOneAtATime: true
  startTurnSeconds: 60
  maxProcesses: 16
  credentialsLifetimeDays: 30
"""
    assert load_config(_file(tmp_path, text)).platform.platform() == Platform(
        image="services:1",
        image_pull_policy="Always",
        python="/opt/python",
        bus_image="nats:1",
        redis_host="redis.svc",
        redis_port=7000,
        redis_tls=True,
        redis_peers=(
            {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kubealign"}},
                "podSelector": {"matchLabels": {"app": "redis"}},
            },
            {"ipBlock": {"cidr": "10.2.0.0/16"}},
        ),
        otlp_endpoint="http://collector.observability.svc:4318",
        otlp_peers=(
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "observability"}}},
        ),
        egress_except=("10.0.0.0/28",),
        dns_ports=(53, 5353),
        pod_template={"spec": {"runtimeClassName": "nvidia"}},
        profiles={"rdma": {"spec": {"hostNetwork": True}}},
        default_resources={"trainer": {"requests": {"cpu": 2}}},
        run_as_user=1000,
        fs_group=1001,
        start_one_at_a_time=True,
        start_turn_seconds=60,
        max_processes=16,
        credentials_lifetime_days=30,
    )


@pytest.mark.parametrize(
    ("address", "blocks"),
    [
        ("10.96.0.1", ("10.0.0.0/28", "10.96.0.1/32")),
        ("fd00:96::1", ("10.0.0.0/28", "fd00:96::1/128")),
        ("api.example", ("10.0.0.0/28",)),
        ("", ("10.0.0.0/28",)),
    ],
)
def test_the_address_of_the_api_server_is_excluded(
    tmp_path: Path, address: str, blocks: tuple[str, ...]
) -> None:
    text = "platform: {image: 'services:1', redisHost: redis.svc, egressExcept: [10.0.0.0/28]}"
    assert load_config(_file(tmp_path, text)).platform.platform(address).egress_except == blocks


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        ("", "the file"),
        ("platform: {redisHost: redis.svc}", "platform.image"),
        (_PLATFORM + "wrokers: 3", "wrokers"),
        (_PLATFORM.replace("}", ", credentialsLifetimeDays: 0}"), "platform.credentialsLifetimeDays held 0"),
        (_PLATFORM.replace("}", ", startTurnSeconds: 5}"), "platform.startTurnSeconds held 5"),
        (_PLATFORM + "workers: 0", "workers held 0"),
        (_PLATFORM + "logLevel: LOUD", "logLevel held 'LOUD'"),
        (_PLATFORM + "redis: {host: r, port: 70000}", "redis.port held 70000"),
        (
            _PLATFORM + "leaderElection: {leaseSeconds: 5}",
            "must satisfy 1.2 retrySeconds < renewDeadlineSeconds < leaseSeconds, not 2, 10, 5",
        ),
        (_PLATFORM + "leaderElection: {retrySeconds: 0.5}", "leaderElection.retrySeconds held 0.5"),
        (
            "platform: {image: i, redisHost: r, egressExcept: [10.0.0.1/8]}",
            "platform.egressExcept.0 held '10.0.0.1/8': is not the usual notation of a block",
        ),
        (
            "platform: {image: i, redisHost: r, podTemplate: {spec: {hostNetwork: true}}}",
            "must not set hostNetwork",
        ),
        (
            "platform: {image: i, redisHost: r, otlpEndpoint: 'collector:4318'}",
            "platform.otlpEndpoint held 'collector:4318'",
        ),
        (
            "platform: {image: i, redisHost: r, egressExcept: [0.0.0.0/0]}",
            "must not have all addresses in it",
        ),
        ("platform: {image: i, redisHost: r, redisPeers: [{}]}", "platform.redisPeers.0"),
        ("platform: [", "is not YAML"),
    ],
)
def test_errors_name_the_field(tmp_path: Path, text: str, expected_text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(_file(tmp_path, text))
    assert expected_text in str(raised.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "none.yaml")
