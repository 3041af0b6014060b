"""Write spec/schemas/: a JSON Schema of each document, from its model (registered in tools/documents.py)."""

from __future__ import annotations

import inspect
import json
import re
from typing import TYPE_CHECKING, Any

from declared import ROOT, write
from documents import DOCUMENTS, Published
from pydantic.json_schema import GenerateJsonSchema

from semtrace.records.document import NAMESPACED

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import core_schema

FOLDER = ROOT / "spec" / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


class Generator(GenerateJsonSchema):
    """What a model accepts, with the meaning of each member from the model's text."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """A document: no key but its own and extensions (ST-DOC-001, ST-DOC-002)."""
        made = super().model_schema(schema)
        summary, members = _described(schema["cls"])
        properties = made.pop("properties", {})
        for name, member in properties.items():
            if name in members:
                member["description"] = members[name]
        del made["additionalProperties"], made["title"]
        return {
            **made,
            "description": summary,
            "properties": properties,
            "patternProperties": {f"^{NAMESPACED.pattern}$": True},
            "additionalProperties": False,
        }

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        """One of several documents, told apart by a member that must be there."""
        made = super().tagged_union_schema(schema)
        tag = made.pop("discriminator")["propertyName"]
        return {"oneOf": [{**each, "required": [tag]} for each in made["oneOf"]]}

    def field_title_should_be_set(self, schema: Any) -> bool:
        """No titles: they would be the names of the members once more."""
        del schema
        return False

    def sort(self, value: JsonSchemaValue, parent_key: str | None = None) -> JsonSchemaValue:
        """Members stay in the order of the model."""
        del parent_key
        return value


def _described(model: type) -> tuple[str, dict[str, str]]:
    """The text of a model: what it is, and what its members and those of the models that it extends are."""
    members: dict[str, str] = {}
    for each in reversed(model.__mro__):
        text = inspect.cleandoc(each.__dict__.get("__doc__") or "")
        _, _, attributes = text.partition("Attributes:\n")
        for names, meaning in re.findall(
            r"^ {4}(\w+(?:, \w+)*): (.*(?:\n {8}.*)*)", attributes, re.MULTILINE
        ):
            members.update(dict.fromkeys(names.split(", "), " ".join(meaning.split())))
    summary, _, _ = inspect.getdoc(model).partition("Attributes:")  # type: ignore[union-attr]  # all have one
    return " ".join(summary.split()), members


def schema_of(published: Published) -> dict[str, Any]:
    """The schema of a document."""
    made = published.model.model_json_schema(schema_generator=Generator, mode="validation")
    required = [name for name in made.get("required", []) if name not in published.filled_in]
    made["required"] = list(dict.fromkeys([*required, *published.also_required]))
    for name in published.also_required:
        member = made["properties"][name]
        if "anyOf" in member:  # the model may be without it
            [there] = [each for each in member.pop("anyOf") if each != {"type": "null"}]
            made["properties"][name] = {**there, **{key: member[key] for key in member if key != "default"}}
    for name in published.by_path:
        member = made["properties"][name]
        path = {"type": "string", "pattern": r"\.(yaml|yml|json)$", "description": "path of the document"}
        made["properties"][name] = {"anyOf": [path, member]}
    if published.not_said is not None:
        made["$comment"] = f"Not said here: {published.not_said}"
    first = (
        "$comment",
        "description",
        "type",
        "required",
        "properties",
        "patternProperties",
        "additionalProperties",
    )
    whole = {name: made[name] for name in (*first, "$defs") if name in made}
    return {"$schema": DIALECT, "title": published.title, **whole}


def generate() -> dict[Path, str]:
    """The text of every schema, by its file."""
    return {
        FOLDER / f"{name}.json": json.dumps(schema_of(published), indent=1, ensure_ascii=False) + "\n"
        for name, published in DOCUMENTS.items()
    }


if __name__ == "__main__":
    write(generate(), __doc__ or "")
