"""The ground floor: Parquet tables, their schemas, atomic partition writes, DuckDB views.

Import from the modules: ``lake.schemas`` (tables) and ``lake.store`` (:class:`Lake`).
"""
