"""Documents that people write: every mistake is named with its place, nothing is guessed or dropped."""

from __future__ import annotations

import json
import os

import pytest
from pydantic import Field

from semtrace.errors import DocumentError, FormatError, UsageError
from semtrace.records import document
from semtrace.records.document import Document, Int64, canonical_json, read_values
from semtrace.records.execution import Backend, ExecutionHeader


class Wheel(Document):
    radius: int
    note: str | None = None


class Cart(Document):
    name: str
    wheels: list[Wheel] = Field(default_factory=list)
    born_ns: Int64 | None = None


def refused(tmp_path, text, suffix=".yaml"):
    path = tmp_path / f"cart{suffix}"
    path.write_text(text, "utf-8", newline="")
    with pytest.raises(FormatError) as caught:
        Cart.read(path)
    assert caught.value.path == str(path)
    return caught.value


@pytest.mark.parametrize("suffix", [".yaml", ".yml", ".json", ".JSON", ""])
def test_json_is_read_under_every_name(tmp_path, suffix):
    path = tmp_path / f"cart{suffix}"
    path.write_text('{"name": "a", "wheels": [{"radius": 3}]}')
    assert Cart.read(path) == Cart(name="a", wheels=[Wheel(radius=3)])


def test_yaml_is_read(tmp_path):
    path = tmp_path / "cart.yaml"
    path.write_text("name: a\nwheels:\n  - radius: 3\n    note: |\n      round\n")
    assert Cart.read(path).wheels[0].note == "round\n"


def test_an_unknown_key_names_the_nearest(tmp_path):
    error = refused(tmp_path, "name: a\nwheel: []\n")
    assert error.message == "unknown key 'wheel', did you mean 'wheels'?"
    assert error.requirement == "ST-DOC-001"
    assert (
        refused(tmp_path, "name: a\nzzz: 1\n").message
        == "unknown key 'zzz', the keys are name, wheels, born_ns"
    )


def test_a_document_without_keys_says_so():
    class Bare(Document):
        """No members."""

    with pytest.raises(DocumentError, match="unknown key 'x', there are none"):
        Bare.parse({"x": 1}, path="bare")


def test_every_mistake_is_named_with_its_place(tmp_path):
    error = refused(tmp_path, "wheels:\n  - radius: big\n  - radius: 1\n    nota: x\n")
    assert "name: is missing" in error.message
    assert "wheels.0.radius" in error.message
    assert "wheels.1: unknown key 'nota', did you mean 'note'?" in error.message


def test_a_key_with_a_namespace_is_kept(tmp_path):
    path = tmp_path / "cart.yaml"
    path.write_text("name: a\nexample.org/colour: red\nwheels: [{radius: 1, example.org/spokes: null}]\n")
    cart = Cart.read(path)
    assert cart.as_json() == {
        "name": "a",
        "example.org/colour": "red",
        "wheels": [{"radius": 1, "example.org/spokes": None}],
    }
    assert Cart.parse(json.loads(cart.canonical()), path="again") == cart


@pytest.mark.parametrize("key", ["/", "/colour", "example.org/"])
def test_a_namespace_and_a_name_are_texts(key):
    """ST-DOC-002."""
    with pytest.raises(FormatError, match="unknown key"):
        Cart.parse({"name": "a", key: 1}, path="x")


@pytest.mark.parametrize(
    ("text", "suffix", "says"),
    [
        ("name: a\nname: b\n", ".yaml", "twice"),
        ('{"name": "a", "name": "b"}', ".json", "twice"),
        ("name: a\nwheels: [{radius: 1, radius: 2}]\n", ".yaml", "twice"),
        ("name: &x a\nwheels: *x\n", ".yaml", "aliases"),
        ("a: &a [1, 2]\nb: &b [*a, *a]\n", ".yaml", "aliases"),
        ("name: a\nx/y: 1\nx/y: 2\n", ".yaml", "line 1, column 1: the key 'x/y' stands twice"),
        ("name: &x a\nwheels: *x\n", ".yaml", "line 2, column 9: aliases"),
        ("name: a\nx/y: !t 1\n", ".yaml", "line 2, column 6: the tag !t is not allowed"),
        ("name: a\nx/y: .nan\n", ".yaml", "line 2, column 6: .nan is not JSON"),
        ("name: a\nx/y: 1:30\n", ".yaml", "line 2, column 6: 1:30 is read as 90 by some"),
        ("name: a\nx/y: 1:30.5\n", ".yaml", "1:30.5 is read as 90.5 by some"),
        ("name: a\nx/y: 017\n", ".yaml", "017 is read as 15 by some"),
        ("name: a\nx/y: [1, 2\n", ".yaml", "neither YAML nor JSON: line 3, column 1"),
        ('{"name": "a", "x/y": 1, "x/y": 2}', ".json", "the key 'x/y' stands twice"),
        ("name: [\n", ".yaml", "neither YAML nor JSON"),
        ("name: a", ".json", "not JSON"),
        ("name: a\n---\nname: b\n", ".yaml", "neither YAML nor JSON"),
        ("name: !!python/object/apply:os.system [ls]\n", ".yaml", "is not allowed"),
        ('{"name": NaN}', ".json", "NaN is not JSON"),
        ('{"name": -Infinity}', ".json", "-Infinity is not JSON"),
        ("[" * 100_000, ".json", "not JSON"),
        ("[" * 5_000, ".yaml", "neither YAML nor JSON"),
        ('{"name": ' + "1" * 5_000 + "}", ".json", "more than 64 bits"),
        ("name: a\nborn_ns: 0x" + "f" * 6_000, ".yaml", "64 bits"),
        ("name: a\nx/y: 99999999999999999999\n", ".yaml", "64 bits"),
        ("name: a\nx/y: .inf\n", ".yaml", "is not JSON"),
        ("name: a\nx/y: !!binary /w==\n", ".yaml", "is not allowed"),
        ("x/y: " + "".join(f"\n{' ' * depth}a:" for depth in range(1, 120)), ".yaml", "deep"),
        ("", ".yaml", "is empty"),
        ("", ".json", "is empty"),
        ("- 1\n", ".yaml", "must be a mapping of keys to values, and is a list"),
        ("? [1, 2]\n: 3\n", ".yaml", "neither YAML nor JSON"),
    ],
)
def test_texts_that_are_no_document(tmp_path, text, suffix, says):
    error = refused(tmp_path, text, suffix)
    assert says in error.message
    assert "\n" not in error.message
    assert "<unicode string>" not in error.message


def test_yaml_has_what_json_has(tmp_path):
    path = tmp_path / "cart.yaml"
    path.write_text(
        "{a: 2020-01-01, b: 0x10, f: [0, -7, 0.5, '017', '1:30', 12:x], c: true, d: 1.5, e: null, <<: x}"
    )
    told = {"a": "2020-01-01", "b": 16, "f": [0, -7, 0.5, "017", "1:30", "12:x"]}
    assert read_values(path) == {**told, "c": True, "d": 1.5, "e": None, "<<": "x"}


def test_keys_of_yaml_are_texts(tmp_path):
    path = tmp_path / "keys.yaml"
    path.write_text("on: [timeout]\nno: true\n")
    assert read_values(path) == {"on": ["timeout"], "no": True}


def test_a_large_document_is_read_as_json_only(tmp_path):
    text = json.dumps({"name": "a", "wheels": [], "x/y": "z" * document.YAML_LIMIT})
    (tmp_path / "cart.json").write_text(text)
    assert Cart.read(tmp_path / "cart.json").name == "a"
    error = refused(tmp_path, text)
    assert (error.requirement, error.hint) == (
        "ST-DOC-005",
        "write it as JSON, in a file with the suffix .json",
    )


@pytest.mark.parametrize("name", ["/dev/zero", "fifo"])
def test_what_has_no_end_is_no_document(tmp_path, name):
    if name == "fifo":
        os.mkfifo(tmp_path / name)
    with pytest.raises(UsageError) as caught:
        read_values(tmp_path / name)
    assert caught.value.code == "file.special"


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UsageError) as caught:
        Cart.read(tmp_path / "nothing.yaml")
    assert caught.value.code == "file.unreadable"
    with pytest.raises(UsageError):
        Cart.read(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9\n")
    with pytest.raises(FormatError) as bad:
        Cart.read(tmp_path / "latin.yaml")
    assert bad.value.code == "document.encoding"


def test_a_huge_file_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(document, "DOCUMENT_LIMIT", 10)
    path = tmp_path / "cart.json"
    path.write_text('{"name": "a"}')
    with pytest.raises(FormatError) as caught:
        read_values(path)
    assert caught.value.code == "document.size"


@pytest.mark.parametrize("value", [1 << 53, -(1 << 53), float("nan"), float("inf"), "\ud800", {"\udc00": 1}])
def test_values_without_canonical_form(value):
    with pytest.raises(FormatError) as caught:
        canonical_json([value])
    assert caught.value.code == "document.canonical"


def test_canonical_form():
    assert canonical_json({"b": 1.0, "a": [True, None, "é\n"], "\U0001f600": 0, "\ufb33": 0}) == (
        '{"a":[true,null,"é\\n"],"b":1,"\U0001f600":0,"\ufb33":0}'.encode()
    ), "RFC 8785 sorts by UTF-16 code units"
    assert canonical_json((1 << 53) - 1) == b"9007199254740991"


def test_deep_values_end_in_an_error_not_a_traceback():
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(FormatError):
        canonical_json(deep)
    with pytest.raises(FormatError):
        Backend(name="x", settings={"a": deep}).canonical()


def test_integers_past_double_precision_are_strings_in_json():
    cart = Cart(name="a", born_ns=1_764_441_600_000_000_001)
    assert cart.as_json()["born_ns"] == "1764441600000000001"
    assert Cart.parse(json.loads(cart.canonical()), path="x") == cart
    assert Cart.parse({"name": "a", "born_ns": "-5"}, path="x").born_ns == -5


@pytest.mark.parametrize("value", [5, 1 << 60, 5.0, True, "07", "-0", "+1", "", "1e3"])
def test_a_stored_integer_that_can_be_large_is_a_text_of_digits(value):
    with pytest.raises(FormatError, match="born_ns") as caught:
        Cart.parse({"name": "a", "born_ns": value}, path="x")
    assert caught.value.requirement == "ST-DOC-004"


def test_a_stored_integer_has_64_bits_at_most():
    assert Cart.parse({"name": "a", "born_ns": str((1 << 63) - 1)}, path="x").born_ns == (1 << 63) - 1
    for value in (1 << 63, -(1 << 63) - 1, 10**30):
        with pytest.raises(FormatError, match="born_ns"):
            Cart.parse({"name": "a", "born_ns": str(value)}, path="x")


def test_an_execution_with_a_unix_origin_has_a_canonical_form():
    header = ExecutionHeader(
        work_digest="blake3:" + "0" * 64,
        mode="native",
        clock="wall",
        origin_unix_ns=1_764_441_600_123_456_789,
        measured_at="client",
        backend=Backend(name="x"),
        seeds={"arrivals": (1 << 63) - 1},
    )
    again = ExecutionHeader.parse(json.loads(header.canonical()), path="x")
    assert again == header
    assert again.origin_unix_ns == 1_764_441_600_123_456_789


def test_documents_do_not_change_and_digest_what_they_say():
    cart = Cart(name="a")
    with pytest.raises(ValueError, match="frozen"):
        cart.name = "b"
    assert cart.content_digest() == Cart(name="a", wheels=[]).content_digest()
    assert cart.content_digest() != Cart(name="b").content_digest()
    assert cart.content_digest().startswith("blake3:")
    assert "born_ns" not in cart.as_json(), "what is absent is left out"


@pytest.mark.parametrize("value", ["3", 3.0, True, None])
def test_values_of_another_type_are_refused_not_turned_into_the_right_one(value):
    with pytest.raises(FormatError, match=r"wheels\.0\.radius"):
        Cart.parse({"name": "a", "wheels": [{"radius": value}]}, path="x")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("[]", 4), ("[1,2,3]", 6), ('{"a":[],"b":{}}', 21), ('["a,b,[{","c\\"],[,","\\\\"]', 18), ("[[[]]]", 12),
        ('{"a,b":"{[,"}', 12), ("7", 0), ('["open,,', 6),
    ],
)  # fmt: skip
def test_values_are_counted_before_they_are_made(monkeypatch, text, values):
    """Strings and brackets count four times, commas and brackets in strings not; what is no JSON is refused later."""
    monkeypatch.setattr(document, "VALUE_LIMIT", values)
    assert not document.has_too_many_values(text.encode())
    monkeypatch.setattr(document, "VALUE_LIMIT", values - 1)
    assert document.has_too_many_values(text.encode())


def test_a_document_of_too_many_values_is_refused(tmp_path):
    """ST-DOC-005: three bytes a value would become a hundred each."""
    path = tmp_path / "cart.json"
    path.write_text("[" + "[]," * document.VALUE_LIMIT + "0]")
    with pytest.raises(FormatError, match="more than 3000000 values") as caught:
        read_values(path)
    assert caught.value.requirement == "ST-DOC-005"
    path.write_text(json.dumps("," * (document.VALUE_LIMIT + 1)))
    assert read_values(path)
