"""A finished ledger's manifest and card: what was changed since they were written is noticed."""

import copy
import json
import shutil

import pytest

from kvdiag.engine import stored
from kvdiag.engine.repair import Trial, repair
from kvdiag.errors import DataError
from kvdiag.ledger.files import to_json
from kvdiag.ledger.finish import add_table
from kvdiag.ledger.intact import damage, manifest_damage, refuse_damaged, sealed, with_another_card
from kvdiag.ledger.layout import CARD, MANIFEST, read_manifest
from kvdiag.ledger.work import check_recipe
from kvdiag.publish import merge
from kvdiag.records.schema import to_table
from kvdiag.validation.validate import validate
from tests import rows
from tests.publish import made


@pytest.fixture
def ledger(tmp_path):
    """A valid ledger, to be changed."""
    made.write(tmp_path / "ledger")
    return tmp_path / "ledger"


def put(ledger, manifest):
    (ledger / MANIFEST).write_bytes(to_json(manifest, indent=1))
    return read_manifest(ledger)


def changed(value):
    """Another value of the same type."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, list):
        return [*value, "x"]
    return {**value, "x": 1}


def test_any_change_of_a_manifest_but_its_times_is_noticed(ledger):
    manifest = read_manifest(ledger)
    assert manifest_damage(manifest) is None
    for key in manifest.keys() - {"build"}:
        other = manifest | {key: changed(manifest[key])}
        assert "was changed" in manifest_damage(other), key
        lacking = {k: v for k, v in manifest.items() if k != key}
        assert manifest_damage(lacking), key
    assert manifest_damage(manifest | {"build": {"seconds": 1.5}}) is None
    # Another order of keys and other spaces say the same.
    assert manifest_damage(json.loads(json.dumps(dict(reversed(manifest.items()))))) is None


@pytest.mark.parametrize(("part", "key"), [("thresholds", "low_ear"), ("recipe", "seed")])
def test_an_edited_field_is_named_by_validate_and_before_anything_is_compared(ledger, part, key):
    manifest = read_manifest(ledger)
    recipe = copy.deepcopy(manifest["recipe"])
    manifest[part][key] += 1
    put(ledger, manifest)
    (finding,) = validate(ledger)
    assert (finding.rule, finding.file) == ("hash", MANIFEST)
    assert "bring it back" in finding.line()
    with pytest.raises(DataError, match=r"manifest\.json was changed .*; bring the file back, or remove"):
        check_recipe(ledger, recipe)
    with pytest.raises(DataError, match=r"manifest\.json was changed"):
        refuse_damaged(ledger, manifest)


def test_manifests_of_earlier_versions_are_no_damage(ledger):
    manifest = read_manifest(ledger)
    older = put(ledger, {k: v for k, v in manifest.items() if k not in ("card", "seal")})
    (ledger / CARD).write_text("another card\n")
    assert validate(ledger) == []
    assert damage(ledger, older) == []
    check_recipe(ledger, older["recipe"])


def test_a_copy_with_a_card_of_its_own_is_sealed_without_it(ledger):
    manifest = put(ledger, with_another_card(read_manifest(ledger) | {"build": {}}))
    (ledger / CARD).write_text("another card\n")
    assert "card" not in manifest and "seal" in manifest
    assert validate(ledger) == [] and damage(ledger, manifest) == []
    put(ledger, manifest | {"thresholds": {}})
    assert [(f.rule, f.file) for f in validate(ledger)] == [("hash", MANIFEST)]
    assert "seal" not in with_another_card({k: v for k, v in manifest.items() if k != "seal"})


def test_a_card_that_the_manifest_does_not_give_is_not_made_up(ledger):
    manifest = read_manifest(ledger)
    manifest["card"]["sha256"] = "0" * 64
    manifest = put(ledger, sealed(manifest))
    (ledger / CARD).unlink()
    with pytest.raises(DataError, match=r"README\.md is missing; bring the file back"):
        refuse_damaged(ledger, manifest)
    assert not (ledger / CARD).exists()


def test_a_table_that_is_added_is_sealed_with_its_new_card(ledger):
    before = read_manifest(ledger)
    manifest = add_table(ledger, "repairs", to_table("repairs", []))
    assert manifest == read_manifest(ledger)
    assert manifest["seal"] != before["seal"] and manifest["card"] != before["card"]
    assert damage(ledger, manifest) == []


def test_an_added_table_does_not_seal_what_was_changed_before(ledger):
    manifest = read_manifest(ledger)
    manifest["recipe"]["seed"] += 1
    put(ledger, manifest)
    add_table(ledger, "repairs", to_table("repairs", made.valid_rows()["repairs"]))
    assert "was changed" in manifest_damage(read_manifest(ledger))


def test_equal_rows_have_equal_seals(tmp_path):
    one, two = (rows.write_made_up(tmp_path / name) for name in ("one", "two"))
    assert one["seal"] == two["seal"] and one["card"] == two["card"]


@pytest.mark.parametrize("what", ["evaluate", "repair", "merge"])
def test_no_command_goes_on_from_an_altered_manifest(built_ledger, tmp_path, what):
    """A new seal, over what they write, would hide it."""
    altered = tmp_path / "altered"
    shutil.copytree(built_ledger, altered)
    manifest = json.loads((altered / MANIFEST).read_text())
    manifest["recipe"]["seed"] += 1
    (altered / MANIFEST).write_text(json.dumps(manifest))
    use = {
        "evaluate": lambda: stored.read(altered),
        "repair": lambda: repair(altered, Trial(), False, lambda done, n: None),
        "merge": lambda: merge._write(altered, altered, tmp_path / "next", {"submitter": "x"}, ()),
    }[what]
    with pytest.raises(DataError, match=r"altered: manifest.json was changed or damaged since it was written"):
        use()
