"""Preparation of a job before all other processes start: `python -m kubealign_services.roles.driver.prepare
SETTINGS.json`.
"""

import errno
import os
import sys

from kubealign.process_settings import ProcessSettings
from kubealign_services.checkpoints.durable import replace_file
from kubealign_services.data.errors import DataError
from kubealign_services.data.preparation import prepare
from kubealign_services.roles.driver.plugins import check_plugins
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.runtime.process.role_runner import run_role

_PERMISSION_ERRNOS = (errno.EACCES, errno.EPERM, errno.EROFS)


async def serve(context: ProcessContext) -> None:
    """Resolve the models, create those defined by a config, check and tokenise the data."""
    create_run_dir(context.settings)
    try:
        check_plugins(context.job)
        await context.compute(prepare, context.job, context.settings.run_dir, context.settings.results)
    except (DataError, LookupError) as error:
        raise PermanentFailure(str(error)) from error


def create_run_dir(settings: ProcessSettings) -> None:
    """Create the run directory and the job's document in it if they do not exist.

    In a cluster the directory is on a volume that only pods can reach, so nobody else can create it.

    Raises:
        PermanentFailure: The run directory cannot be written.
    """
    document = settings.run_dir / settings.job.name
    try:
        settings.run_dir.mkdir(parents=True, exist_ok=True)
        if not document.exists():
            replace_file(document, [settings.job.read_bytes()])
    except OSError as error:
        if error.errno not in _PERMISSION_ERRNOS:
            raise
        raise PermanentFailure(
            f"the run's folder {settings.run_dir} cannot be written: {error.strerror} at {error.filename}; "
            f"it must belong to user {os.getuid()} or one of its groups"
        ) from error


def main(argv: list[str]) -> int:
    return run_role(serve, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
