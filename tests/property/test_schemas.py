"""The JSON Schemas of documents say what the models say: what one accepts or refuses, so does the other."""

from __future__ import annotations

import copy
import importlib
import json
import pkgutil
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import annotated_types
import generate_schemas
import pytest
from documents import DOCUMENTS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic.fields import FieldInfo

import semtrace.engine
from semtrace.errors import DocumentError
from semtrace.policies.registry import find_policy, policy_names
from semtrace.records.document import Digest, Document, Int64, read_values

NAMES = st.text("abc_", min_size=1, max_size=3)
TEXTS = st.one_of(NAMES, st.sampled_from(["", "é", "a/b", "/", "blake3:" + "0" * 64, "12", "-0", "01"]))
INTEGERS = st.one_of(
    st.integers(-2, 3), st.sampled_from([1_000_000, (1 << 40) - 1, 1 << 40, (1 << 53) - 1, 1 << 53, 1 << 63])
)
SCALARS = st.one_of(st.none(), st.booleans(), INTEGERS, st.just(0.5), TEXTS)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
LINEAR = {
    "kind": "linear",
    **dict.fromkeys(("c0_ps", "c_seq_ps", "c_prefill_ps", "c_decode_ps", "c_kv_ps"), 1),
}
DIGESTS = st.sampled_from(["blake3:" + "0" * 64, "blake3:" + "9af" * 21 + "0"])
EXTENSIONS = st.dictionaries(st.sampled_from(["a/b", "example.org/x/y", "é/é"]), JSON, max_size=1)
QUICK = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def values_of(kind: Any, bounds: tuple[Any, ...] = ()) -> st.SearchStrategy[Any]:
    """JSON values of a type that a member of a document has."""
    if kind == Digest:
        return DIGESTS
    if kind == Int64:
        return st.integers(-(1 << 63), (1 << 63) - 1).map(str)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        more = [
            bound
            for each in arguments[1:]
            for bound in ([*each.metadata, each.json_schema_extra] if isinstance(each, FieldInfo) else [each])
        ]
        return values_of(arguments[0], (*bounds, *more))
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in {Union, types.UnionType}:
        return st.one_of([values_of(each, bounds) for each in arguments])
    if origin is list:
        least = max(
            [bound.min_length for bound in bounds if isinstance(bound, annotated_types.MinLen)], default=0
        )
        return st.lists(values_of(arguments[0]), min_size=least, max_size=least + 2)
    if origin is dict:
        return st.dictionaries(NAMES, values_of(arguments[1]), max_size=2)
    if isinstance(kind, type) and issubclass(kind, Document):
        return documents_of(kind)
    if kind is int:
        said = next((bound for bound in bounds if isinstance(bound, dict)), {})
        if said:
            return st.integers(said["minimum"], said["maximum"])
        low = max([bound.ge for bound in bounds if isinstance(bound, annotated_types.Ge)], default=-(1 << 53))
        high = min(
            [bound.lt - 1 for bound in bounds if isinstance(bound, annotated_types.Lt)]
            + [bound.le for bound in bounds if isinstance(bound, annotated_types.Le)],
            default=1 << 53,
        )
        return st.integers(low, high)
    if kind is str:
        patterns = [bound.pattern for bound in bounds if getattr(bound, "pattern", None)]
        return st.just("example.org/step") if patterns else NAMES
    return {bool: st.booleans(), type(None): st.none(), Any: JSON, float: st.just(0.5)}[kind]


def documents_of(model: type[Document]) -> st.SearchStrategy[dict[str, Any]]:
    """Documents of a model: all members that must be there, some of the others, some extensions."""
    must, may = {}, {}
    hints = get_type_hints(model, include_extras=True)
    for name, field in model.model_fields.items():
        values = values_of(hints[name], tuple(field.metadata))
        if name == "kind":
            must[name] = values  # which of several documents it is
        elif name == "spec_version":
            must[name] = st.sampled_from(["1.0", "1.0-draft", "1.17"])
        else:
            (must if field.is_required() else may)[name] = values
    whole = st.fixed_dictionaries(must, optional=may)
    return st.builds(lambda own, more: {**own, **more}, whole, EXTENSIONS)


def catalog(folder: str) -> list[Any]:
    files = (Path(semtrace.engine.__file__).parent / "catalog" / folder).glob("*.yaml")
    return [read_values(path) for path in sorted(files)]


TABLE = {"prefill_tokens": [0, 8], "decode_tokens": [0], "context": [0, 4], "ns": [[[1, 2]], [[3, 4]]]}
BEYOND = dict.fromkeys(("beyond_prefill_ps", "beyond_decode_ps", "beyond_context_ps"), 5)
SAMPLES = {
    "http-settings": [
        {"url": "http://127.0.0.1:8000"},
        {
            "url": "https://[::1]/v1",
            "model": "m",
            "vocabulary": {"first": 3, "size": 90},
            "api_key_env": "MY_KEY",
        },
    ],
    "engine": [
        *catalog("engines"),
        {"kv_tokens": 64, "cost": "costs/mine.yaml", "model": {**catalog("models")[0]}},
    ],
    "model": catalog("models"),
    "cost-roofline": [
        {"kind": "roofline"},
        {"kind": "roofline", "tensor_parallel": 2, "allreduce_ns": 7, "c0_ps": 1},
    ],
    "cost-table": [{"kind": "table", **TABLE, **BEYOND, "notes": "by hand"}],
}
"""Documents that keep what their schema does not say."""


def published_documents(name: str) -> st.SearchStrategy[dict[str, Any]]:
    """Documents as they stand in a bundle or a file."""
    published = DOCUMENTS[name]
    if published.not_said is not None:
        return st.sampled_from(SAMPLES[name])
    also = st.fixed_dictionaries({name: DIGESTS for name in published.also_required if name != "kind"})
    return st.builds(lambda own, more: {**own, **more}, documents_of(published.model), also)


VALIDATORS = {
    name: Draft202012Validator(generate_schemas.schema_of(published)) for name, published in DOCUMENTS.items()
}


def completed(name: str, value: dict[str, Any]) -> dict[str, Any]:
    """The document with what its reader puts in."""
    published = DOCUMENTS[name]
    found = dict.fromkeys(published.filled_in, "blake3:" + "0" * 64)
    for member, held in value.items():
        by_path = (
            member in published.by_path
            and isinstance(held, str)
            and held.endswith((".yaml", ".yml", ".json"))
        )
        found[member] = LINEAR if by_path else held
    return found


def accepted(name: str, value: Any) -> bool:
    """Whether a reader accepts the document."""
    published = DOCUMENTS[name]
    if not isinstance(value, dict) or any(value.get(member) is None for member in published.also_required):
        return False
    try:
        published.model.parse(completed(name, value), path="x")
    except DocumentError:
        return False
    # Read before the model sees it: another major version is refused by name.
    return not isinstance(value.get("spec_version"), str) or value["spec_version"].startswith("1.")


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container in a JSON value with every key of it."""
    found: list[tuple[Any, Any]] = []
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            found.append((value, key))
            found.extend(places(value[key]))
    return found


def mutated(value: dict[str, Any], data: st.DataObject) -> Any:
    """The document with one thing changed somewhere."""
    made = copy.deepcopy(value)
    where = places(made)
    how = data.draw(st.sampled_from(["value", "delete", "add", "whole"]))
    if how == "whole" or not where:
        return data.draw(JSON)
    container, key = data.draw(st.sampled_from(where))
    if how == "value":
        container[key] = data.draw(JSON)
    elif how == "delete":
        del container[key]
    elif isinstance(container, dict):
        container[data.draw(TEXTS)] = data.draw(JSON)
    else:
        container.append(data.draw(JSON))
    return made


@pytest.mark.parametrize("name", DOCUMENTS)
def test_schemas_are_schemas(name):
    Draft202012Validator.check_schema(VALIDATORS[name].schema)


def test_the_folder_has_the_schemas_and_no_others():
    """ST-DOC-006."""
    files = {
        path.stem: json.loads(path.read_text("utf-8")) for path in generate_schemas.FOLDER.glob("*.json")
    }
    assert files == {name: validator.schema for name, validator in VALIDATORS.items()}, "run make proto"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_are_valid_by_their_schema(name):
    """ST-DOC-006: what a reader accepts, and what a writer makes of it."""

    @QUICK
    @given(published_documents(name))
    def check(value: dict[str, Any]) -> None:
        assert accepted(name, value)
        VALIDATORS[name].validate(value)
        published = DOCUMENTS[name]
        written = published.model.parse(completed(name, value), path="x").as_json()
        VALIDATORS[name].validate(written)

    check()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_a_model_refuses_its_schema_refuses(name):
    """ST-DOC-001, ST-DOC-002, ST-DOC-006: after any change to a document, both say the same of it."""

    @settings(QUICK, max_examples=100)
    @given(published_documents(name), st.data())
    def check(value: dict[str, Any], data: st.DataObject) -> None:
        changed = mutated(value, data)
        valid = VALIDATORS[name].is_valid(changed)
        if accepted(name, changed) or DOCUMENTS[name].not_said is None:
            assert valid == accepted(name, changed), changed

    check()


DIGEST = "blake3:" + "0" * 64


@pytest.mark.parametrize(
    ("name", "value", "valid"),
    [
        ("scenario", {}, True),
        ("scenario", {"arrivals": {"kind": "together"}, "x/y": None}, True),
        ("scenario", {"arrivals": {}}, False),
        ("scenario", {"arrivals": {"users": 1}}, False),
        ("scenario", {"arrivals": {"kind": "poisson", "mean_ns": 1, "users": 1}}, False),
        ("scenario", {"arrivals": {"kind": "drawn", "times_ns": [], "drawn_from": {"mean_ns": 1}}}, True),
        ("scenario", {"salt": "pepper"}, False),
        ("plan", {"work_digest": DIGEST, "name": "custom"}, True),
        ("plan", {"work_digest": DIGEST.upper(), "name": "custom"}, False),
        ("plan", {"name": "custom"}, False),
        ("constraints", {"groups": [{"wait": [1], "hold": [2]}]}, True),
        ("constraints", {"groups": [{"wait": [], "hold": [2]}]}, False),
        ("constraints", {"groups": [], "edge": []}, False),
    ],
)
def test_documents_of_people(name, value, valid):
    assert VALIDATORS[name].is_valid(value) == accepted(name, value) == valid


def test_what_a_schema_cannot_say():
    """ST-DOC-006: to JSON Schema 2.0 is an integer."""
    assert VALIDATORS["scenario"].is_valid({"copies": 2.0})
    assert not accepted("scenario", {"copies": 2.0})


def of_all_documents(kind: type[Document]) -> set[type[Document]]:
    found = {each for each in kind.__subclasses__() if each.__module__.startswith("semtrace")}
    return found | {each for kind in found for each in of_all_documents(kind)}


def test_no_default_is_made_by_a_builtin():
    """Pydantic asks what a default's maker takes; of `list` it finds that out with Python's parser, in each process anew."""
    fields = [field for each in of_all_documents(Document) for field in each.model_fields.values()]
    assert len(fields) > 50
    assert not [field for field in fields if field.default_factory in {list, dict}]


IN_VLLM = {f"semtrace.live.vllm.{name}" for name in ("forced", "front", "plugin", "recorder")}
"""Modules that are imported by vLLM's processes alone."""


def test_every_document_has_a_schema():
    """A document that nobody registered is found here: add it to tools/documents.py and run make proto."""
    for module in pkgutil.walk_packages(semtrace.__path__, "semtrace."):
        if module.name not in IN_VLLM and not module.name.startswith(
            "semtrace.cli"
        ):  # commands have no documents
            importlib.import_module(module.name)
    published = {each.model.__name__ for each in DOCUMENTS.values()}
    parts = {part for validator in VALIDATORS.values() for part in validator.schema.get("$defs", {})}
    extended = {base.__name__ for each in of_all_documents(Document) for base in each.__bases__}
    of_policies = {
        find_policy(name).Settings.__name__ for name in policy_names()
    }  # semtrace policies prints them
    missing = (
        {each.__name__ for each in of_all_documents(Document)} - published - parts - extended - of_policies
    )
    assert missing == set()
