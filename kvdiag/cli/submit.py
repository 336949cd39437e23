"""`kvdiag submit` and `kvdiag merge`."""

import json
from pathlib import Path
from typing import Any

import click

from kvdiag.cli import options
from kvdiag.cli.push import named_as
from kvdiag.errors import DataError, UsageError


@click.command()
@click.argument("evaluation", metavar="EVALUATION")
@click.argument("repo", metavar="REPO")
@click.option("--contact", required=True, metavar="TEXT", help="Who offers it, and how to reach them: public.")
@click.option("--out", metavar="DIR", help="Write the packed submission there too.")
@click.option("--dry-run", is_flag=True, help="Pack and review, and stop.")
@options.as_json
def submit(evaluation: str, repo: str, contact: str, out: str | None, dry_run: bool, as_json: bool) -> None:
    """Offer an evaluation to a data set on the Hub as a pull request.

    It is reviewed first as a maintainer would: valid rows, the data set's own controls, nothing overwritten.
    Source texts and your code stay with you; the code's hash goes along.

    \b
    Examples:
      kvdiag submit evaluations/mypress-86a5c0e8 org/c2w --contact "A. Person <a@example.org>" --dry-run
      kvdiag submit evaluations/mypress-86a5c0e8 org/c2w --contact "A. Person <a@example.org>"
    """
    from kvdiag.ledger.layout import find
    from kvdiag.publish import submission

    if not Path(evaluation).is_dir():
        raise UsageError(f"EVALUATION {evaluation}: no such folder")
    if out and Path(out).exists():
        raise UsageError(f"--out {out}: is there already; choose another")
    if "@" in repo or (Path(repo).is_dir() and not dry_run):
        raise UsageError(f"REPO {repo}: a pull request needs org/name; a folder goes with --dry-run only")
    with named_as("EVALUATION"):
        folder = find(evaluation)
    with named_as("REPO"):
        base = find(repo)
    packed, address = submission.submit(folder, base, repo, contact, dry_run)
    if out:
        packed.write(Path(out))
    if as_json:
        click.echo(json.dumps({"pull_request": address, **packed.facts}, ensure_ascii=False))
        return
    facts = packed.facts
    click.echo(f"{packed.folder}: {facts['runs']} runs, {facts['answered']} answered; reviewed, nothing found")
    for name, content in packed.files.items():
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        click.echo(f"  {size:>12,} {packed.folder}/{name}")
    click.echo(f"pull request: {address}" if address else "nothing was sent (--dry-run)")


@click.command()
@click.argument("data", metavar="LEDGER|REPO")
@click.argument("submission", metavar="SUBMISSION")
@click.option("--out", required=True, metavar="DIR", help="Ledger folder to write.")
@click.option("--sample", type=click.IntRange(0), default=0, show_default=True, help="Rows to run again first.")
@click.option("--method", metavar="file.py:Class", help="The submitted method, to run the sample.")
@click.option(
    "--model", metavar="PATH", help="Where the ledger's model lies, if elsewhere than when it was built."
)
@click.option(
    "--seed", type=click.IntRange(0), help="Of the draw of the sample. Default: drawn anew, and printed."
)
@options.as_json
def merge(
    data: str,
    submission: str,
    out: str,
    sample: int,
    method: str | None,
    model: str | None,
    seed: int | None,
    as_json: bool,
) -> None:
    """Take a submission into a new version of a ledger, for its maintainer.

    It is reviewed; with --sample rows of it are run again, and all must give the same tokens, kept positions and
    likelihood. The method's file must be the submitted one. Then validate and push the new ledger.

    \b
    Example:
      kvdiag merge org/c2w submissions/mypress-86a5c0e8 --out ledgers/next --sample 8 --method my_press.py:MyPress
    """
    from kvdiag.ledger.layout import find
    from kvdiag.publish.merge import merge as run

    if not Path(submission).is_dir():
        raise UsageError(f"SUBMISSION {submission}: no such folder")
    for flag, value in (("--method", method), ("--model", model), ("--seed", seed)):
        if value is not None and not sample:
            raise UsageError(f"{flag} {value}: is for running rows again; say how many with --sample N")
    with named_as("SUBMISSION"):
        offered = find(submission)
    with named_as("LEDGER|REPO"):
        base = find(data)
        again = _rerun(base, offered, method, model) if sample and method else None
        manifest = run(base, offered, Path(out), sample, again, seed)
    entry = manifest["recipe"]["merged"][-1]
    if as_json:
        click.echo(json.dumps(manifest, ensure_ascii=False))
        return
    signed = f"{entry['submitter']}; {entry['verification']}"
    click.echo(f"merged {entry['runs']} runs of {entry['method']} ({signed}) into {out}")
    if "sample_seed" in entry:
        click.echo(f"  the sample was drawn with --seed {entry['sample_seed']}")
    for hole in manifest["holes"]:
        click.echo(f"  {hole}")
    click.echo(f"Next:\n  kvdiag push {out} ORG/NAME --dry-run")


def _rerun(base: Path, offered: Path, spec: str, model: str | None) -> Any:
    """What runs rows again: the submitted method, proven to be the submitted code."""
    from kvdiag.conformance.candidate import check, code_digest
    from kvdiag.engine import stored
    from kvdiag.engine.against import rerun
    from kvdiag.ledger.layout import read_manifest
    from kvdiag.publish.claims import evaluation_of

    about = evaluation_of(offered, read_manifest(offered))
    if ":" in spec and code_digest(spec) != about["code_sha256"]:
        raise DataError(f"--method {spec}: its file is not the submitted one (sha256 {about['code_sha256']})")
    candidate = check(spec, lambda o: click.echo(f"  {'ok  ' if o.passed else 'FAIL'} {o.check}", err=True))
    if candidate.conformance["digest"] != about["conformance"]["digest"]:
        raise DataError(
            f"--method {spec}: its conformance report is {candidate.conformance['digest']} here, submitted "
            f"as {about['conformance']['digest']}"
        )
    return lambda drawn, rows: rerun(stored.read(base), candidate, drawn, rows, model)
