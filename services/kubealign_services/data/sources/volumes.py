"""Mount paths of the volumes that a job names."""

from pathlib import Path

from kubealign_services.data.errors import DataError

#: Each claim is mounted at VOLUMES/CLAIM.
VOLUMES = Path("/volumes")


def mounted_path(claim_name: str, path: str, spec_path: str) -> Path:
    """Return a path in a volume. Raises DataError where the claim is not mounted, as on a laptop."""
    root = VOLUMES / claim_name
    if not root.is_dir():
        raise DataError(
            f"{spec_path}.claimName: the volume {claim_name} is not mounted here ({root} does not exist): "
            "volumes are for clusters; on one machine name a path"
        )
    return root / path
