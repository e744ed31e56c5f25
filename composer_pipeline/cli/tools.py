"""Commands of tool schemas: tools import, tools list."""

from pathlib import Path

from cyclopts import App

from composer_pipeline.cli.common import JsonOption, LakeOption, app, open_lake, show

tools_app = App(name="tools", help="Tool schemas of a user's own Claude Code installation.")
app.command(tools_app)


@tools_app.command(name="import")
def tools_import(
    path: Path, /, *, version: str = "", lake: LakeOption = "", as_json: JsonOption = False
) -> None:
    """Keep the tool schemas of an installation in the lake, for states not yet asked.

    Args:
        path: the installed npm package's folder, or its sdk-tools.d.ts.
        version: version of Claude Code, where no package.json tells it.
    """
    from composer_pipeline.chat.tools import keep, read_installation

    store = open_lake(lake)
    tools = read_installation(path, version)
    keep(store, tools)
    report = {"version": tools.version, "tools": sorted(tools.parameters)}
    show(report, as_json, "tools import")


@tools_app.command(name="list")
def tools_list(*, lake: LakeOption = "", as_json: JsonOption = False) -> None:
    """List the versions whose tool schemas the lake keeps."""
    from composer_pipeline.chat.tools import kept_sets

    kept = {item.version: len(item.parameters) for item in kept_sets(open_lake(lake))}
    show({"versions": kept}, as_json, "tools")
