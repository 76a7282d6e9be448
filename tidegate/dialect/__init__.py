"""SQLAlchemy over an embedded engine: ``create_engine("tidegate:///directory")``, or a live engine through connect_args.

>>> import sqlalchemy as sa, tidegate, tidegate.dialect
>>> app = tidegate.App("hello")
>>> _ = app.table("CREATE TABLE greeted (name VARCHAR PRIMARY KEY)")
>>> with tidegate.open(app) as engine:
...     database = sa.create_engine("tidegate://", connect_args={"engine": engine})
...     sa.inspect(database).get_table_names()
['greeted']
"""

from sqlalchemy.dialects import registry

from tidegate.dialect.dialect import TidegateDialect

registry.register("tidegate", "tidegate.dialect.dialect", "TidegateDialect")

__all__ = ["TidegateDialect"]
