"""What `import ckpttool` does about a Keras that is imported later, with a Keras made of a few lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERAS = """
__version__ = "{version}"
class layers:
    class Layer: pass
class saving:
    registered = {{}}
    @staticmethod
    def register_keras_serializable(package):
        return lambda made: saving.registered.setdefault(f"{{package}}>{{made.__name__}}", made)
"""


def _run(folder: Path, code: str, version: str = "3.9.0") -> str:
    (folder / "keras.py").write_text(KERAS.format(version=version), "utf-8")
    (folder / "tf_keras.py").write_text(KERAS.format(version="2.21.0"), "utf-8")
    program = f"import sys\nsys.path[:0] = [{str(folder)!r}, {str(ROOT)!r}]\n{code}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


SHOW = "print(*(f'{name}={made.__module__}' for name, made in sys.modules['keras'].saving.registered.items()))"


def test_the_layer_is_registered_when_keras_comes_after(tmp_path: Path) -> None:
    code = f"import ckpttool, importlib.util\nimportlib.util.find_spec('keras')\nimport keras\n{SHOW}"
    assert _run(tmp_path, code) == "ckpttool>EmbeddingDotProduct=ckpttool.layers.keras3"


def test_the_layer_is_registered_when_keras_came_before(tmp_path: Path) -> None:
    assert _run(tmp_path, f"import keras, ckpttool\n{SHOW}") == "ckpttool>EmbeddingDotProduct=ckpttool.layers.keras3"


def test_keras_2_gets_the_layer_of_its_own_kind(tmp_path: Path) -> None:
    shown = _run(tmp_path, f"import ckpttool, keras\n{SHOW}", version="2.15.0")
    assert shown == "ckpttool>EmbeddingDotProduct=ckpttool.layers.keras2"


def test_nothing_stays_in_the_import_system_when_both_libraries_have_come(tmp_path: Path) -> None:
    code = (
        "before = list(sys.meta_path)\nimport ckpttool\nassert len(sys.meta_path) == len(before) + 1\n"
        "import keras, tf_keras\nassert sys.meta_path == before\n"
        "assert type(keras.__loader__).__name__ == type(keras.__spec__.loader).__name__ == 'SourceFileLoader'"
    )
    _run(tmp_path, code)
