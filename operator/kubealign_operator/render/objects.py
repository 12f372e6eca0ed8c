"""What a job has besides its pods."""

from typing import Any

from kubealign_operator.render import names
from kubealign_operator.render.credentials import credentials
from kubealign_operator.render.document import document
from kubealign_operator.render.look import Look
from kubealign_operator.render.network_policy import network_policy
from kubealign_operator.render.rendered import CredentialsNeed
from kubealign_operator.render.scene import Scene
from kubealign_operator.render.service import service


def missing_objects(look: Look, scene: Scene) -> list[dict[str, Any]]:
    """Those that are not there; what is there is never changed."""
    wanted = {
        ("Service", names.peers(scene.name)): service,
        ("NetworkPolicy", names.peers(scene.name)): network_policy,
        ("ConfigMap", names.document(scene.name)): document,
    }
    return [made(scene) for known, made in wanted.items() if known not in look.observed.objects]


def missing_credentials(look: Look, scene: Scene) -> CredentialsNeed | None:
    if ("Secret", names.credentials(scene.name)) in look.observed.objects:
        return None
    return credentials(scene, look.processes)
