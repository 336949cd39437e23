"""What the pages tell people to type runs as it stands: on a tiny model, a fake Hub and stand-ins for Slurm."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import HfApi

from kvdiag import recipes
from kvdiag.conformance import checks, suite
from kvdiag.engine import price
from kvdiag.publish import push as pushing
from tests.command import Outcome, kvdiag
from tests.publish.conftest import hub, server, user_environment

__all__ = ["hub", "server"]  # fixtures

ROOT = Path(__file__).parents[1]


def page(name):
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name, language):
    """The fenced blocks of a page in that language, `` for those without one."""
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", page(name))


def commands(block):
    """The lines of a block as argument lists; comments are dropped, and patterns widened as a shell does."""
    for line in block.splitlines():
        words = shlex.split(line, comments=True)
        plain = [w for word in words for w in (_widened(word) if f'"{word}"' not in line else [word])]
        if plain:
            yield plain


def _widened(word):
    found = [str(p) for p in Path().glob(word)] if "*" in word else []
    return found or [word]


def typed(block, hub=None):
    """Run a block's lines as they stand; returns the outcomes. Each must succeed."""
    outcomes = []
    for program, *words in commands(block):
        if program == "kvdiag":
            outcome = kvdiag(*words)
        else:
            assert program == "hf" and hub is not None, program
            done = subprocess.run(
                [Path(sys.executable).parent / "hf", *words],
                env=user_environment(hub, Path.cwd()),
                capture_output=True,
                text=True,
                check=False,
            )
            outcome = Outcome(done.returncode, done.stdout, done.stderr)
        assert outcome.code == 0, (program, words, outcome)
        outcomes.append(outcome)
    return outcomes


@pytest.fixture
def here(tmp_path, monkeypatch, built_ledger, model_folder):
    """A working folder with a ledger of the tiny model, as its maker has."""
    shutil.copytree(built_ledger, tmp_path / "ledgers" / "mine")
    # A release names a model without its folder. That of a real one is a Hub id, which is found anywhere.
    (tmp_path / model_folder.name).symlink_to(model_folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    return tmp_path


@pytest.fixture
def few_checks(monkeypatch):
    """One check; the slow test and that of `methods new` run the whole suite."""
    monkeypatch.setattr(suite, "CHECKS", (checks.head_layouts,))


@pytest.fixture
def org(hub, monkeypatch):
    """`org/c2w` on the fake Hub, for commands of this process; a function that publishes a ledger as it."""
    api = HfApi(endpoint=hub.endpoint, token="write-token")
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", api.snapshot_download)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda *_, **__: api)

    def publish(ledger):
        pushing.push(Path(ledger), "org/c2w", api=api, wait=lambda _: None, own_texts=True)

    return publish


@pytest.mark.parametrize("name", ["README.md", "docs/evaluate.md"])
def test_the_newcomers_press_is_complete(name, few_checks, here):
    """The file as printed, and nothing else, to a verdict."""
    (press,) = [b for b in blocks(name, "python") if b.startswith("# my_press.py\n")]
    Path("my_press.py").write_text(press)
    (block,) = [b for b in blocks(name, "sh") if "kvdiag evaluate" in b]
    lines = [line for line in block.splitlines() if not line.startswith("kvdiag submit")]
    outcomes = typed("\n".join(lines))
    (verdict,) = [o for o in outcomes if "mypress (" in o.out]
    assert "mypress (verified" in verdict.out and "runs answered: 12 of 12" in verdict.out
    for cell in ("keep=0.5/agnostic", "keep=0.25/aware"):
        assert f"mypress/{cell}: " in verdict.out
    assert [p.name.rpartition("-")[0] for p in Path("evaluations").iterdir()] == ["mypress"]


def test_both_pages_print_the_same_press():
    assert blocks("README.md", "python")[-1] == blocks("docs/evaluate.md", "python")[0]


def test_a_method_to_begin_with_is_written(here):
    (block,) = [b for b in blocks("docs/evaluate.md", "sh") if "methods new" in b]
    typed(block)
    assert {p.name for p in here.glob("*.py")} == {"my_press.py", "test_my_press.py"}


def test_an_evaluation_to_a_pull_request_to_a_release(few_checks, here, hub, org):
    """docs/submitting.md, and the line of the README, on both sides."""
    org("ledgers/mine")
    Path("my_press.py").write_text(blocks("docs/evaluate.md", "python")[0])
    assert kvdiag("evaluate", "--method", "my_press.py:MyPress").code == 0
    offer, take = blocks("docs/submitting.md", "sh")
    (line,) = [n for b in blocks("README.md", "sh") for n in b.splitlines() if n.startswith("kvdiag submit")]
    for outcome in typed(line) + typed(offer):
        assert "12 runs, 12 answered; reviewed, nothing found" in outcome.out

    (packed,) = commands(offer)
    assert kvdiag(*packed[1:], "--out", "packed").code == 0
    repo, (mine,) = hub.repos["org/c2w"], Path("evaluations").iterdir()
    main = repo.head
    for path in Path("packed").rglob("*"):
        if path.is_file():
            hub.put("org/c2w", f"submissions/{mine.name}/{path.relative_to('packed')}", path.read_bytes())
    repo.tags["refs/pr/3"] = repo.head.id
    repo.commits.append(main)  # main is as it was: the pull request is a branch of its own
    _, merged, checked, pushed = typed(take, hub)
    assert "merged 12 runs of mypress" in merged.out and "rerun 8/12: equal" in merged.out
    assert "data/runs/" in pushed.out and "nothing was done (--dry-run)" in pushed.out
    assert Path("ledgers/c2w-next/manifest.json").is_file() and checked.code == 0


def test_a_data_set_is_asked_as_its_page_says(here, hub, org):
    """The commands of docs/using-the-dataset.md; its Python is run by tests/publish/test_reading.py."""
    org("ledgers/mine")
    (block,) = blocks("docs/using-the-dataset.md", "sh")
    lines = [line.replace("kvdiag/c2w", "org/c2w") for line in block.splitlines()]
    query, worst, compare, check = lines
    fetch = check.partition("hf ")[2].removesuffix(')"')
    rates, shown, compared, fetched = typed("\n".join([query, worst, _known(compare), f"hf {fetch}"]), hub)
    assert "snapkv" in rates.out and "C->W" in shown.out and "knorm" in compared.out
    assert check.startswith('kvdiag validate "$(hf ')
    assert kvdiag("validate", fetched.out.removesuffix("\n")).code == 0  # all that it prints, as $() gives it


def _known(line):
    """The page compares methods of the real data set; the tiny one has others."""
    return line.replace("keydiff", "knorm")


STAND_INS = {
    "sleep": "exit 0",
    "srun": "exit 0",
    "hostname": "echo 10.0.0.1",
    "openssl": "echo 00",
    "scontrol": 'echo "$*" >> scontrol.log',
    "kvdiag": """
        echo "$*" > kvdiag.log
        trap 'echo finished the source in hand >> kvdiag.log; exit 143' TERM
        if [ -n "$ENDS" ]; then exit "$ENDS"; fi
        for i in $(seq 200); do /bin/sleep 0.05; done
    """,
}


@pytest.mark.parametrize("ends", ["", "0", "1"])
def test_a_slurm_job_out_of_time_is_requeued_once_its_sources_are_kept(tmp_path, ends):
    (script,) = [b for b in blocks("docs/scaling.md", "") if b.startswith("#!/bin/bash\n#SBATCH")]
    assert "--signal=B:TERM@300" in script and "--requeue" in script
    for name, body in STAND_INS.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\n{textwrap.dedent(body)}\n")
        path.chmod(0o755)
    (tmp_path / "job").write_text(script)
    where = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "SLURM_JOB_ID": "77", "SCRATCH": "x", "ENDS": ends}
    job = subprocess.Popen(["bash", "job"], cwd=tmp_path, env=os.environ | where)
    try:
        log = tmp_path / "kvdiag.log"
        limit = time.monotonic() + 20
        while not (log.exists() and log.read_text()) and time.monotonic() < limit:
            time.sleep(0.02)
        if not ends:
            time.sleep(0.2)  # until the script waits
            job.send_signal(signal.SIGTERM)
        assert job.wait(20) == int(ends or 143)
    finally:
        job.kill()
    assert log.read_text().startswith("build --recipe ruler_8k ")
    requeued = tmp_path / "scontrol.log"
    assert (requeued.read_text() if requeued.exists() else None) == (None if ends else "requeue 77\n")
    assert ("finished the source in hand" in log.read_text()) == (not ends)


def test_memory_by_context_length_is_what_a_plan_says():
    found = re.findall(
        r"(?m)^\| (.*?) \| ([\d.]+) GB \| ([\d.]+) GB \| ([\d.]+) GB \| ([\d.]+) GB \|$", page("docs/scaling.md")
    )
    rows = [(label, [float(v) for v in values]) for label, *values in found]
    few = {"methods": "snapkv", "settings": "keep=0.75,keep=0.5,keep=0.25", "protocols": "both"}
    expected = []
    for model, cells in (("Qwen/Qwen3-8B", ({}, few)), ("Qwen/Qwen2.5-7B-Instruct", ({},))):
        for i, chosen in enumerate(cells):
            load = price.measure(recipes.load("ruler_8k", model=model, **chosen))
            if i == 0:
                expected.append([round(load.shape.kv_bytes(n, 2) / 1e9, 2) for n in price.CONTEXTS])
            at = [replace(load, lengths=(float(n),)) for n in price.CONTEXTS]
            expected.append([round(price.peak_bytes(one) / 1e9, 1) for one in at])
    assert [values for _, values in rows] == expected


@pytest.mark.slow
@pytest.mark.model
def test_a_newcomer_gets_a_verdict_on_the_embedded_model(tmp_path, monkeypatch, capsys):
    """From an empty folder: a ledger, the README's press, all checks, a verdict. Prints the seconds."""
    monkeypatch.chdir(tmp_path)
    start = time.monotonic()
    built = kvdiag("build", "--recipe", "demo", "--limit", "6", "--methods", "snapkv,knorm")
    assert built.code == 0, built.err
    ready = time.monotonic()
    Path("my_press.py").write_text(next(b for b in blocks("README.md", "python") if b.startswith("# my_press.py")))
    (line,) = [n for b in blocks("README.md", "sh") for n in b.splitlines() if n.startswith("kvdiag evaluate")]
    (verdict,) = typed(line)
    done = time.monotonic()
    assert "mypress (verified" in verdict.out and "runs answered: 36 of 36" in verdict.out
    assert len(re.findall(r"(?m)^mypress/keep=0\.\d+/(?:agnostic|aware): ", verdict.out)) == 6
    assert re.search(r"(?m)^  snapkv keep=0", verdict.out)
    with capsys.disabled():
        print(f"\na ledger of 6 sources: {ready - start:.0f} s; press to verdict: {done - ready:.0f} s")
