"""The lake: Parquet tables in a folder or a bucket, their schemas and provenance."""
