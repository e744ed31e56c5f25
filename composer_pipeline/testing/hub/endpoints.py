"""Which request is which endpoint.

Does not belong here: what an endpoint does (``repositories``, ``uploads``, ``reading``).
"""

from collections.abc import Callable

from composer_pipeline.testing.hub import reading, repositories, uploads

_ID = r"(?P<repo>[^/]+/[^/]+?)"
_REV = r"(?P<revision>[^/]+)"
_API = rf"/api/(?P<kind>datasets|models)/{_ID}"
#: A model's pages have no folder of their own.
_PAGE = rf"/(?P<kind>datasets/)?{_ID}"

#: Method, path, kind (as faults and limits name it), endpoint.
ROUTES: list[tuple[str, str, str, Callable[..., None]]] = [
    ("POST", r"/api/repos/create", "create", repositories.create),
    ("POST", r"/api/validate-yaml", "validate-yaml", uploads.validate_yaml),
    ("POST", rf"{_API}/preupload/{_REV}", "preupload", uploads.preupload),
    ("POST", rf"{_PAGE}\.git/info/lfs/objects/batch", "batch", uploads.batch),
    ("PUT", r"/lfs/(?P<oid>[0-9a-f]{64})", "put", uploads.put),
    ("POST", r"/lfs/(?P<oid>[0-9a-f]{64})/verify", "verify", uploads.verify),
    ("GET", rf"{_API}/xet-(?P<how>write|read)-token/{_REV}", "xet-token", uploads.xet_token),
    ("POST", rf"{_API}/commit/{_REV}", "commit", uploads.commit),
    ("POST", rf"{_API}/tag/(?P<revision>.+)", "tag", repositories.tag),
    ("DELETE", rf"{_API}/tag/(?P<revision>.+)", "tag", repositories.untag),
    ("GET", rf"{_API}/refs", "refs", repositories.refs),
    ("PUT", rf"{_API}/settings", "settings", repositories.settings),
    ("POST", rf"{_API}/super-squash/{_REV}", "squash", repositories.squash),
    ("GET", rf"{_API}/lfs-files", "lfs-list", repositories.lfs_files),
    ("POST", rf"{_API}/lfs-files/batch", "lfs-delete", repositories.delete_lfs_files),
    ("GET", rf"{_API}/commits/{_REV}", "commits", repositories.commits),
    ("GET", rf"{_API}/revision/{_REV}", "info", reading.info),
    ("GET", rf"{_API}/tree/{_REV}(?:/(?P<path>.*))?", "tree", reading.tree),
    ("POST", rf"{_API}/paths-info/{_REV}", "tree", reading.paths_info),
    ("GET", rf"{_API}/auth-check", "info", reading.auth_check),
    ("GET", _API, "info", reading.info),
    ("GET|HEAD", rf"{_PAGE}/resolve/{_REV}/(?P<path>.+)", "resolve", reading.resolve),
]
