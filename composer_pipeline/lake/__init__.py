"""The ground floor: Parquet tables, their schemas, atomic partition writes, DuckDB views.

Import from the modules: ``lake.tables`` (tables) and ``lake.store`` (:class:`Lake`).
"""
