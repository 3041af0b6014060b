"""Settings of the backend http: what a URL may be, and that a key is shown nowhere."""

import copy
import pickle

import pytest

from semtrace.errors import DocumentError, UsageError
from semtrace.live.settings import HttpSettings, Key, Target, read_key


def parse(**members):
    return HttpSettings.parse({"url": "http://127.0.0.1:8000", **members}, path="backend.settings")


@pytest.mark.parametrize(
    ("url", "host", "port", "root", "field"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1", 8000, "", "127.0.0.1:8000"),
        ("http://127.0.0.1:8000/", "127.0.0.1", 8000, "", "127.0.0.1:8000"),
        ("http://localhost/v1", "localhost", 80, "", "localhost"),
        ("http://localhost/v1/", "localhost", 80, "", "localhost"),
        ("https://api.example.org/llm/v1", "api.example.org", 443, "/llm", "api.example.org"),
        ("https://api.example.org:8443/llm", "api.example.org", 8443, "/llm", "api.example.org:8443"),
        ("http://[::1]:9/v1", "::1", 9, "", "[::1]:9"),
    ],
)
def test_urls(url, host, port, root, field):
    target = Target(parse(url=url).url)
    assert (target.host, target.port, target.root, target.host_field) == (host, port, root, field)
    assert target.tls == url.startswith("https")


@pytest.mark.parametrize(
    "url",
    [
        "", "127.0.0.1:8000", "ftp://a", "http://", "http://:80", "http://a:0", "http://a:99999", "http://a:x", "http://a/v1?k=secret",
        "http://a/#secret", "http://a/v1?", "http://user:secret@a", "http://secret@a", "http://a/\r\nX-Evil: 1", "http://a b/", "http://ä/",
        "http://[::1/",
    ],
)  # fmt: skip
def test_urls_that_are_refused_are_not_repeated(url):
    with pytest.raises(DocumentError) as caught:
        parse(url=url)
    assert "url" in str(caught.value)
    assert "secret" not in f"{caught.value} {caught.value!r} {caught.value.as_dict()}"


def test_the_name_of_a_variable_is_no_key():
    with pytest.raises(DocumentError) as caught:
        parse(api_key_env="sk-secret-0123456789")
    assert "secret" not in f"{caught.value} {caught.value!r} {caught.value.as_dict()}"
    assert "environment variable" in str(caught.value)


def test_the_key_comes_from_the_variable_and_is_shown_nowhere():
    """ST-LIV-032."""
    settings = parse(api_key_env="MY_KEY")
    key = read_key(settings, {"MY_KEY": " sk-secret \n", "OPENAI_API_KEY": "other"})
    assert key.field() == b"Authorization: Bearer sk-secret\r\n"
    assert key.hide("you sent sk-secret!") == "you sent ***!"
    for shown in (str(key), repr(key), f"{key}", f"{[key]}"):
        assert "secret" not in shown
    for write_down in (pickle.dumps, copy.copy):
        with pytest.raises(TypeError):
            write_down(key)
    assert not hasattr(key, "__dict__")
    assert "secret" not in str(settings.as_json())


def test_no_key_is_no_error_and_a_wrong_one_is():
    assert read_key(parse(), {}) is None
    assert read_key(parse(), {"OPENAI_API_KEY": "  "}) is None
    for value in ("a b", "a\r\nX-Evil: 1", "schlüssel"):
        with pytest.raises(UsageError) as caught:
            read_key(parse(), {"OPENAI_API_KEY": value})
        assert value not in f"{caught.value} {caught.value.as_dict()}"
        assert "OPENAI_API_KEY" in str(caught.value)


def test_unknown_settings_and_wrong_values_are_refused():
    """ST-SCN-012."""
    for members in (
        {"urll": 1},
        {"inputs": "words"},
        {"lock": "hope"},
        {"connections": 0},
        {"vocabulary": {"first": 3}},
        {"stream": "yes"},
    ):
        with pytest.raises(DocumentError):
            parse(**members)
    with pytest.raises(DocumentError):
        HttpSettings.parse({}, path="backend.settings")


def test_a_key_is_known_by_what_it_is():
    assert Key("a").field() != Key("b").field()
