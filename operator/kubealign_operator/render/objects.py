"""The objects of a job other than its pods, and those of them that are missing."""

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
    """Build the objects that do not exist; existing objects are never changed."""
    builders = {
        ("Service", names.peers(scene.name)): service,
        ("NetworkPolicy", names.peers(scene.name)): network_policy,
        ("ConfigMap", names.document(scene.name)): document,
    }
    return [build(scene) for key, build in builders.items() if key not in look.observed.objects]


def missing_credentials(look: Look, scene: Scene) -> CredentialsNeed | None:
    """Return the request for the credentials Secret; None: it exists."""
    if ("Secret", names.credentials(scene.name)) in look.observed.objects:
        return None
    return credentials(scene, look.processes)
