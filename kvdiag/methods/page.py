"""docs/methods.md, from the catalogue."""

from kvdiag.methods.catalogue import FAMILIES, Method, methods

_HEAD = """# Methods

Generated from the catalogue by `kvdiag methods --markdown`; a test fails when they differ.

A method is *verified* when it passes every check of `kvdiag methods verify` (kvdiag/conformance): its view of
the shared cache equals the physically compressed one on four architectures under both protocols (kept positions,
logits within 1e-4 in float32, tokens); it leaves no trace on model and inputs; it is deterministic, alone, in any
order and after other sources; its realised budget is its nominal one; its settings differ; it is no other method
under a new name; a one-token answer sees the compressed cache; a budget inside its window is labelled; it works on
MHA, GQA and MQA, from its least positions on, and in bfloat16 and float16. The digest of the report stands in the
ledger's `methods` table. One exception: a quantizer under `query_agnostic` may round a number otherwise, as the
two prefills differ in length; such cells (logits 1e-4 to 0.05 apart) are counted and their tokens not compared,
while its query-aware cells must agree in full. *Available* methods run without that proof; *catalogued* ones do
not run, and say why.

Query visibility is how much of a question inside the compressed part a score sees: `none`, `window` (the last
queries), `last_query`, `all_queries`, `decode_time` (each step chooses anew).

Retention (`err`, `ecov`) is measured where positions are dropped (`measured_token`), projected from chunks
(`projected_chunk`), and has no meaning where all positions stay addressable (`structural_position`: channels,
quantized numbers, pages): there the columns say `not_applicable: structural_position`. Likelihood, attention and
decoding diagnostics are valid for every method.
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for family in FAMILIES:
        parts.append(f"\n## {family.replace('_', ' ').capitalize()}\n")
        parts += [_entry(m) for m in methods().values() if m.family == family]
    return "".join(parts)


def _entry(method: Method) -> str:
    lines = [
        f"\n### `{method.id}`: {method.name} ({method.state})",
        "",
        f"{method.summary} [Paper]({method.paper}).",
        "",
        f"- transforms {method.transforms}; sees {method.query_visibility}; coverage {method.coverage_type}; "
        f"settings `{method.setting_kind}=…`",
        f"- runs as {method.implementation}; needs {method.needs}; extra passes: {method.extra_passes}",
    ]
    if method.defaults or method.inner_defaults:
        told = ", ".join(f"{k} {v}" for k, v in {**method.defaults, **method.inner_defaults}.items())
        lines.append(f"- defaults: {told}")
    if method.state_reason:
        lines.append(f"- does not run: {method.state_reason}")
    return "\n".join(lines) + "\n"
