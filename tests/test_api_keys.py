"""API keys: the file holds no key, the command makes and takes back, a damaged file opens nothing new."""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
from pathlib import Path

import pytest

from cosyvoice_app.cli.main import main
from cosyvoice_app.errors import BadInput, ConfigError, NotFound
from cosyvoice_app.web import keys
from cosyvoice_app.web.keys import KeyRing, add_key, name_of_key, read_keys, remove_key


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "keys.json"


def ring_of(path: Path) -> tuple[KeyRing, list[float]]:
    """The ring, and its clock: what is in the list is the time."""
    now = [0.0]
    return KeyRing("", path, clock=lambda: now[0]), now


def test_a_key_opens_and_is_nowhere_in_the_file(path: Path) -> None:
    made = {name: add_key(path, name) for name in ("ann", "bob", "c.d_e-1")}
    assert len(set(made.values())) == 3
    text = path.read_text()
    for name, key in made.items():
        assert key.startswith("cvk_") and len(key) >= 4 + 43, "256 random bits"
        assert name_of_key(read_keys(path), key.encode()) == name
        assert key not in text and key[4:] not in text
    assert name_of_key(read_keys(path), b"") is None
    assert name_of_key(read_keys(path), made["ann"].encode() + b" ") is None
    salts = [entry.salt for entry in read_keys(path)]
    assert len(set(salts)) == 3


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_only_the_owner_reads_the_file(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    add_key(path, "ann")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        KeyRing("", path)
    assert "chmod 600" in caplog.text
    add_key(path, "bob")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(p.name for p in path.parent.iterdir()) == ["keys.json", "keys.json.lock"]


def test_all_keys_are_compared_whichever_fits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [add_key(path, f"k{i}") for i in range(5)]
    compared: list[bytes] = []
    compare = keys.hmac.compare_digest

    def count(a: bytes, b: bytes) -> bool:
        compared.append(b)
        return compare(a, b)

    monkeypatch.setattr(keys.hmac, "compare_digest", count)
    for key in (made[0], made[4], "cvk_none"):
        compared.clear()
        name_of_key(read_keys(path), key.encode())
        assert len(compared) == 5


@pytest.mark.parametrize("name", ["", " ", "a b", "../x", "ann\n", "ä", "x" * 65, "-x", "key:ann"])
def test_names_that_cant_be_used(path: Path, name: str) -> None:
    with pytest.raises(BadInput) as error:
        add_key(path, name)
    assert error.value.param == "name"
    assert not path.exists()


def test_a_name_is_given_once(path: Path) -> None:
    key = add_key(path, "ann")
    with pytest.raises(BadInput):
        add_key(path, "ann")
    assert name_of_key(read_keys(path), key.encode()) == "ann"
    with pytest.raises(NotFound) as error:
        remove_key(path, "bob")
    assert "ann" in error.value.message
    remove_key(path, "ann")
    assert read_keys(path) == ()


def test_many_can_add_at_once(path: Path) -> None:
    threads = [threading.Thread(target=add_key, args=(path, f"k{i}")) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_keys(path)) == 8


def test_the_ring_follows_the_file_but_looks_once_a_second(path: Path) -> None:
    ann = add_key(path, "ann")
    ring, now = ring_of(path)
    assert ring.named(ann.encode()) == "ann"
    bob = add_key(path, "bob")
    remove_key(path, "ann")
    now[0] = 0.9
    assert ring.named(bob.encode()) is None and ring.named(ann.encode()) == "ann"
    now[0] = 1.0
    assert ring.named(bob.encode()) == "bob" and ring.named(ann.encode()) is None


DAMAGE = ["", "{", "[]", "{}", '{"keys": {}}', '{"keys": [1]}', '{"keys": [{}]}', '{"keys": [{"name": "a"}]}',
          '{"keys": [{"name": "a", "salt": "00", "hash": "00", "created": ""}]}',
          '{"keys": [{"name": "a", "salt": 1, "hash": 2, "created": 3}]}', "\xff", "[" * 100_000]


@pytest.mark.parametrize("damage", DAMAGE, ids=range(len(DAMAGE)))
def test_a_damaged_file_opens_nothing_at_the_start_and_nothing_new_later(
    path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    ann = add_key(path, "ann")
    ring, now = ring_of(path)
    path.write_bytes(damage.encode("latin-1"))
    with pytest.raises(ConfigError) as error:
        KeyRing("", path)
    assert str(path) in error.value.message and "keys add" in error.value.message
    now[0] = 5
    with caplog.at_level(logging.ERROR):
        assert ring.named(ann.encode()) == "ann"
        now[0] = 10
        assert ring.named(ann.encode()) == "ann"
    assert caplog.text.count("last good keys") == 1, "said once a change, not once a second"
    bob = json.loads(json.dumps(add_key(path.with_name("other.json"), "bob")))
    os.replace(path.with_name("other.json"), path)
    now[0] = 15
    assert ring.named(bob.encode()) == "bob" and ring.named(ann.encode()) is None


def test_two_entries_of_one_name_are_damage(path: Path) -> None:
    add_key(path, "ann")
    data = json.loads(path.read_text())
    path.write_text(json.dumps({"keys": data["keys"] * 2}))
    with pytest.raises(ConfigError, match="twice"):
        read_keys(path)


def test_a_file_that_went_away_keeps_the_keys_and_one_that_never_was_is_an_error(path: Path) -> None:
    ann = add_key(path, "ann")
    ring, now = ring_of(path)
    path.unlink()
    now[0] = 5
    assert ring.named(ann.encode()) == "ann"
    with pytest.raises(ConfigError, match="no file"):
        KeyRing("", path)


def test_the_plain_key(path: Path) -> None:
    ring = KeyRing("s3cret-钥", None)
    assert ring and ring.is_plain("s3cret-钥".encode()) and not ring.is_plain(b"s3cret")
    none = KeyRing("", None)
    assert not none and not none.is_plain(b"") and none.named(b"") is None
    add_key(path, "ann")
    remove_key(path, "ann")
    assert KeyRing("", path), "an empty file asks for a key too"


# the command


def test_the_command(path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["keys", "add", "ann", "--file", str(path)]) == 0
    key = capsys.readouterr().out.strip()
    assert name_of_key(read_keys(path), key.encode()) == "ann"
    monkeypatch.setenv("COSYVOICE_API_KEYS", str(path))
    assert main(["keys", "add", "bob", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["name"] == "bob" and name_of_key(read_keys(path), made["key"].encode()) == "bob"
    assert main(["keys", "list", "--json"]) == 0
    out = capsys.readouterr().out
    assert [entry["name"] for entry in json.loads(out)["keys"]] == ["ann", "bob"]
    assert "hash" not in out and "salt" not in out
    assert main(["keys", "remove", "ann"]) == 0
    assert main(["keys", "list"]) == 0
    assert "bob" in capsys.readouterr().out
    assert main(["keys", "remove", "ann"]) == 2
    monkeypatch.delenv("COSYVOICE_API_KEYS")
    assert main(["keys", "list"]) == 2
    assert "--file" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["file.txt/keys.json", "file.txt/more/keys.json", "folder"])
def test_a_place_where_no_file_can_be_is_an_error_not_a_traceback(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file.txt").write_text("a file")
    (tmp_path / "folder").mkdir()
    for action in (["add", "ann"], ["remove", "ann"], ["list"]):
        assert main(["keys", *action, "--file", str(tmp_path / name)]) == 2
        said = capsys.readouterr()
        assert not said.out and str(tmp_path / name) in said.err and "Traceback" not in said.err


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="who may write everywhere can't be refused")
def test_a_folder_that_cant_be_written_to_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o500)
    try:
        assert main(["keys", "add", "ann", "--file", str(tmp_path / "keys.json")]) == 2
        assert main(["keys", "add", "ann", "--file", str(tmp_path / "more" / "keys.json")]) == 2
        assert "can't be" in capsys.readouterr().err
    finally:
        tmp_path.chmod(0o700)
