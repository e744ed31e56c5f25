"""``python -m composer_pipeline.testing.hub``: a Hub on this machine until it is ended.

It prints its address and a token, and ends by itself on SIGINT, SIGTERM and SIGHUP. What was
published is gone then.
"""

import argparse
import signal
import threading

from composer_pipeline.testing.hub.server import LoopbackHub


def main() -> None:
    """Serve until a signal comes."""
    parser = argparse.ArgumentParser(prog="composer_pipeline.testing.hub", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="default: a free one")
    parser.add_argument("--token", default="hf_loopback", help="the only token that it takes")
    options = parser.parse_args()
    ended = threading.Event()
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), lambda *_: ended.set())
    with LoopbackHub(options.token, port=options.port) as hub:
        print(f"HF_ENDPOINT={hub.endpoint}\nHF_TOKEN={hub.token}", flush=True)
        ended.wait()


if __name__ == "__main__":
    main()
