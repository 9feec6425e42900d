"""Tables of the keys that other trainers have, with their defaults, from the trainers' own sources; none of them runs.

    python -m tools.framework_keys FOLDER

writes `frameworks/keys/<framework>-<version>.tsv` anew, for each source in FOLDER that is listed in `TABLES`: unpacked
wheels (`trl-1.16.0/trl/…`) and checkouts, by name and version. A line is a key, its default as JSON (`?`: computed),
and a note: empty, `+` (Hydra wants this prefix), `megatron` (only with that backend), or `dead: ` and why the key does
nothing. A key that ends in `*` stands for all that begin so. The same sources give the same bytes.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

OUT = Path(__file__).resolve().parent.parent / "frameworks" / "keys"
COMPUTED = object()
"""A default that follows from other settings, or from the machine."""

Row = tuple[str, object, str]

DEAD: dict[str, dict[str, str]] = {
    "verl": {
        "actor_rollout_ref.actor.grad_clip": "engines clip by actor_rollout_ref.actor.optim.clip_grad",
        "actor_rollout_ref.rollout.over_sample_rate": "nothing reads it: the rate is declared, no sample is aborted",
        "actor_rollout_ref.rollout.checkpoint_engine.backend": "the synchronous trainer sets it to naive",
        "algorithm.filter_groups.max_num_gen_batches": "ignored with a warning; use max_inflight_gen_batches",
    },
    "slime": {},
    "trl": {
        "sync_ref_model": "does nothing while beta is 0: no reference model is made then",
    },
    "skyrl": {},
    "openrlhf": {
        "--actor.muon.ns_steps": "a placeholder: DeepSpeed sets 5 itself",
        "--critic.muon.ns_steps": "a placeholder: DeepSpeed sets 5 itself",
    },
}
OPEN = {
    "verl": (
        "actor_rollout_ref.rollout.engine_kwargs.vllm.*",
        "actor_rollout_ref.rollout.engine_kwargs.sglang.*",
        "actor_rollout_ref.rollout.engine_kwargs.trtllm.*",
        "actor_rollout_ref.model.override_config.*",
        "actor_rollout_ref.actor.optim.override_optimizer_config.*",
        "actor_rollout_ref.actor.megatron.override_transformer_config.*",
        "actor_rollout_ref.actor.megatron.override_ddp_config.*",
        "actor_rollout_ref.actor.megatron.override_mcore_model_config.*",
        "actor_rollout_ref.ref.megatron.override_transformer_config.*",
        "critic.megatron.override_transformer_config.*",
        "critic.optim.override_optimizer_config.*",
        "data.apply_chat_template_kwargs.*",
        "ray_kwargs.*",
        "trainer.v1.sampler.sampler_kwargs.*",
    ),
    "skyrl": (
        "generator.inference_engine.engine_init_kwargs.*",
        "generator.inference_engine.speculative_config.*",
        "generator.chat_template_kwargs.*",
        "generator.sampling_params.additional_kwargs.*",
        "trainer.policy.megatron_config.transformer_config_kwargs.*",
        "trainer.policy.megatron_config.optimizer_config_kwargs.*",
        "trainer.policy.model_config_kwargs.*",
        "environment.skyrl_gym.*",
    ),
}
"""What takes any further key."""


# --- Python sources -------------------------------------------------------------------------------------------------


def value_of(node: ast.expr | None, names: dict[str, Any] | None = None) -> Any:
    """The value of a literal, of arithmetic on literals, or of a known name; else COMPUTED."""
    if node is None:
        return None
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        pass
    if isinstance(node, ast.Name) and names and node.id in names:
        return names[node.id]
    if isinstance(node, ast.Attribute):
        return (names or {}).get(ast.unparse(node), COMPUTED)
    if isinstance(node, ast.BinOp):
        left, right = value_of(node.left, names), value_of(node.right, names)
        work: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
            ast.Mult: lambda a, b: a * b, ast.Pow: lambda a, b: a**b, ast.Add: lambda a, b: a + b,
        }  # fmt: skip
        if COMPUTED not in (left, right) and type(node.op) in work:
            return work[type(node.op)](left, right)
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("int", "float", "str") and len(node.args) == 1:
        inner = value_of(node.args[0], names)
        return (
            COMPUTED if inner is COMPUTED else {"int": int, "float": float, "str": str}[ast.unparse(node.func)](inner)
        )
    if isinstance(node, ast.IfExp) and isinstance(node.test, ast.Compare):
        left, right = value_of(node.test.left, names), value_of(node.test.comparators[0], names)
        if COMPUTED not in (left, right) and isinstance(node.test.ops[0], ast.Eq):
            return value_of(node.body if left == right else node.orelse, names)
    return COMPUTED


def text_of(node: ast.expr, names: dict[str, Any]) -> str | None:
    """A string, or an f-string of known names."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        parts = [
            part.value if isinstance(part, ast.Constant) else value_of(part.value, names)  # type: ignore[attr-defined]
            for part in node.values
        ]
        return None if COMPUTED in parts else "".join(str(part) for part in parts)
    return None


def argparse_rows(source: str) -> Iterator[Row]:
    """A row for each flag that `add_argument` (or a function like it, slime's `reset_arg`) makes."""
    yield from _flags(ast.parse(source).body, {})


def _flags(body: list[ast.stmt], names: dict[str, Any]) -> Iterator[Row]:
    for statement in body:
        if isinstance(statement, ast.For) and isinstance(statement.target, ast.Name):
            values = value_of(statement.iter, names)
            for value in () if values is COMPUTED else values:
                yield from _flags(statement.body, {**names, statement.target.id: value})
            continue
        for name in ("body", "orelse", "finalbody"):
            yield from _flags(getattr(statement, name, []), names)
        if isinstance(statement, ast.Expr | ast.Assign) and isinstance(statement.value, ast.Call):
            yield from _flag(statement.value, names)


def _flag(call: ast.Call, names: dict[str, Any]) -> Iterator[Row]:
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if called not in ("add_argument", "_add_argument", "reset_arg"):
        return
    flags = [text for node in call.args if (text := text_of(node, names)) and text.startswith("--")]
    options = {keyword.arg: keyword.value for keyword in call.keywords}
    action = ast.unparse(options["action"]).strip("'\"") if "action" in options else ""
    default = value_of(options.get("default"), names)
    if action in ("store_true", "store_false") and "default" not in options:
        default = action == "store_false"
    if action == "argparse.BooleanOptionalAction" or action == "BooleanOptionalAction":
        flags += [f"--no-{flag.removeprefix('--')}" for flag in flags]
    yield from ((flag, default, "") for flag in flags)


class Classes:
    """Dataclasses of some modules by name: their fields, inherited ones first, with annotation and default."""

    def __init__(self, *paths: Path) -> None:
        self._nodes: dict[str, ast.ClassDef] = {}
        for path in paths:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    self._nodes.setdefault(node.name, node)

    def __contains__(self, name: str) -> bool:
        return name in self._nodes

    def fields(self, name: str) -> dict[str, tuple[str, Any, ast.expr | None]]:
        """(annotation, default, the default's expression) by field; {} for a class that is not known."""
        node = self._nodes.get(name)
        if node is None:
            return {}
        found: dict[str, tuple[str, Any, ast.expr | None]] = {}
        for base in node.bases:
            found |= self.fields(ast.unparse(base).split("[")[0].split(".")[-1])
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.target.id[0] != "_":
                found[item.target.id] = (ast.unparse(item.annotation), self._default(item.value), item.value)
        return found

    def _default(self, node: ast.expr | None) -> Any:
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("field", "Field"):
            options = {keyword.arg: keyword.value for keyword in node.keywords}
            if "default" in options:
                return self._default(options["default"])
            factory = options.get("default_factory")
            if factory is None:
                return self._default(node.args[0]) if node.args else None
            return {"list": [], "dict": {}}.get(ast.unparse(factory), self._made(factory))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in self._nodes:
            return self.fields(ast.unparse(node.value)).get(node.attr, ("", COMPUTED, None))[1]
        return value_of(node)

    @staticmethod
    def _made(factory: ast.expr) -> Any:
        return value_of(factory.body) if isinstance(factory, ast.Lambda) else COMPUTED

    def rows(self, name: str, prefix: str = "", note: str = "") -> Iterator[Row]:
        """Rows of the fields, those of a field that is a dataclass itself below its name."""
        for key, (annotation, default, _) in self.fields(name).items():
            inner = next((word for word in _words(annotation) if word in self and word != name), None)
            yield from self.rows(inner, f"{prefix}{key}.", note) if inner else [(f"{prefix}{key}", default, note)]


def _words(annotation: str) -> list[str]:
    return "".join(c if c.isalnum() or c == "_" else " " for c in annotation).split()


# --- One function a framework -----------------------------------------------------------------------------------------


def verl(root: Path) -> Iterator[Row]:
    """Keys of the composed YAML, of both backends, and fields of the classes that their sections name (`+`)."""
    folder = root / "verl/trainer/config"
    classes = Classes(*sorted((root / "verl/workers/config").glob("*.py")), *sorted(folder.glob("*.py")))
    rows: dict[str, Row] = {}
    for name, note in (("_generated_ppo_trainer.yaml", ""), ("_generated_ppo_megatron_trainer.yaml", "megatron")):
        tree = yaml.safe_load((folder / name).read_text(encoding="utf-8"))
        found = list(_flat(tree, ""))
        for key, value in found:
            rows.setdefault(key, (key, COMPUTED if isinstance(value, str) and "${" in value else value, note))
        for key, value in found:
            if key.endswith("._target_") and (section := str(value).split(".")[-1]) in classes:
                for row in classes.rows(section, key.removesuffix("_target_"), "+"):
                    below = any(each.startswith(f"{row[0]}.") for each in rows)
                    if not below:
                        rows.setdefault(row[0], row)
    yield from (row for row in rows.values() if not row[0].endswith("_target_"))
    yield from ((f"{key}", None, "") for key in ("model_engine", "hydra.*"))


def _flat(node: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from _flat(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, node


def trl(root: Path) -> Iterator[Row]:
    """Fields that `trl grpo --config` takes."""
    others = root.parent / "transformers-5.19.0" / "transformers" / "training_args.py"
    folder = root / "trl"
    classes = Classes(
        folder / "trainer/grpo_config.py", folder / "trainer/base_config.py", others,
        folder / "trainer/model_config.py", folder / "scripts/utils.py", folder / "scripts/grpo.py",
    )  # fmt: skip
    seen: dict[str, Row] = {}
    for name in ("GRPOConfig", "GRPOScriptArguments", "ModelConfig", "DatasetMixtureConfig"):
        for key, (_, default, _node) in classes.fields(name).items():
            seen.setdefault(key, (key, default, ""))
    yield from seen.values()
    yield "env", None, ""


def openrlhf(root: Path) -> Iterator[Row]:
    """Flags of `openrlhf.cli.train_ppo_ray`."""
    yield from argparse_rows((root / "openrlhf/cli/train_ppo_ray.py").read_text(encoding="utf-8"))


def skyrl(root: Path) -> Iterator[Row]:
    """Keys of the training entry point's configuration."""
    paths = [root / "skyrl/train/config/config.py", *sorted(root.glob("skyrl-gym/skyrl_gym/envs/*/env.py"))]
    yield from Classes(*paths).rows("SkyRLTrainConfig")


def slime(root: Path) -> Iterator[Row]:
    """slime's own flags, Megatron's, and SGLang's behind `--sglang-`, as its parser puts them together."""
    seen: dict[str, Row] = {}
    skipped = {
        "model-path", "config", "trust-remote-code", "random-seed", "enable-memory-saver", "tp-size", "port", "nnodes",
        "node-rank", "dist-init-addr", "gpu-id-step", "base-gpu-id", "nccl-port", "skip-server-warmup",
        "enable-return-routed-experts",
    }  # fmt: skip
    utils, engines = root / "slime/utils/arguments.py", root / "slime/backends/sglang_utils/arguments.py"
    for row in argparse_rows(utils.read_text(encoding="utf-8")):
        seen.setdefault(row[0], row)
    for row in argparse_rows(engines.read_text(encoding="utf-8")):
        seen.setdefault(row[0], row)
    for key, default, note in _sglang(root.parent / "sglang-0.5.15.post1"):
        if key not in skipped:
            seen.setdefault(f"--sglang-{key}", (f"--sglang-{key}", default, note))
    for row in (*_megatron(root.parent / "megatron-2026-08"), *_patched(root / "docker/patch/latest/megatron.patch")):
        seen.setdefault(row[0], row)
    yield from seen.values()
    yield "--router-*", None, ""


def vime(root: Path) -> Iterator[Row]:
    """vime's flags: slime's and Megatron's, and vLLM's behind `--vllm-` in place of SGLang's."""
    skipped = {
        "model", "served-model-name", "config", "tokenizer", "tokenizer-mode", "tokenizer-revision",
        "trust-remote-code", "seed", "dtype", "tensor-parallel-size", "nnodes", "node-rank", "master-addr",
        "master-port",
        "data-parallel-backend", "distributed-executor-backend", "port", "host", "enable-return-routed-experts",
    }  # fmt: skip
    yield from (row for row in slime(root) if not row[0].startswith("--sglang-"))
    own: tuple[Row, ...] = (
        ("--vllm-router-ip", None, ""), ("--vllm-router-port", None, ""),
        ("--vllm-router-policy", "consistent_hash", ""), ("--vllm-server-concurrency", 512, ""),
        ("--vllm-enable-deterministic-inference", False, ""), ("--vllm-weight-transfer-timeout-sec", 900.0, ""),
        ("--vllm-weight-sync-packed", True, ""), ("--no-vllm-weight-sync-packed", None, ""),
        ("--vllm-config", None, ""),
    )  # fmt: skip
    yield from own
    folder = root.parent / "vllm-0.32.0" / "vllm"
    classes = Classes(folder / "engine/arg_utils.py", *sorted((folder / "config").glob("*.py")))
    names = {row[0] for row in own}
    for key, (annotation, default, _) in {**classes.fields("EngineArgs"), **classes.fields("AsyncEngineArgs")}.items():
        flag = key.replace("_", "-")
        if flag not in skipped and f"--vllm-{flag}" not in names:
            yield f"--vllm-{flag}", default, ""
            if annotation.startswith("bool"):
                yield f"--vllm-no-{flag}", None, ""


def _sglang(root: Path) -> Iterator[Row]:
    for path in (root / "sglang/srt/server_args.py", *sorted((root / "sglang/srt/arg_groups/fields").glob("*.py"))):
        classes = Classes(path)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            for key, (annotation, default, _) in (
                classes.fields(node.name).items() if isinstance(node, ast.ClassDef) else ()
            ):
                arg = next(
                    (each for each in ast.walk(ast.parse(annotation)) if isinstance(each, ast.Call)
                     and ast.unparse(each.func) == "Arg"), None,
                )  # fmt: skip
                options = {} if arg is None else {keyword.arg: value_of(keyword.value) for keyword in arg.keywords}
                if not annotation.startswith("A[") or options.get("no_cli"):
                    continue
                flags = [options.get("cli_name") or "--" + key.replace("_", "-"), *(options.get("aliases") or [])]
                yield from ((flag.removeprefix("--"), default, "") for flag in flags if flag.startswith("--"))
    for flag, default, note in argparse_rows((root / "sglang/srt/server_args.py").read_text(encoding="utf-8")):
        yield flag.removeprefix("--"), default, note


def _megatron(root: Path) -> Iterator[Row]:
    source = (root / "megatron/training/arguments.py").read_text(encoding="utf-8")
    yield from argparse_rows(source)
    paths = [*sorted((root / "megatron/training/config").glob("*.py")), *sorted((root / "megatron/core").glob("*.py"))]
    classes = Classes(*paths, root / "megatron/core/transformer/transformer_config.py")
    for factory in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
        if ast.unparse(factory.func) != "ArgumentGroupFactory" or not isinstance(factory.args[0], ast.Name):
            continue
        for key, (annotation, default, node) in classes.fields(factory.args[0].id).items():
            flag = key.replace("_", "-")
            meta = next((value_of(k.value) for k in getattr(node, "keywords", ()) if k.arg == "metadata"), None)
            named = meta.get("argparse_meta", {}).get("arg_names") if isinstance(meta, dict) else None
            if named:
                yield from ((each, default, "") for each in named)
            elif annotation.startswith("bool") and default is True:
                yield from ((f"--{word}-{flag}", False, "") for word in ("no", "disable"))
            else:
                yield f"--{flag}", default, ""


def _patched(patch: Path) -> Iterator[Row]:
    """Flags that slime's patch adds to Megatron: of its parser, and fields of its transformer's configuration."""
    section = ""
    for line in patch.read_text(encoding="utf-8").splitlines():
        if line.startswith("+++ "):
            section = line
        elif match := re.match(r"\+\s+group\.add_argument\(['\"](--[\w-]+)", line):
            yield match[1], False, ""
        elif section.endswith("transformer_config.py") and (match := re.match(r"\+    (\w+): bool = (\w+)", line)):
            yield f"--{match[1].replace('_', '-')}", match[2] == "True", ""


TABLES: tuple[tuple[str, str, Callable[[Path], Iterator[Row]], str], ...] = (
    ("verl", "0.9.1", verl, "verl-0.9.1"),
    ("trl", "1.16.0", trl, "trl-1.16.0"),
    ("openrlhf", "0.11.2", openrlhf, "openrlhf-0.11.2"),
    ("skyrl", "0.3.0", skyrl, "skyrl-0.3.0"),
    ("skyrl", "0.4.0", skyrl, "skyrl-0.4.0"),
    ("slime", "0.3.1", slime, "slime-0.3.1"),
    ("vime", "2026-08", vime, "slime-0.3.1"),
)


def table(framework: str, version: str, rows: Iterator[Row], source: str) -> str:
    """The text of a table, keys in order."""
    dead = DEAD.get("slime" if framework == "vime" else framework, {})
    lines: dict[str, str] = {}
    for key, default, note in rows:
        shown = "?" if default is COMPUTED else json.dumps(default, default=lambda _: "?", ensure_ascii=False)
        lines.setdefault(key, f"{key}\t{shown}\t{'dead: ' + dead[key] if key in dead else note}".rstrip("\t"))
    for key in OPEN.get(framework, ()):
        lines.setdefault(key, f"{key}\tnull")
    assert set(dead) <= set(lines), f"{framework}: dead keys that do not exist: {sorted(set(dead) - set(lines))}"
    head = f"# {framework} {version}: keys, defaults, notes; made of {source} by tools/framework_keys.py\n"
    return head + "".join(f"{lines[key]}\n" for key in sorted(lines))


def main(folder: Path) -> None:
    """Write the tables whose sources are in `folder`."""
    OUT.mkdir(exist_ok=True)
    for framework, version, rows, source in TABLES:
        if (folder / source).is_dir():
            text = table(framework, version, rows(folder / source), source)
            (OUT / f"{framework}-{version}.tsv").write_text(text, encoding="utf-8")
            print(f"{framework}-{version}.tsv: {text.count(chr(10)) - 1} keys")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
