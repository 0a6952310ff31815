"""Import paths of a job's configuration: what is there is found, a mistake is one line, a broken module keeps its traceback."""

from pathlib import Path

import pytest

from leto.core import plugins
from leto.core.errors import ConfigError


def test_it_finds_what_the_path_names() -> None:
    assert plugins.load("pathlib:Path") is Path


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("pathlib", "'pathlib' is not an import path of the form module:name"),
        (":Path", "':Path' is not an import path of the form module:name"),
        ("no_such_module:f", "cannot import 'no_such_module:f': No module named 'no_such_module'"),
        ("pathlib:Pat", "cannot import 'pathlib:Pat': module pathlib has no 'Pat'"),
    ],
)
def test_a_mistake_is_one_line(path: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plugins.load(path)
    assert str(caught.value) == message


def test_a_module_that_breaks_while_it_is_imported_is_not_a_wrong_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_plugin.py").write_text("import os\nos.no_such_function()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(AttributeError, match="no_such_function"):
        plugins.load("broken_plugin:install")
