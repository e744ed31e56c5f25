"""Not a test: data-juicer as it comes (``stock``) or driven by us (``ours``), over pipes.

Each line of standard input is a request, each line of output that begins with RESULT is its
answer. The stock process records what it tries to start and connect to, and is stopped there.
"""

import json
import os
import sys

os.environ.update({"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1"})
tried: list[str] = []


def watch(event: str, arguments: tuple) -> None:
    if event == "subprocess.Popen":
        tried.append(" ".join(map(str, arguments[1])))
        raise OSError("no process is started in a test")
    # A socket of a process of its own (a path) is no connection.
    if event == "socket.getaddrinfo" or (
        event == "socket.connect" and isinstance(arguments[1], tuple)
    ):
        tried.append(f"connect {arguments[0] if event == 'socket.getaddrinfo' else arguments[1]}")
        raise OSError("no connection is opened in a test")


def stock(request: dict) -> dict:
    import datasets
    from data_juicer.core.data import NestedDataset
    from data_juicer.ops import load_ops

    datasets.disable_progress_bars()
    datasets.disable_caching()
    match request["verb"]:
        case "process":
            extra = {"skip_op_error": request.get("skip", False), "auto_op_parallelism": False}
            ops = load_ops([{name: {**args, **extra}} for name, args in request["steps"]])
            data = NestedDataset.from_dict(request["columns"]).process(ops, open_monitor=False)
            wanted = request.get("want", "pair_id")
            return {"out": list(data[wanted]) if len(data) else []}
        case "config":
            from data_juicer.config import init_configs

            return {
                "out": [
                    next(iter(op)) for op in init_configs(["--config", *request["argv"]]).process
                ]
            }
        case "execute":
            from data_juicer.config import init_configs
            from data_juicer.core.executor import DefaultExecutor

            data = DefaultExecutor(init_configs(["--config", *request["argv"]])).run()
            return {"out": list(data["pair_id"])}
        case "make":
            load_ops([{name: args} for name, args in request["steps"]])
            return {"out": "made"}
    raise ValueError(request)


def ours(request: dict) -> dict:
    import pyarrow as pa

    from composer_pipeline.normalization import judge, operators

    match request["verb"]:
        case "process":
            table = pa.table({k: pa.array(v, pa.string()) for k, v in request["columns"].items()})
            steps = [(name, {"text_key": "chosen_text", **args}) for name, args in request["steps"]]
            ops = operators.load_steps(steps, request.get("custom", []))
            drops = judge.judge(table, list(enumerate(ops)))
            gone = {drop.row for drop in drops}
            ids = request["columns"]["pair_id"]
            return {
                "out": [pair_id for row, pair_id in enumerate(ids) if row not in gone],
                "drops": [[d.row, d.step, d.op, d.field, d.stat, d.value, d.bound] for d in drops],
            }
        case "map":
            (op,) = operators.load_steps(
                [(name, {"text_key": "chosen_text", **args}) for name, args in request["steps"]],
                request.get("custom", []),
            )
            texts = request["columns"]["chosen_text"]
            return {"out": judge.evaluate(op, {"chosen_text": texts}, len(texts))}
        case "statistics":
            from composer_pipeline.normalization.judge import columnar

            (op,) = operators.load_steps(
                [(name, {"text_key": "chosen_text", **args}) for name, args in request["steps"]]
            )
            texts = request["columns"]["chosen_text"]
            found = columnar(op, texts)
            assert found is not None
            name, numbers = found
            stats = {"chosen_text": texts, "__dj__stats__": [{} for _ in texts]}
            own = op.compute_stats_batched(stats)["__dj__stats__"]
            return {"columnar": [{name: number} for number in numbers], "own": own}
        case "forked":
            (op,) = operators.load_steps(
                [(name, {"text_key": "chosen_text", **args}) for name, args in request["steps"]]
            )
            judge.POOL_CHARS = 0
            texts = request["columns"]["chosen_text"]
            batch = {"chosen_text": texts}
            pooled = judge.Local(2).run(0, op, batch, len(texts))
            return {
                "out": pooled == judge.evaluate(op, batch, len(texts)),
                "n": len(pooled),
            }
        case "refusals":
            ops = operators.import_data_juicer()
            return {
                "out": {
                    name: [
                        next(k.__name__ for k in cls.__mro__ if k.__module__.endswith("base_op")),
                        operators.refusal(name, cls, ops),
                    ]
                    for name, cls in ops.OPERATORS.modules.items()
                }
            }
        case "acts":
            import socket
            import subprocess

            out = {}
            for name, act in {
                "connect": lambda: socket.create_connection(("127.0.0.1", 9)),
                "process": lambda: subprocess.run(["true"]),
                "shell": lambda: os.system("true"),
                "torch": lambda: __import__("torch"),
                "missing": lambda: (
                    sys.modules["data_juicer.utils.lazy_loader"]
                    .LazyLoader("no_such_module_at_all")
                    .anything
                ),
            }.items():
                try:
                    act()
                    out[name] = "allowed"
                except (PermissionError, ImportError) as error:
                    out[name] = str(error)
            return {"out": out, "torch": "torch" in sys.modules}
    raise ValueError(request)


def main() -> None:
    mode = sys.argv[1]
    answer = stock if mode == "stock" else ours
    out = sys.stdout
    sys.stdout = sys.stderr
    if mode == "stock":
        sys.addaudithook(watch)
        # The wheel lacks nothing here, and an install that is tried is recorded above.
    else:
        from composer_pipeline.normalization import operators

        operators.import_data_juicer()
        operators.guard()
    for line in sys.stdin:
        tried.clear()
        try:
            result = answer(json.loads(line))
        except Exception as error:  # noqa: BLE001 - the test asks for what went wrong
            result = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
        print("RESULT" + json.dumps({**result, "tried": tried}), file=out, flush=True)


if __name__ == "__main__":
    main()
