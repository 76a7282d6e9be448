"""A forked child can't use what it inherited, and does the parent's files no harm, whatever it tries and however it ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from tills import run_script, tills, total

import tidegate
from tidegate.offline.verify import verify

FORKING = """
    import os, sys, time
    import tidegate
    from tidegate.errors import WrongProcess
    from tills import tills, total

    def refused(what):
        try:
            what()
        except WrongProcess as error:
            assert "forked from it" in str(error), error
            return
        print("not refused:", what, flush=True)
        os._exit(9)
"""


def after(path: Path, expected: int) -> None:
    """What the parent pushed is there, and nothing else."""
    assert verify(tills(), path).same
    with tidegate.open(tills(), path) as engine:
        assert total(engine) == expected


@pytest.mark.parametrize(("executor", "ending"), [("serial", "os._exit(0)"), ("threads", "sys.exit(0)")])
def test_every_door_refuses_a_child(tmp_path: Path, executor: str, ending: str) -> None:
    """Each door says why, also with locks held by threads that the child does not have; then the parent goes on."""
    run_script(
        FORKING
        + f"""
    path = sys.argv[1]
    engine = tidegate.open(tills(), path, executor={executor!r})
    ticket = engine.push("sales", [("a", 1)])
    engine.run_until_idle()
    ticket.result()
    subscription = engine.subscribe("sums")
    durable = engine.subscribe_durably("sums", "mine")
    batcher = engine.batcher("sales", count=100)
    batcher.add(("a", 2))
    held = __import__("threading").Thread(target=lambda: engine.lock.acquire() and time.sleep(60), daemon=True)
    held.start()
    while engine.lock.acquire(blocking=False):
        engine.lock.release()
    child = os.fork()
    if not child:
        refused(lambda: engine.push("sales", [("a", 10)]))
        refused(lambda: engine.feed("sales", [("a", 10)] * 500))
        refused(lambda: engine.call("reset", "a"))
        refused(lambda: engine.query("FROM totals"))
        refused(lambda: engine.subscribe("sums"))
        refused(lambda: engine.checkpoint())
        refused(lambda: engine.close())
        refused(lambda: engine.abandon())
        refused(lambda: engine.batcher("sales", count=1))
        refused(lambda: engine.ingest("sales", None))
        refused(lambda: engine.deliver("sums", None))
        refused(lambda: engine.__enter__())
        refused(lambda: batcher.add(("a", 10)))
        refused(lambda: batcher.close())
        refused(lambda: subscription.get())
        refused(lambda: list(subscription))
        refused(lambda: durable.take(1))
        assert ticket.result() is None and "forked" in repr(engine)
        with tidegate.open(tills()) as other:  # its own is fine
            other.push("sales", [("a", 3)])
            assert total(other) == 3
        {ending}
    assert os.waitpid(child, 0)[1] == 0
    os._exit(0)
    """,
        tmp_path / "data",
    )
    after(tmp_path / "data", 1)


@pytest.mark.parametrize("ending", ["sys.exit(0)", "del engine, base; __import__('gc').collect()"])
def test_the_parent_goes_on_after_any_end_of_a_child(tmp_path: Path, ending: str) -> None:
    """The child neither checkpoints DuckDB nor writes the log; the parent works, closes, reopens and verifies."""
    run_script(
        FORKING
        + f"""
    path = sys.argv[1]
    engine = tidegate.open(tills(), path)
    for _ in range(300):
        engine.push("sales", [("a", 1)])
    engine.checkpoint()
    engine.feed("sales", [("a", 1)] * 300)
    base = engine.database.base.connection
    base.execute("BEGIN")
    base.execute("CREATE TABLE unfinished AS SELECT range FROM range(1000)")
    def files():
        return {{f: (s.st_size, s.st_mtime_ns) for r, _, names in os.walk(path) for n in names
                for f in [os.path.join(r, n)] for s in [os.stat(f)]}}
    engine.durable.writer.force(engine.durable.writer.end)
    before = files()
    child = os.fork()
    if not child:
        {ending}
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert files() == before, (before, files())
    base.execute("ROLLBACK")
    for _ in range(300):
        engine.push("sales", [("a", 1)])
    engine.close()
    with tidegate.open(tills(), path) as engine:
        assert total(engine) == 900
        engine.push("sales", [("a", 100)])
    """,
        tmp_path / "data",
    )
    after(tmp_path / "data", 1000)


def test_a_child_that_forks_in_a_procedure_commits_nothing(tmp_path: Path) -> None:
    run_script(
        FORKING
        + """
    children = []
    def fork(txn, sales):
        if not children:
            children.append(os.fork())
    path = sys.argv[1]
    with tidegate.open(tills(fork), path) as engine:
        try:
            engine.push("sales", [("a", 1)])
        except WrongProcess:
            os._exit(0)
        assert children[0], "the child went on"
        assert os.waitpid(children[0], 0)[1] == 0
        engine.push("sales", [("a", 2)])
    """,
        tmp_path / "data",
    )
    with tidegate.open(tills(), tmp_path / "data") as engine:  # another version of the app, so it can't verify
        assert total(engine) == 3


def test_multiprocessing_with_fork(tmp_path: Path) -> None:
    """A worker that is handed an engine says why it can't use it; the with block around everything ends as usual."""
    told = run_script(
        FORKING
        + """
    import multiprocessing
    def work(engine):
        engine.push("sales", [("a", 100)])
    context = multiprocessing.get_context("fork")
    with tidegate.open(tills(), sys.argv[1]) as engine:
        engine.push("sales", [("a", 1)])
        child = context.Process(target=work, args=(engine,))
        child.start()
        child.join()
        assert child.exitcode == 1
        engine.push("sales", [("a", 2)])
    """,
        tmp_path / "data",
    )
    assert "this Engine belongs to process" in told
    after(tmp_path / "data", 3)


def test_a_child_that_lives_on_does_not_keep_the_directory(tmp_path: Path) -> None:
    """The parent closes and opens again while a child lives; the child itself can't open what it inherited."""
    run_script(
        FORKING
        + """
    path = sys.argv[1]
    engine = tidegate.open(tills(), path)
    engine.push("sales", [("a", 1)])
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        os.read(told, 1)  # the parent has closed it
        try:
            tidegate.open(tills(), path)
        except WrongProcess as error:
            assert "was open in process" in str(error), error
            os._exit(0)
        os._exit(9)
    engine.close()
    with tidegate.open(tills(), path) as engine:
        engine.push("sales", [("a", 2)])
    os.write(tell, b"x")
    assert os.waitpid(child, 0)[1] == 0
    """,
        tmp_path / "data",
    )
    after(tmp_path / "data", 3)


def test_worker_processes_of_windows_survive_a_child(tmp_path: Path) -> None:
    """They belong to the parent: a child that ends does not end them."""
    run_script(
        FORKING
        + """
    from tidegate.streams.windows.evaluate.processes import Pool
    pool = Pool([])
    pool.start(1)
    pool.greet(None)
    child = os.fork()
    if not child:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert pool.members[0].process.poll() is None
    pool.close()
    """
    )


def test_a_client_and_what_it_follows(tmp_path: Path) -> None:
    """Two processes on one connection would read each other's answers."""
    run_script(
        FORKING
        + """
    clients = [tidegate.connect("unix:" + sys.argv[1]), tidegate.connect("http://127.0.0.1:9", retry_s=0)]
    child = os.fork()
    if not child:
        for client in clients:
            refused(lambda: client.push("sales", [("a", 1)]))
            refused(lambda: client.query("FROM totals"))
            refused(lambda: client.close())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    for client in clients:
        client.close()
    """,
        tmp_path / "socket",
    )
