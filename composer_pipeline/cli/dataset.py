"""Commands from pairs to a published dataset: normalize, dataset, report, export, publish."""

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from composer_pipeline.cli.common import (
    Bar,
    DayFilter,
    JsonOption,
    LakeOption,
    LedgerOption,
    app,
    check_port,
    err,
    named_ledger,
    open_lake,
    show,
)
from composer_pipeline.errors import InputError
from composer_pipeline.files import replace
from composer_pipeline.settings import Settings

if TYPE_CHECKING:
    from composer_pipeline.training.windows import RowCutter


@app.command
def dataset(
    *,
    validation: float | None = None,
    split_by: Annotated[Literal["", "repository", "session"], Parameter(show_choices=False)] = "",
    rules: str = "",
    tokenizer: str = "",
    consent: str = "",
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Write the training tables, split by group of sessions.

    Args:
        validation: share of the groups of sessions that are kept out of training, in place of the
            preference recipe's.
        split_by: repository or session, in place of the preference recipe's.
        rules: preference recipe (COMPOSER_PREFERENCES); its ``split`` decides what is held out,
            its ``contamination`` which sessions are left out, its ``terms`` which answers.
        consent: file that names whose sessions may be published; by default consent.yaml beside
            the lake or in the working folder, if there is one.
        tokenizer: model whose tokens are counted, and to whose window of 8,192 tokens the pairs
            are also cut: a folder, a Hub id or smollm2-135m.
    """
    from composer_pipeline.dataset.build import build_dataset
    from composer_pipeline.preferences.rules import PreferenceRules

    if validation is not None and not 0 <= validation < 1:
        raise InputError(f"--validation must be at least 0 and below 1, not {validation}")
    recipe = PreferenceRules.load(rules or Settings.from_env().preferences)
    with Bar() as progress:
        report = build_dataset(
            open_lake(lake),
            validation_share=validation,
            split_by=split_by,
            rules=recipe,
            tokenizer=tokenizer,
            consent=consent,
            progress=progress,
        )
    show(report.to_dict(), as_json, "dataset")


@app.command
def report(
    *,
    out: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Write the dataset version as one HTML file: its numbers, training runs and example pairs.

    Args:
        out: HTML file to write; reports/dataset-<version>.html in the lake by default.
    """
    from composer_pipeline.report.write import write_report

    store = open_lake(lake)
    root = Settings.from_env().model_copy(update={"lake": store.url}).run_root
    with Bar() as progress:
        made = write_report(store, out or "", run_root=root, progress=progress)
    show(made.to_dict(), as_json, "report")


@app.command
def view(
    *,
    port: int = 3070,
    bundle: Path | None = None,
    ledger: LedgerOption = "",
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Browse sessions, states, answers, pairs and runs in a browser, until interrupted.

    Args:
        port: port of 127.0.0.1 to listen on; 0 is any free one.
        bundle: write the site to this folder instead, to send; it opens without a server.
    """
    from composer_pipeline.view.site import Site, server_of, write_bundle

    store = open_lake(lake)
    check_port(port)
    root = Settings.from_env().model_copy(update={"lake": store.url}).run_root
    with closing(Site(store, root, named_ledger(store, ledger))) as site:
        if bundle is None:
            with server_of(site, port) as server:
                at = f"http://127.0.0.1:{server.server_port}/  (Ctrl-C ends)"
                err.print(at, markup=False, highlight=False, soft_wrap=True)
                server.serve_forever()
            return
        with Bar() as progress:
            made = write_bundle(site, bundle, progress=progress)
    show(made.to_dict(), as_json, "view")


@app.command
def export(
    *,
    format: str,  # noqa: A002  the option's name
    out: Path,
    samples: Path | None = None,
    rules: str = "",
    full_arguments: Annotated[bool, Parameter(negative="")] = False,
    max_tokens: int | None = None,
    tokenizer: str = "",
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Write the dataset in a training format, or whole sessions for other tools.

    Args:
        format: dpo (pairs), kto (unpaired), kto_git (edits that people kept or did not), sft (the
            teachers' consensus), sdpo (hints), sharegpt (pairs for LLaMA-Factory); or for whole
            sessions, which need no dataset: atif (ATIF 1.8), pi (Pi, for trace viewers).
        out: a .parquet file (sharegpt: .jsonl), or a folder for one file per split; for atif and
            pi a folder for one or more files per session.
        samples: Parquet or JSONL of {state_id, student, action}: a model's own actions, which
            replace the agent's as the rejected side.
        rules: preference recipe (COMPOSER_PREFERENCES).
        full_arguments: allow hints that contain the teachers' whole action.
        max_tokens: cut prompts in whole turns, so that prompt and action have at most this many
            tokens; rows that cannot be cut are left out and counted. A folder also gets the chat
            template for which this holds, as chat_template.jinja.
        tokenizer: model whose tokens count: a folder, a Hub id or smollm2-135m.
    """
    from composer_pipeline.exporting.columns import export as run
    from composer_pipeline.exporting.sessions import FORMATS, export_sessions
    from composer_pipeline.preferences.rules import PreferenceRules
    from composer_pipeline.states.second_look import second_look

    store = open_lake(lake)
    if format in FORMATS:
        given = {"--samples": samples, "--rules": rules, "--full-arguments": full_arguments,
                 "--max-tokens": max_tokens, "--tokenizer": tokenizer}  # fmt: skip
        if named := [option for option, value in given.items() if value]:
            raise InputError(f"{named[0]} is about rows; format {format} writes whole sessions")
        with Bar() as progress:
            whole = export_sessions(store, format, out, progress=progress)
            look = second_look(store, progress=progress)
        show({**whole.to_dict(), "second_look": look}, as_json, "export")
        return
    cutter = _cutter(max_tokens, tokenizer)
    report = run(
        store,
        format,
        out,
        samples=samples,
        rules=PreferenceRules.load(rules or Settings.from_env().preferences),
        full_arguments=full_arguments,
        shorten=cutter.cut if cutter else None,
    )
    if cutter and out.suffix != ".parquet":
        replace(out / "chat_template.jinja", cutter.chat_template.encode(), f"--out {out}")
    with Bar() as progress:
        look = second_look(store, progress=progress)
    show({**report.to_dict(), "second_look": look}, as_json, "export")


def _cutter(max_tokens: int | None, tokenizer: str) -> "RowCutter | None":
    if max_tokens is None and not tokenizer:
        return None
    if max_tokens is None or not tokenizer:
        raise InputError("--max-tokens and --tokenizer go together: tokens are those of a model")
    from composer_pipeline.training.models import load_tokenizer, resolve_model
    from composer_pipeline.training.windows import RowCutter

    return RowCutter(load_tokenizer(resolve_model(tokenizer)), max_tokens)


@app.command
def publish(
    *,
    repo: str,
    model: str = "",
    public: Annotated[bool, Parameter(negative="")] = False,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    allow_simulated: Annotated[bool, Parameter(negative="")] = False,
    traces: Annotated[bool, Parameter(negative="")] = False,
    allow_worse_than_base: Annotated[bool, Parameter(negative="")] = False,
    max_review: int = 10,
    consent: str = "",
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Publish the dataset or a model on the Hugging Face Hub in one commit; private by default.

    Args:
        repo: OWNER/NAME.
        model: run folder whose checkpoint is published instead of the dataset, or its merged/.
        public: publish to a public repository; it is created if there is none.
        dry_run: plan and check, show how many rows are added and removed, commit nothing.
        allow_simulated: allow rows of simulated teachers; the card says so.
        traces: also publish the dataset's whole sessions below traces/, for the Hub's viewer; no
            configuration loads them.
        allow_worse_than_base: with --model, allow one whose evaluation finds it worse than its
            base on easy or recovery states; the card says so.
        max_review: refuse a dataset with more distinct values that redaction leaves, but only just,
            for a person to judge; the card counts them.
        consent: file that names whose sessions may be published, the licence, and who attests; by
            default consent.yaml beside the lake or in the working folder. --public needs one.
    """
    from composer_pipeline.publishing.publish import publish as run
    from composer_pipeline.publishing.publish import publish_model

    if allow_worse_than_base and not model:
        raise InputError("--allow-worse-than-base needs --model")
    if traces and model:
        raise InputError("--traces is about the dataset's sessions, which --model does not publish")
    if consent and model:
        raise InputError("--consent is about the dataset, which --model does not publish")
    with Bar() as progress:
        send = (
            partial(publish_model, model, allow_worse_than_base=allow_worse_than_base)
            if model
            else partial(
                run, open_lake(lake), consent=consent, traces=traces, max_review=max_review,
                progress=progress,
            )
        )  # fmt: skip
        report = send(repo, private=not public, dry_run=dry_run, allow_simulated=allow_simulated)
    show(report.to_dict(), as_json, "publish")


@app.command
def normalize(
    *,
    recipe: str = "",
    columns: str = "",
    only: DayFilter = DayFilter(),  # noqa: B008  frozen
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Filter the pairs with a data-juicer recipe; every dropped row is recorded.

    Args:
        recipe: data-juicer recipe (COMPOSER_NORMALIZE); without one every pair is kept and
            data-juicer is not needed.
        columns: only write the flat columns that recipes filter by, as JSON lines, to this file.
    """
    from composer_pipeline.normalization.stage import normalize as run
    from composer_pipeline.normalization.stage import write_columns

    store = open_lake(lake)
    if not store.days("pairs"):
        raise InputError(f"lake {store.url} has no pairs; run pairs first")
    if columns:
        rows = write_columns(store, columns, days=only.days(store, "pairs"))
        show({"rows": rows, "file": columns}, as_json, "normalize")
        return
    path = recipe or Settings.from_env().normalize
    with Bar() as progress:
        report = run(store, path, days=only.days(store, "pairs"), progress=progress)
    show(report.to_dict(), as_json, "normalize")
