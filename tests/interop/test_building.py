"""What skips a client's tests, and what fails them."""

import pytest
from interop import building
from interop.building import build, run_build, run_fetch


def says(words: str, code: int = 1) -> tuple[str, ...]:
    return ("sh", "-c", 'echo "$1" >&2; exit "$2"', "sh", words, str(code))


@pytest.mark.parametrize(
    "words",
    [
        "go: example.com/x: dial tcp: lookup proxy on [::1]:53: connection refused",
        "curl: (6) Could not resolve host: index.example",
        "[ERROR] Could not transfer artifact a:b:jar:1 from/to central: Unknown host repo",
        "npm error code EAI_AGAIN",
    ],
)
def test_no_network_skips(words):
    with pytest.raises(pytest.skip.Exception, match="cannot reach its registry: "):
        run_fetch(*says(words))


@pytest.mark.parametrize(
    "words",
    [
        "[ERROR] Could not find artifact a:b:jar:9 in central",
        "go: example.com/x@v9: unknown revision v9",
        "npm error `npm ci` can only install packages when your package.json and lock agree",
    ],
)
def test_a_wrong_list_of_dependencies_fails(words):
    with pytest.raises(pytest.fail.Exception, match="sh -c"):
        run_fetch(*says(words))


def test_a_program_that_does_not_compile_fails():
    with pytest.raises(pytest.fail.Exception, match=r"Driver.java:3: error: timeout expected"):
        run_build(*says("Driver.java:3: error: timeout expected"))


def test_what_failed_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(building, "CACHE", tmp_path / "cache")
    source = tmp_path / "source"
    source.write_text("1")
    made = []

    def make(folder):
        made.append(folder)
        run_build(*says("", code=len(made) - 2 and 1))

    with pytest.raises(pytest.fail.Exception):
        build("thing", [source], make)
    assert build("thing", [source], make) == build("thing", [source], make)
    assert len(made) == 2
