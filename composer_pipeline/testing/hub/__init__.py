"""A Hugging Face Hub on the loopback interface that the real client libraries talk to.

Set ``HF_ENDPOINT`` to :attr:`LoopbackHub.endpoint` before the client is imported, or pass
``endpoint=`` to it; ``python -m composer_pipeline.testing.hub`` serves one until it is ended. The
process keeps everything in memory; what ``hf_xet`` uploads lies in a folder that it writes itself.
``HF_HUB_DISABLE_XET=1`` chooses LFS.

Right as on the Hub: private repositories need the token; a token may be one that reads, or that
opens pull requests only; a commit whose ``parentCommit`` is not the head is a 412 and changes
nothing; a PUT whose bytes differ from the announced SHA-256 is a 400; a commit naming an object
that never arrived, whether by LFS or by Xet, is a 400; Parquet and safetensors are LFS and text is
not; missing things are 404 with ``X-Error-Code``; the files of a gated repository are a 403 with
it; a renamed repository redirects; commit ids depend on content and parent. Datasets and models
are kept apart.
"""
