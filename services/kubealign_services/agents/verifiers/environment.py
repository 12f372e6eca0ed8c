"""Creates environments of the package verifiers from a job's spec."""

import importlib.metadata
import os
import pkgutil
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kubealign.spec.workflows.agents import VerifiersEnvironment
from kubealign_services.environments.adapters.packages import import_package
from kubealign_services.environments.contract import EnvironmentFailed

_EXTRA = "verifiers"
_DISTRIBUTION = "verifiers"
#: Harness that runs a conversation with the task's tools, and executes no code of the policy.
_CHAT_HARNESS = "null"
#: Harness of the package for tasksets that have none: it executes the policy's shell commands.
_SHELL_HARNESS = "bash"
#: Processes of this machine; the package's default is a sandbox of a paid service.
_LOCAL_RUNTIME = {"type": "subprocess"}


@dataclass(frozen=True)
class EnvironmentConfig:
    """Configuration of an environment, checked by the package.

    package: the module verifiers.v1. value: its EnvConfig. policy: name of the agent that is the policy.
    """

    package: Any
    value: Any
    policy: str

    def load(self) -> Any:
        """Return a new environment."""
        return self.package.load_environment(self.value)

    def load_taskset(self) -> Any:
        """Return a new taskset, which loads its tasks when it is iterated."""
        return self.package.load_taskset(self.value.taskset)


def load_config(spec: VerifiersEnvironment) -> EnvironmentConfig:
    """Import the package and the taskset, and return the checked configuration of the environment.

    Makes the modules of `folder`, and the programs of this interpreter's environment, such as uv, available
    to this process and to those that the environment starts.

    Raises:
        EnvironmentFailed: The package is not installed, the taskset is unknown or cannot be imported, the
            configuration is invalid, or not exactly one agent is the policy. Permanent.
    """
    _extend_search_paths(spec.folder)
    package = import_package("verifiers.v1", _EXTRA)
    try:
        package.import_taskset(spec.taskset)
        value = package.resolve_env_config(_complete_config(package, spec))
    except ValidationError as error:
        raise EnvironmentFailed(f"config: {_describe_invalid(error)}", permanent=True) from error
    # Importing the taskset runs code of another package, which may raise anything.
    except (Exception, SystemExit) as error:
        raise EnvironmentFailed(_describe_import(spec.taskset, error), permanent=True) from error
    agents = {name: agent for name, agent in value if isinstance(agent, package.AgentConfig)}
    policies = [name for name, agent in agents.items() if agent.client is None]
    if len(policies) != 1:
        raise EnvironmentFailed(
            f"has the agents {', '.join(agents)}, of which {', '.join(policies) or 'none'} would be the "
            "policy: one agent can be trained; set client in config for each of the others",
            permanent=True,
        )
    return EnvironmentConfig(package, value, policies[0])


def _extend_search_paths(folder: str | None) -> None:
    _prepend_variable("PATH", str(Path(sys.executable).parent))
    if folder is not None:
        if folder not in sys.path:
            sys.path.insert(0, folder)
        # Tool servers are processes that import the taskset's module.
        _prepend_variable("PYTHONPATH", folder)


def _prepend_variable(name: str, folder: str) -> None:
    folders = [each for each in os.environ.get(name, "").split(os.pathsep) if each and each != folder]
    os.environ[name] = os.pathsep.join([folder, *folders])


def _complete_config(package: Any, spec: VerifiersEnvironment) -> dict[str, Any]:
    """Return the configuration with the taskset's name, and a harness and a runtime for each agent."""
    taskset = dict(spec.config.get("taskset") or {}) | {"id": spec.taskset}
    config = dict(spec.config) | {"taskset": taskset}
    defaults = package.env_config_type(spec.taskset, config.get("id") or "").model_fields
    has_harness = package.default_harness_id(spec.taskset) != _SHELL_HARNESS
    for name, field in defaults.items():
        if not isinstance(field.default, package.AgentConfig):
            continue
        agent = dict(config.get(name) or {})
        if "runtime" not in agent and "runtime" not in field.default.model_fields_set:
            agent["runtime"] = dict(_LOCAL_RUNTIME)
        if agent.get("harness") is None and field.default.harness is None and not has_harness:
            agent["harness"] = {"id": _CHAT_HARNESS}
        config[name] = agent
    return config


def _describe_invalid(error: ValidationError) -> str:
    """Return the first problem of a configuration, with its path."""
    first = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in first["loc"]) or "the configuration"
    return f"{path}: {first['msg']}, it holds {first['input']!r:.100}"


def _describe_import(taskset: str, error: BaseException) -> str:
    """Return the reason why a taskset cannot be imported; of an unknown one, the installed ones."""
    module = re.sub("-", "_", taskset.rpartition("/")[2].partition("@")[0]).lower()
    cause = error.__cause__ or error
    missing = getattr(cause, "name", None) if isinstance(cause, ModuleNotFoundError) else None
    if missing is not None and (missing == module or missing == f"verifiers.v1.tasksets.{module}"):
        return f"is no installed taskset; installed are {', '.join(sorted(set(_installed_tasksets())))}"
    return f"cannot be loaded: {type(cause).__name__}: {cause}"


def _installed_tasksets() -> Iterator[str]:
    """Yield the tasksets of verifiers, and the modules of the packages that need it."""
    tasksets = import_package("verifiers.v1.tasksets", _EXTRA)
    yield from (module.name for module in pkgutil.iter_modules(tasksets.__path__))
    needing = {
        distribution.metadata["Name"]
        for distribution in importlib.metadata.distributions()
        if any(
            re.match(rf"{_DISTRIBUTION}(?![\w.-])", line.lstrip().lower())
            for line in distribution.requires or ()
            if "extra ==" not in line
        )
    }
    for module, owners in importlib.metadata.packages_distributions().items():
        if needing.intersection(owners) and not module.startswith("_"):
            yield module
