"""What every part of the spec is made of: camelCase fields, no unknown ones, unions with one member set."""

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

from kubealign.spec.paths import local_path


class Spec(BaseModel):
    """A part of the spec. Fields are camelCase in documents, snake_case in Python."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        validate_default=True,
        frozen=True,
        allow_inf_nan=False,
    )


def incoherent(title: str, *problems: tuple[tuple[str | int, ...], Any, str]) -> ValidationError:
    """What a model validator raises about fields below it: (path, what it held, what it may hold) of each."""
    return ValidationError.from_exception_data(
        title,
        [
            InitErrorDetails(
                type=PydanticCustomError("incoherent", "{text}", {"text": text}), loc=path, input=held
            )
            for path, held, text in problems
        ],
    )


def alias(model: type[BaseModel], name: str) -> str:
    """The name that a field has in documents."""
    return model.model_fields[name].alias or name


def exactly_one(model: Spec, names: list[str], example: str = "") -> None:
    """Raise unless exactly one of these fields of the model is set."""
    chosen = [name for name in names if getattr(model, name) is not None]
    if len(chosen) == 1:
        return
    members = ", ".join(alias(type(model), name) for name in names)
    empty = [
        alias(type(model), name) for name in names if name in model.model_fields_set and name not in chosen
    ]
    if chosen:
        found = " and ".join(alias(type(model), name) for name in chosen) + " are set: remove all but one"
    elif empty:
        found = f"{empty[0]} is null: give it a value, or {{}} for its defaults"
    else:
        found = "none is set" + (f": write {example}" if example else "")
    raise PydanticCustomError(
        "union", "exactly one of {members} must be set; {found}", {"members": members, "found": found}
    )


def unique(key: str) -> Any:
    """For a list of objects: no two have the same value in this field, by its name in documents and Python.
    It is what Kubernetes merges the list by."""

    def check(entries: Any) -> Any:
        held = [getattr(entry, to_snake(key)) for entry in entries or ()]
        again = [index for index, value in enumerate(held) if value in held[:index]]
        if again:
            problems = (
                ((index, key), held[index], f"another entry has this {key}: change one") for index in again
            )
            raise incoherent("list", *problems)
        return entries

    return AfterValidator(check)


def merged_by(key: str) -> dict[str, Any]:
    """What the JSON schema of such a list says."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


def _check_distinct(entries: list[str]) -> list[str]:
    again = [index for index, value in enumerate(entries) if value in entries[:index]]
    if again:
        raise incoherent(
            "list", *(((index,), entries[index], "stands here twice: remove one") for index in again)
        )
    return entries


#: For a list of texts: no two are the same.
distinct = AfterValidator(_check_distinct)

#: What the JSON schema of such a list says.
AS_SET = {"x-kubernetes-list-type": "set"}


def _union_schema(schema: dict[str, Any], model: type[BaseModel]) -> None:
    if issubclass(model, Union):
        default = model.default_member
        schema["x-kubealign-union"] = {"default": None if default is None else alias(model, default)}


class Union(Spec):
    """A choice, as Kubernetes spells one: an object of which exactly one field is set.

    `member` is the name of the field that is set (snake_case), `value` what it holds.
    """

    model_config = ConfigDict(json_schema_extra=_union_schema)

    # The member that an empty object stands for; None: one must be named.
    default_member: ClassVar[str | None] = None

    @model_validator(mode="before")
    @classmethod
    def _default(cls, data: Any) -> Any:
        if data == {} and cls.default_member is not None:
            return {alias(cls, cls.default_member): {}}
        return data

    @model_validator(mode="after")
    def _exactly_one(self) -> "Union":
        exactly_one(self, list(type(self).model_fields))
        return self

    @property
    def member(self) -> str:
        return next(name for name in type(self).model_fields if getattr(self, name) is not None)

    @property
    def value(self) -> Any:
        return getattr(self, self.member)


def _absolute(value: str, info: ValidationInfo) -> str:
    folder: Path | None = (info.context or {}).get("folder")
    return value if folder is None else local_path(value, folder)


#: A file or folder. When a job's file is loaded, relative paths are made absolute from that file's folder.
FilePath: TypeAlias = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_absolute)]

DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
JOB_NAME = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
# Written out, for \w is all of Unicode's letters in one regular expression engine and ASCII's in another.
PYTHON_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
MODULE_FUNCTION = r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$"
ENV_NAME = r"^[A-Z_a-z][0-9A-Z_a-z]*$"
_SEGMENT = r"([^/.][^/]*|\.([^/.][^/]*)?|\.\.[^/]+)"
VOLUME_PATH = rf"^({_SEGMENT}(/{_SEGMENT})*/?)?$"

FILE_KEY = r"^[-._a-zA-Z0-9]+$"
ABSOLUTE_PATH = r"^/[^:]*$"
HTTP_ADDRESS = r"^https?://[-._:A-Za-z0-9\[\]]+(/[!-~]*)?$"
QUALIFIED_NAME = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
TEMPLATE = r"^([^{}]|\{\{|\}\}|\{[^{}]+\})*$"
QUANTITY = r"^[0-9]+(\.[0-9]+)?([numkMGTPE]|[KMGTPE]i)?$"

#: The patterns of the spec in words.
PATTERNS = {
    JOB_NAME: "lower-case letters, digits and hyphens, with a letter first and a letter or digit last",
    VOLUME_PATH: "a path within the volume, without a leading / and without ..",
    DNS_SUBDOMAIN: "lower-case letters, digits, hyphens and dots, with a letter or digit at both ends",
    ENV_NAME: "letters, digits and _, not beginning with a digit",
    FILE_KEY: "letters, digits, hyphens, dots and _",
    ABSOLUTE_PATH: "an absolute path without a colon",
    HTTP_ADDRESS: "an address such as https://tracking.example, without a user or password in it",
    QUALIFIED_NAME: "a Kubernetes name such as example.com/name",
    QUANTITY: "an amount such as 8, 500m or 16Gi",
    TEMPLATE: "a text with names in braces, and its own braces doubled",
    DNS_LABEL: "lower-case letters, digits and hyphens, with a letter or digit at both ends",
    PYTHON_NAME: "the name of a Python function",
    MODULE_FUNCTION: "a module and a function in it, such as package.module:function",
}

#: A letter first, as a Service's name must have; at most 52 characters, so that its name fits in a DNS label.
JobName: TypeAlias = Annotated[str, Field(pattern=JOB_NAME, max_length=52)]

#: The names of rewards and scores; with reward- before and -0 behind they still fit in a DNS label.
Name: TypeAlias = Annotated[str, Field(pattern=DNS_LABEL, max_length=50)]

#: The names of most objects of Kubernetes.
ObjectName: TypeAlias = Annotated[str, Field(pattern=DNS_SUBDOMAIN, max_length=253)]

#: A file or folder within a volume; empty: the volume's root.
VolumePath: TypeAlias = Annotated[str, Field(pattern=VOLUME_PATH, max_length=1024)]

#: Names, branches and the like.
ShortText: TypeAlias = Annotated[str, Field(min_length=1, max_length=256)]

#: The largest of what is counted.
MOST = 2**31 - 1
