"""Upload of a result to a repository of the Hugging Face hub, in one commit."""

from collections.abc import Mapping
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from kubealign.client.errors import NotPossible
from kubealign.client.records import JobRecord
from kubealign.client.results.model_loader import is_reward_model
from kubealign.hub.card import CardInputs, render_card
from kubealign.spec.sections.data import RESULT_ROWS_FILE

_CARD = "README.md"


def push_result(
    job: JobRecord,
    folder: Path,
    metrics: Mapping[str, float],
    repo: str,
    *,
    private: bool = False,
    revision: str | None = None,
) -> str:
    """Upload a result folder with its card, and return the address of the commit.

    Endpoint and token are those of huggingface_hub: HF_ENDPOINT, HF_TOKEN, or `hf auth login`. A result of
    rows becomes a data set.

    Args:
        metrics: The last validation metrics.
        repo: Name such as acme/sums-7b; it is created if it does not exist.
        private: Create the repository as a private one.
        revision: Branch, created if it does not exist; None: the main branch.

    Raises:
        NotPossible: huggingface_hub is not installed, or the hub refuses or does not answer.
    """
    try:
        hub: Any = import_module("huggingface_hub")
        errors: Any = import_module("huggingface_hub.errors")
    except ImportError as error:
        raise NotPossible("a push needs huggingface_hub: pip install 'kubealign[hub]'") from error
    is_dataset = (folder / RESULT_ROWS_FILE).exists()
    card = render_card(
        CardInputs(
            job=job,
            repo=repo,
            is_dataset=is_dataset,
            is_reward_model=not is_dataset and is_reward_model(folder),
            metrics=metrics,
            version=metadata.version("kubealign"),
        )
    )
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    operations = [
        hub.CommitOperationAdd(path_in_repo=path.relative_to(folder).as_posix(), path_or_fileobj=path)
        for path in files
        if path.relative_to(folder).as_posix() != _CARD
    ]
    operations.append(hub.CommitOperationAdd(path_in_repo=_CARD, path_or_fileobj=card.encode()))
    repo_type = "dataset" if is_dataset else "model"
    try:
        api = hub.HfApi(library_name="kubealign", library_version=metadata.version("kubealign"))
        api.create_repo(repo, private=private, repo_type=repo_type, exist_ok=True)
        if revision is not None:
            api.create_branch(repo, branch=revision, repo_type=repo_type, exist_ok=True)
        commit = api.create_commit(
            repo,
            operations,
            commit_message=f"Add the result of {job.name}",
            repo_type=repo_type,
            revision=revision,
        )
    except (errors.HfHubHTTPError, errors.HFValidationError, errors.LocalTokenNotFoundError) as error:
        raise NotPossible(f"the hub does not accept {repo}: {error}") from error
    except (errors.HTTPError, OSError) as error:  # HTTPError: the base class of the HTTP library in use
        raise NotPossible(f"{repo} could not be pushed, the hub does not answer: {error}") from error
    return str(commit.commit_url)
