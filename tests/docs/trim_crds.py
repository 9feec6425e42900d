"""Cuts KubeRay's CRDs down to what docs/cluster uses: `python tests/docs/trim_crds.py CRD... > kuberay_crds.json`.

The CRDs are helm-chart/kuberay-operator/crds/ray.io_rayclusters.yaml and ray.io_rayjobs.yaml of
https://github.com/ray-project/kuberay (Apache License 2.0), here those of v1.7.0: 2.3 MB, nearly all of it keys of pods
that our manifests do not have. Of each object in the manifests, the names of all keys that may stand there are kept,
and the types, limits and required keys of those that do; descriptions go.
"""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

MANIFESTS = Path(__file__).parents[2] / "docs" / "cluster"
KEPT = ("type", "enum", "minimum", "maximum", "minLength", "maxLength", "pattern", "anyOf", "required")


def trimmed(schema: dict[str, Any], values: list[Any]) -> dict[str, Any]:
    """The schema of `values`, which stand at one place of the manifests; keys that they lack may have any value."""
    kept = {key: schema[key] for key in KEPT if key in schema}
    if isinstance(schema.get("items"), dict):
        kept["items"] = trimmed(schema["items"], [item for value in values for item in value])
    if isinstance(schema.get("additionalProperties"), dict):
        kept["additionalProperties"] = trimmed(schema["additionalProperties"], [v for d in values for v in d.values()])
    if "properties" in schema:
        of_key = {key: [value[key] for value in values if key in value] for key in schema["properties"]}
        kept["properties"] = {
            key: trimmed(schema["properties"][key], found) if found else {} for key, found in of_key.items()
        }
        # The API server drops a key that the CRD lacks without a word; here it is an error.
        kept["additionalProperties"] = bool(schema.get("x-kubernetes-preserve-unknown-fields", False))
    return kept


def main() -> None:
    """Print the trimmed schemas of all CRDs that the command line names, by kind."""
    manifests = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(MANIFESTS.glob("*.yaml"))]
    schemas = {}
    for path in sys.argv[1:]:
        crd = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        kind = crd["spec"]["names"]["kind"]
        schema = next(v["schema"]["openAPIV3Schema"] for v in crd["spec"]["versions"] if v["name"] == "v1")
        # The API server knows metadata by itself; a CRD says only that it is an object.
        used = [{**m, "metadata": {}} for m in manifests if m["kind"] == kind]
        schemas[kind] = trimmed(schema, used)
    print(json.dumps(schemas, sort_keys=True, separators=(",", ":")))


if __name__ == "__main__":
    main()
