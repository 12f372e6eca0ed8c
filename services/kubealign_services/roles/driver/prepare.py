"""Preparation of a job before all other processes start: `python -m kubealign_services.roles.driver.prepare
SETTINGS.json`.
"""

import errno
import os
import sys

from kubealign.object_storage.errors import StorageUnavailable
from kubealign.process_settings import ProcessSettings
from kubealign.spec.job import AlignmentJob
from kubealign_services.algorithms.factory import make_algorithm
from kubealign_services.checkpoints.durable_files import replace_file
from kubealign_services.data.errors import DataError
from kubealign_services.data.preparation import prepare
from kubealign_services.roles.driver.checkpoint_upload import restore_run_directory
from kubealign_services.roles.driver.parent_run import check_parent
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.runtime.process.role_runner import run_role
from kubealign_services.runtime.process.run_until_stopped import run_until_stopped
from kubealign_services.runtime.rpc.errors import StorageFull
from kubealign_services.scoring.functions.plugin import check_plugin_installed
from kubealign_services.telemetry.trackers.plugin import check_parameters

_PERMISSION_ERRNOS = (errno.EACCES, errno.EPERM, errno.EROFS)


async def serve(context: ProcessContext) -> None:
    """Restore the run directory from object storage if it is empty, resolve the models, create those defined
    by a config, check and tokenise the data.
    """
    create_run_dir(context.settings)
    try:
        check_plugins(context.job)
        if context.settings.parent_run is not None:
            check_parent(context.job, context.settings.parent_run, context.settings.run_dir)
        await run_until_stopped(context.stop, restore_run_directory(context.job, context.settings.run_dir))
        if context.stop.is_set():
            return
        await context.compute(prepare, context.job, context.settings.run_dir, context.settings.results)
    except StorageUnavailable as error:
        raise StorageFull(str(error)) from error
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


def check_plugins(job: AlignmentJob) -> None:
    """Check that the algorithm, the rewards and the trackers from other packages exist.

    Creates the algorithm. A reward is imported only in its own process, which can be killed. Raises
    LookupError.
    """
    if job.spec.algorithm.value.trains:
        make_algorithm(job.spec.algorithm)
    for reward in job.spec.rewards:
        if reward.plugin is not None:
            check_plugin_installed(reward.plugin.name, reward.name)
    for tracker in job.spec.trackers:
        if tracker.plugin is not None:
            check_parameters(tracker.plugin, tracker.name)


def main(argv: list[str]) -> int:
    return run_role(serve, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
