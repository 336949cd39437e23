"""Croissant metadata of a release (mlcommons.org/croissant/1.0), with the fields for responsible AI."""

import re
from typing import Any

from kvdiag.ledger.card import Release, licences
from kvdiag.records.schema import arrow_schema, json_schema

FILE = "croissant.json"

_TYPES = {"string": "sc:Text", "int64": "sc:Integer", "double": "sc:Float", "bool": "sc:Boolean"}
_LINKS = {
    "apache-2.0": "https://www.apache.org/licenses/LICENSE-2.0",
    "mit": "https://opensource.org/license/mit",
    "cc-by-4.0": "https://creativecommons.org/licenses/by/4.0/",
    "cc-by-sa-4.0": "https://creativecommons.org/licenses/by-sa/4.0/",
}
_RAI = {
    "dataCollection": "Each question is run once with a model's full KV cache and once in every compression cell "
    "(method, setting, protocol), all from one prefill; outputs are scored by the workload's own rule.",
    "dataCollectionType": "Experiments",
    "dataCollectionMissingData": "A metric m has columns m__status and m__reason. m is null exactly where the "
    "status is not available: failed (tried, no valid value), unsupported (the method cannot run here), "
    "not_measured (possible, not collected or not handed on), not_applicable (undefined). The reason is a short "
    "code. A wrong answer is available with score 0. In a complete matrix no planned run lacks a row; "
    "manifest.json names holes.",
    "dataImputationProtocol": "None: nothing is imputed.",
    "dataPreprocessingProtocol": "Rows are sorted by key; values that are not finite become failed: nonfinite.",
    "dataLimitations": "One model and one recipe; English only; signatures are rules with fixed thresholds, not "
    "proven causes; public questions may have been in a model's training data.",
    "dataBiases": "Only questions that the full cache answers rightly can turn wrong, so hard questions are rare "
    "among the failures of a weak model.",
    "dataUseCases": "Asking why and when KV-cache compression turns right answers wrong; testing new methods on "
    "the same questions. Not for ranking models and not for training.",
    "personalSensitiveInformation": "None collected; texts are generated or come from public data sets.",
    "dataReleaseMaintenancePlan": "Releases are tags vX.Y.Z with notes in README.md; errata are named there, rows "
    "never removed in silence.",
}
_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}


def describe(manifest: dict[str, Any], release: Release) -> dict[str, Any]:
    """The JSON-LD of a release: a file object and a record set for each data file, with every column."""
    url = f"https://huggingface.co/datasets/{release.repo}"
    found = licences(manifest, release)
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "name": _identifier(release.repo.rpartition("/")[2]),
        "description": "Runs of a language model with compressed KV caches beside its full cache, and the right "
        "answers that turned wrong with measurements that say why.",
        "conformsTo": ["http://mlcommons.org/croissant/1.0", "http://mlcommons.org/croissant/RAI/1.0"],
        "url": url,
        "version": release.version,
        "license": [_LINKS.get(name, f"https://huggingface.co/datasets?license=license:{name}") for name in found],
        "citeAs": f"@misc{{kvdiag_c2w, title={{kvdiag C2W}}, howpublished={{{url}}}, "
        f"note={{Version {release.version}}}}}",
        "inLanguage": "en",
        "keywords": ["kv-cache", "benchmark", "evaluation", "long-context"],
        **{f"rai:{name}": text for name, text in _RAI.items()},
        "distribution": [_file(f) for f in manifest["files"]],
        "recordSet": [_records(f) for f in manifest["files"]],
    }


def _identifier(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


def _file(entry: dict[str, Any]) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": entry["path"],
        "name": entry["path"],
        "contentUrl": entry["path"],
        "contentSize": f"{entry['bytes']} B",
        "encodingFormat": "application/x-parquet",
        "sha256": entry["sha256"],
    }


def _records(entry: dict[str, Any]) -> dict[str, Any]:
    stem = entry["path"].removeprefix("data/").removesuffix(".parquet")
    schema = json_schema(entry["table"])
    return {
        "@type": "cr:RecordSet",
        "@id": stem,
        "name": stem,
        "description": schema["description"],
        "key": [{"@id": f"{stem}/{key}"} for key in schema["x-key"]],
        "field": [_field(stem, entry, f.name, f.type) for f in arrow_schema(entry["table"])],
    }


def _field(stem: str, entry: dict[str, Any], name: str, kind: Any) -> dict[str, Any]:
    text = str(kind)
    repeated = text.startswith("list<")
    scalar = str(kind.value_type) if repeated else text
    return {
        "@type": "cr:Field",
        "@id": f"{stem}/{name}",
        "name": name,
        "description": json_schema(entry["table"])["properties"][name].get("description", name),
        "dataType": _TYPES[scalar],
        **({"repeated": True} if repeated else {}),
        "source": {"fileObject": {"@id": entry["path"]}, "extract": {"column": name}},
    }
