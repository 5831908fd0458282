# -*- test-case-name: tests.test_imports -*-
"""
Every module of tests with real processes, and of benchmarks, can be imported: they run late or on request, so
a name that is gone would be found late.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

ROOT = Path(__file__).resolve().parents[1]
#: (Those of C{tests/spark} and C{tests/browser} need more than a small environment has.)
FOLDERS = ("benchmarks", "tests/hostile", "tests/interop", "tests/processes")
#: Modules with further requirements of their own.
_BIG = ("pyspark", "pyarrow", "numpy", "selenium", "moto")

_PROGRAM = f"""
import importlib, sys
wrong = []
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {_BIG}:
            wrong.append(f"{{name}}: {{error}}")
    except ImportError as error:
        wrong.append(f"{{name}}: {{error}}")
print("\\n".join(wrong))
"""


class ImportTests(SynchronousTestCase):
    """In a program of its own."""

    def test_all(self) -> None:
        """No name is missing."""
        names = [
            ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.py"))
            if path.stem not in ("__init__", "__main__")
        ]
        self.assertIn("tests.interop.proxies", names)
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, *names], capture_output=True, text=True, timeout=300, cwd=ROOT,
            stdin=subprocess.DEVNULL,
        )
        self.assertEqual((done.stdout.strip(), done.returncode), ("", 0), done.stderr[-2000:])
