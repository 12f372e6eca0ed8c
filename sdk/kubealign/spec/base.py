"""Base classes, validators and string types of the spec models: camelCase fields, strict types, one-of
unions.
"""

from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.alias_generators import to_camel, to_snake
from pydantic_core import InitErrorDetails, PydanticCustomError

from kubealign.object_storage.location import STORAGE_FILES_PATTERN, STORAGE_URI_PATTERN
from kubealign.spec.paths import resolve_path


class SpecModel(BaseModel):
    """Base class of spec models. Fields are camelCase in documents and snake_case in Python."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        validate_default=True,
        frozen=True,
        allow_inf_nan=False,
    )


def field_errors(title: str, *problems: tuple[tuple[str | int, ...], Any, str]) -> ValidationError:
    """Build the ValidationError of a model validator about fields below the model.

    Args:
        problems: (path below the model, invalid value, message) of each error.
    """
    return ValidationError.from_exception_data(
        title,
        [
            InitErrorDetails(
                type=PydanticCustomError("incoherent", "{text}", {"text": text}), loc=path, input=value
            )
            for path, value, text in problems
        ],
    )


def field_alias(model: type[BaseModel], name: str) -> str:
    """Return the name of a field in documents."""
    return model.model_fields[name].alias or name


def require_exactly_one(model: SpecModel, names: list[str], example: str = "") -> None:
    """Raise PydanticCustomError unless exactly one of the named fields of the model is set."""
    set_names = [name for name in names if getattr(model, name) is not None]
    if len(set_names) == 1:
        return
    members = ", ".join(field_alias(type(model), name) for name in names)
    empty = [
        field_alias(type(model), name)
        for name in names
        if name in model.model_fields_set and name not in set_names
    ]
    if set_names:
        problem = (
            " and ".join(field_alias(type(model), name) for name in set_names)
            + " are set: remove all but one"
        )
    elif empty:
        problem = f"{empty[0]} is null: give it a value, or {{}} for its defaults"
    else:
        problem = "none is set" + (f": write {example}" if example else "")
    raise PydanticCustomError(
        "union", "exactly one of {members} must be set; {found}", {"members": members, "found": problem}
    )


def unique_by(key: str) -> Any:
    """Return a validator for lists of objects: the field `key` must differ in all entries.

    Kubernetes merges the list by this field. `key` is the camelCase name.
    """

    def check(entries: Any) -> Any:
        values = [getattr(entry, to_snake(key)) for entry in entries or ()]
        duplicates = [index for index, value in enumerate(values) if value in values[:index]]
        if duplicates:
            problems = (
                ((index, key), values[index], f"another entry has this {key}: change one")
                for index in duplicates
            )
            raise field_errors("list", *problems)
        return entries

    return AfterValidator(check)


def list_map_schema(key: str) -> dict[str, Any]:
    """Return the JSON schema keywords of a list that is merged by a key."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


def _require_distinct(entries: list[str]) -> list[str]:
    duplicates = [index for index, value in enumerate(entries) if value in entries[:index]]
    if duplicates:
        raise field_errors(
            "list", *(((index,), entries[index], "occurs twice: remove one") for index in duplicates)
        )
    return entries


#: Validator for lists of texts: all entries must differ.
distinct_items = AfterValidator(_require_distinct)

#: JSON schema keywords of a list with distinct entries.
LIST_SET_SCHEMA: dict[str, Any] = {"x-kubernetes-list-type": "set"}


def _union_schema(schema: dict[str, Any], model: type[BaseModel]) -> None:
    if issubclass(model, SpecUnion):
        default = model.default_member
        schema["x-kubealign-union"] = {"default": None if default is None else field_alias(model, default)}


class SpecUnion(SpecModel):
    """Object of which exactly one field must be set: a union in the Kubernetes API convention.

    `member` is the snake_case name of the field that is set, and `value` is its value.
    """

    model_config = ConfigDict(json_schema_extra=_union_schema)

    # Member that an empty object means; None: a member must be named.
    default_member: ClassVar[str | None] = None

    @model_validator(mode="before")
    @classmethod
    def _default(cls, data: Any) -> Any:
        """Replace an empty object by the default member."""
        if data == {} and cls.default_member is not None:
            return {field_alias(cls, cls.default_member): {}}
        return data

    @model_validator(mode="after")
    def _exactly_one(self) -> "SpecUnion":
        """Check that exactly one field is set."""
        require_exactly_one(self, list(type(self).model_fields))
        return self

    @property
    def member(self) -> str:
        """Name of the field that is set (snake_case)."""
        return next(name for name in type(self).model_fields if getattr(self, name) is not None)

    @property
    def value(self) -> Any:
        """Value of the field that is set."""
        return getattr(self, self.member)


def _resolve_path(value: str, info: ValidationInfo) -> str:
    """Make a path absolute from the folder in the validation context."""
    folder: Path | None = (info.context or {}).get("folder")
    return value if folder is None else resolve_path(value, folder)


#: A file or folder. Loading a job's file makes relative paths absolute from that file's folder.
FilePath: TypeAlias = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_resolve_path)]

DNS_LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_SUBDOMAIN_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
JOB_NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
# Character classes are written out, because \w is Unicode in some regular expression engines but not in all.
PYTHON_NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
MODULE_FUNCTION_PATTERN = r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$"
ENV_NAME_PATTERN = r"^[A-Z_a-z][0-9A-Z_a-z]*$"
_SEGMENT = r"([^/.][^/]*|\.([^/.][^/]*)?|\.\.[^/]+)"
VOLUME_PATH_PATTERN = rf"^({_SEGMENT}(/{_SEGMENT})*/?)?$"

FILE_KEY_PATTERN = r"^[-._a-zA-Z0-9]+$"
ABSOLUTE_PATH_PATTERN = r"^/[^:]*$"
HTTP_ADDRESS_PATTERN = r"^https?://[-._:A-Za-z0-9\[\]]+(/[!-~]*)?$"
WORKER_URL_PATTERN = r"^https?://([-._:A-Za-z0-9\[\]]|\{worker\})+(/([!-z|~]|\{worker\})*)?$"
SWANLAB_PROJECT_PATTERN = r"^[-+._0-9a-zA-Z]+$"
SWANLAB_WORKSPACE_PATTERN = r"^[-_0-9a-zA-Z]+$"
QUALIFIED_NAME_PATTERN = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
TEMPLATE_PATTERN = r"^([^{}]|\{\{|\}\}|\{[^{}]+\})*$"
CIDR_PATTERN = r"^([0-9]{1,3}(\.[0-9]{1,3}){3}/[0-9]{1,2}|[0-9a-f:.]*:[0-9a-f:.]*/[0-9]{1,3})$"
TAG_NAME_PATTERN = r"^[A-Za-z][-_A-Za-z0-9]*$"
HEADER_NAME_PATTERN = r"^[A-Za-z][-A-Za-z0-9]*$"
CHOICES_PATTERN = r"^[A-Z]{2,}$"
VALIDATION_METRIC_PATTERN = r"^val/.+$"
QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?([numkMGTPE]|[KMGTPE]i)?$"

#: Descriptions of the patterns for error messages and documentation.
PATTERN_DESCRIPTIONS = {
    JOB_NAME_PATTERN: (
        "lower-case letters, digits and hyphens, with a letter first and a letter or digit last"
    ),
    VOLUME_PATH_PATTERN: "a path within the volume, without a leading / and without ..",
    DNS_SUBDOMAIN_PATTERN: (
        "lower-case letters, digits, hyphens and dots, with a letter or digit at both ends"
    ),
    ENV_NAME_PATTERN: "letters, digits and _, not beginning with a digit",
    FILE_KEY_PATTERN: "letters, digits, hyphens, dots and _",
    ABSOLUTE_PATH_PATTERN: "an absolute path without a colon",
    HTTP_ADDRESS_PATTERN: "an address such as https://tracking.example, without a user or password in it",
    WORKER_URL_PATTERN: (
        "an address such as http://vllm-{worker}.vllm:8000, in which {worker} is the only text in braces, "
        "without a user or password in it"
    ),
    SWANLAB_PROJECT_PATTERN: "letters, digits, hyphens, dots, + and _",
    SWANLAB_WORKSPACE_PATTERN: "letters, digits, hyphens and _",
    QUALIFIED_NAME_PATTERN: "a Kubernetes name such as example.com/name",
    STORAGE_URI_PATTERN: "s3://BUCKET/PATH, gs://BUCKET/PATH or az://CONTAINER/PATH, without a / at the end",
    STORAGE_FILES_PATTERN: "s3://BUCKET/PATH, gs://BUCKET/PATH or az://CONTAINER/PATH, with * for any text",
    CIDR_PATTERN: "a block of addresses such as 10.1.0.0/16 or 2001:db8::/32",
    QUANTITY_PATTERN: "an amount such as 8, 500m or 16Gi",
    VALIDATION_METRIC_PATTERN: "a validation metric such as val/loss: they begin with val/",
    HEADER_NAME_PATTERN: "letters, digits and hyphens, with a letter first",
    TAG_NAME_PATTERN: "the name of a tag without < and >, such as think",
    CHOICES_PATTERN: "upper-case letters, such as ABCD",
    TEMPLATE_PATTERN: "a text with names in braces, and its own braces doubled",
    DNS_LABEL_PATTERN: "lower-case letters, digits and hyphens, with a letter or digit at both ends",
    PYTHON_NAME_PATTERN: "the name of a Python function",
    MODULE_FUNCTION_PATTERN: "a module and a function in it, such as package.module:function",
}

#: Begins with a letter, as Service names must; at most 52 characters, so that derived names fit a DNS label.
JobName: TypeAlias = Annotated[str, Field(pattern=JOB_NAME_PATTERN, max_length=52)]

#: Names of rewards and scores; with the prefix reward- and the suffix of a replica they still fit in a DNS
#: label.
EntryName: TypeAlias = Annotated[str, Field(pattern=DNS_LABEL_PATTERN, max_length=50)]

#: Names of teachers; teacher-NAME-1023-r1023 fits in a DNS label.
TeacherName: TypeAlias = Annotated[str, Field(pattern=DNS_LABEL_PATTERN, max_length=44)]

#: Names of most Kubernetes objects.
ObjectName: TypeAlias = Annotated[str, Field(pattern=DNS_SUBDOMAIN_PATTERN, max_length=253)]

#: A file or folder within a volume; empty: the volume's root.
VolumePath: TypeAlias = Annotated[str, Field(pattern=VOLUME_PATH_PATTERN, max_length=1024)]

#: A bucket, or a path in it. Its credentials come from the environment.
StorageUri: TypeAlias = Annotated[str, Field(pattern=STORAGE_URI_PATTERN, max_length=1024)]

#: Objects in a bucket. Its credentials come from the environment.
StorageFilesUri: TypeAlias = Annotated[str, Field(pattern=STORAGE_FILES_PATTERN, max_length=1024)]

#: Names, branches and the like.
ShortText: TypeAlias = Annotated[str, Field(min_length=1, max_length=256)]

#: Metric of the validation on held-out rows.
ValidationMetric: TypeAlias = Annotated[str, Field(pattern=VALIDATION_METRIC_PATTERN, max_length=256)]

#: Maximum of integer fields without a smaller bound.
MAX_INT32 = 2**31 - 1

#: Largest number of processes, or of workers, of an elastic role.
MAX_REPLICAS = 1024

#: Number of processes, or of workers, of an elastic role.
Replicas: TypeAlias = Annotated[int, Field(ge=1, le=MAX_REPLICAS)]

#: Number of processes that share one model.
Ranks: TypeAlias = Annotated[int, Field(ge=1, le=1024)]

#: Largest number of ranks that share a pod.
MAX_PROCESSES_PER_POD = 64

#: Number of ranks that share a pod.
ProcessesPerPod: TypeAlias = Annotated[int, Field(ge=1, le=MAX_PROCESSES_PER_POD)]

#: Description of processesPerPod.
PROCESSES_PER_POD = (
    "In a cluster: ranks in each pod, which share its devices and its memory. null: the number of GPUs in "
    "the limits of the pod's container, at most all ranks; 1 without GPUs."
)

#: Description of the ranks of a model that is only evaluated.
SCORER_RANKS = (
    "Processes of each replica, which share its model and its forward passes (FSDP2); each holds a shard of "
    "the weights. The ranks wait for one another at most trainer.stepTimeoutSeconds."
)


def require_pods_of_its_own(section: SpecModel, reason: str, owner: str) -> None:
    """Raise if a section without pods of its own describes pods.

    Args:
        reason: Reason why it has none, such as "a reward WithCritic has no pod of its own".
        owner: Section in whose pods it runs.
    """
    for field, name in (("podTemplate", "pod_template"), ("processesPerPod", "processes_per_pod")):
        value = getattr(section, name)
        if value is not None:
            raise field_errors(type(section).__name__, ((field,), value, f"{reason}: set {owner}.{field}"))


def require_equal_pods(section: SpecModel, size: int | None, ranks: int, field: str = "ranks") -> None:
    """Raise if the section's processesPerPod does not divide its ranks.

    Args:
        size: Value of processesPerPod.
        field: Name of the field with the number of ranks.
    """
    if size is not None and ranks % size:
        text = f"must divide {field} ({ranks})"
        raise field_errors(type(section).__name__, (("processesPerPod",), size, text))
