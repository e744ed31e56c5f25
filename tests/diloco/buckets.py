"""A bucket on a moto server, for tests in this process and for those it starts."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def bucket_settings(name: str, *, secret: str = "test") -> Iterator[dict[str, str]]:
    """Serve a bucket over HTTP, and give the environment in which it is found."""
    server_module = pytest.importorskip("moto.server")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    settings = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_REGION": "us-east-1",
    }
    import boto3

    client = boto3.client(
        "s3", endpoint_url=settings["AWS_ENDPOINT_URL"], region_name="us-east-1",
        aws_access_key_id="test", aws_secret_access_key=secret,
    )  # fmt: skip
    client.create_bucket(Bucket=name)
    try:
        yield settings
    finally:
        server.stop()
