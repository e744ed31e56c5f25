"""A bucket that speaks S3's own protocol."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    boto3 = pytest.importorskip("boto3", reason="pip install 'moto[server]'")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL", endpoint)
        patch.setenv("AWS_ALLOW_HTTP", "true")
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        # All servers of a process share what they hold.
        httpx.post(f"{endpoint}/moto-api/reset").raise_for_status()
        client.create_bucket(Bucket="bucket")
        yield client
    server.stop()
