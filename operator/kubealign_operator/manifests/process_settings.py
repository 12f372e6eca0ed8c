"""Settings that a process receives through its environment."""

from kubealign.pod_contract import GRPC_PORT, RENDEZVOUS_PORT, PodRedis, PodSettings
from kubealign.roles import Process
from kubealign_operator import names
from kubealign_operator.manifests.context import RenderContext
from kubealign_operator.manifests.volume_claims import mount_path, run_directory


def process_settings(context: RenderContext, process: Process) -> PodSettings:
    """Return the settings of one process, without secrets and without what is the same in every pod."""

    def host(name: str) -> str:
        return names.host(context.name, context.namespace, name)

    platform = context.platform
    return PodSettings(
        name=process.name,
        role=process.role,
        host=host(process.name),
        rank=process.rank,
        world_size=process.world_size,
        reward=process.reward,
        run_dir=mount_path(*run_directory(context.job, context.uid)),
        results={entry.name: mount_path(entry.claim_name, entry.path) for entry in context.dependencies},
        serves=process.serves,
        one_shot=process.one_shot,
        peers={group: f"{host(f'{group}-0')}:{GRPC_PORT}" for group in process.calls},
        rendezvous=f"{host(process.leader)}:{RENDEZVOUS_PORT}" if process.world_size > 1 else None,
        nats_host=host(names.NATS),
        redis=PodRedis(
            host=platform.redis_host,
            port=platform.redis_port,
            user=names.redis_user(context.uid),
            prefix=names.redis_prefix(context.namespace, context.name),
            tls=platform.redis_tls,
        ),
    )
