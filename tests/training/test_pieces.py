"""Schedule, averages, checkpoints, robots' ids, keys: the pieces of a run, each alone."""

from __future__ import annotations

import math
import pickle
import resource
import zipfile

import pytest
import torch

from wdsmix.errors import ConfigError, ConflictError, DataError, StorageError
from wdsmix.training.checkpoint import KINDS, CheckpointFolder, load_checkpoint, save_checkpoint
from wdsmix.training.config import checked, load_train_config, resumed_config
from wdsmix.training.distributed import joined, leads_by_environment
from wdsmix.training.ema import Ema
from wdsmix.training.logs import RunLog, read_log
from wdsmix.training.schedule import Schedule
from wdsmix.training.statistics import grown

CONTENT = {
    **{key: kind() for key, kind in KINDS.items() if isinstance(kind, type)},
    "ema": None,
    "step": 3,
    "model": {"w": torch.arange(3.0)},
}


def test_schedule():
    schedule = Schedule(peak=2.0, warmup=4, total=14, floor=0.1)
    assert [schedule.at(step) for step in range(4)] == [0.5, 1.0, 1.5, 2.0]
    assert schedule.at(4) == 2.0
    assert schedule.at(9) == pytest.approx(2.0 * (0.1 + 0.9 / 2))
    assert schedule.at(14) == schedule.at(1000) == pytest.approx(0.2)
    assert all(schedule.at(s) > schedule.at(s + 1) for s in range(4, 14))
    with pytest.raises(ConfigError, match="warmup_steps"):
        Schedule(peak=1.0, warmup=5, total=4, floor=0)


def test_ema_against_the_formula():
    model = torch.nn.Linear(1, 1, bias=False)
    model.register_buffer("count", torch.tensor(7))
    torch.nn.init.constant_(model.weight, 1.0)
    ema, expected = Ema(model, 0.9), 1.0
    for n, value in enumerate((2.0, -1.0, 5.0)):
        torch.nn.init.constant_(model.weight, value)
        model.count += 1
        ema.update()
        d = min(0.9, (1 + n) / (10 + n))
        expected = d * expected + (1 - d) * value
    with ema.applied():
        assert model.weight.item() == pytest.approx(expected)
        assert model.count == 10
    assert model.weight.item() == 5.0
    other = Ema(model, 0.9)
    other.load_state_dict(ema.state_dict())
    assert other.updates == 3
    with other.applied():
        assert model.weight.item() == pytest.approx(expected)


def test_checkpoint_round_trip_keep_and_latest(tmp_path):
    folder = CheckpointFolder(tmp_path / "checkpoints", keep=2)
    assert folder.latest() is None
    for step in (1, 2, 3, 10):
        folder.save(step, {**CONTENT, "step": step})
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == [
        "latest",
        "step-00000003.pt",
        "step-00000010.pt",
    ]
    for place in (tmp_path, tmp_path / "checkpoints", folder.latest()):
        found = load_checkpoint(place)
        assert found["step"] == 10
        assert torch.equal(found["model"]["w"], torch.arange(3.0))
    folder.latest().unlink()
    with pytest.raises(DataError, match="not there"):
        load_checkpoint(tmp_path)


def test_a_failed_save_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "a.pt"
    save_checkpoint(path, CONTENT)
    before = path.read_bytes()

    def full(content, file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        with pytest.raises(StorageError, match="No space left"):
            save_checkpoint(path, {**CONTENT, "step": 4})
    # As the system says it, through torch's own writer.
    before_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before_limit[1]))
    try:
        with pytest.raises(StorageError, match="File too large"):
            save_checkpoint(path, {**CONTENT, "model": {"w": torch.zeros(100_000)}})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before_limit)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.pt"]


def test_what_a_killed_save_left_is_removed_by_the_next(tmp_path, monkeypatch):
    folder = CheckpointFolder(tmp_path)
    folder.save(1, CONTENT)
    (tmp_path / "step-00000002.pt.partial").write_bytes(b"half")
    real = torch.save

    def interrupted(content, file):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        folder.save(3, CONTENT)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step-00000001.pt", "step-00000002.pt.partial"]
    monkeypatch.setattr(torch, "save", real)
    assert folder.latest().name == "step-00000001.pt"
    folder.save(3, CONTENT)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step-00000001.pt", "step-00000003.pt"]


class Evil:
    def __reduce__(self):
        return print, ("code runs",)


def test_hostile_checkpoints(tmp_path, capsys):
    path = tmp_path / "c.pt"
    with pytest.raises(ConfigError, match="no such file"):
        load_checkpoint(path)
    with pytest.raises(ConfigError, match="no checkpoint in the folder"):
        load_checkpoint(tmp_path)
    torch.save({**CONTENT, "format": "wdsmix-checkpoint", "version": 1, "train": Evil()}, path)
    with pytest.raises(DataError, match=r"c\.pt: can't be read"):
        load_checkpoint(path)
    path.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(DataError, match="can't be read"):
        load_checkpoint(path)
    assert "code runs" not in capsys.readouterr().out
    save_checkpoint(path, CONTENT)
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"\0" * 100):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="can't be read"):
            load_checkpoint(path)
    for content, message in (
        ([1], "not a checkpoint of wdsmix"),
        ({"model": {}}, "not a checkpoint of wdsmix"),
        ({"format": "wdsmix-checkpoint", "version": 99}, "another version .expected 1, found 99"),
        ({"format": "wdsmix-checkpoint", "version": 1, "step": 1}, "keys are missing .*no policy, model, optimizer"),
    ):
        torch.save(content, path)
        with pytest.raises(ConfigError, match=message):
            load_checkpoint(path)


@pytest.mark.parametrize("key", [key for key in KINDS if key not in ("format", "version")])
def test_a_key_of_another_type_is_damage(tmp_path, key):
    torch.save({**CONTENT, "format": "wdsmix-checkpoint", "version": 1, key: "text"}, tmp_path / "c.pt")
    with pytest.raises(DataError, match=rf"c\.pt: {key}: damaged .*found str"):
        load_checkpoint(tmp_path / "c.pt")


def test_a_file_that_unpacks_to_more_than_it_holds_is_refused(tmp_path):
    save_checkpoint(tmp_path / "c.pt", {**CONTENT, "model": {"w": torch.zeros(4_000_000)}})
    with (
        zipfile.ZipFile(tmp_path / "c.pt") as plain,
        zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for name in plain.namelist():
            bomb.writestr(name, plain.read(name))
    assert (tmp_path / "bomb.pt").stat().st_size < 100_000
    with pytest.raises(DataError, match=r"bomb\.pt: can't be read as a checkpoint: its \d+ bytes unpack to 16\d+"):
        load_checkpoint(tmp_path / "bomb.pt")
    assert load_checkpoint(tmp_path / "c.pt")["step"] == 3


def test_devices_and_ranks_that_are_not_there(monkeypatch):
    for name in ("meta", "mps", "toaster", "cpu:x"):
        with pytest.raises(ConfigError, match=r"device: no.*expected auto, cpu, cuda or cuda:N"), joined(name):
            pass
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert leads_by_environment()
    monkeypatch.setenv("RANK", "1")
    assert leads_by_environment()
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not leads_by_environment()
    with pytest.raises(ConfigError, match=r"can't join the other ranks: .*MASTER_ADDR.*torchrun"), joined("cpu"):
        pass


def test_latest_stays_within_its_folder(tmp_path):
    save_checkpoint(tmp_path / "outside.pt", CONTENT)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "latest").write_text("../outside.pt\n")
    with pytest.raises(DataError, match="not there"):
        load_checkpoint(tmp_path)


def test_ids_never_move():
    saved = {"panda": 0, "aloha": 3}
    assert grown(saved, {"aloha": 3, "g1": 1}, rows=16, may_grow=True) == {"panda": 0, "aloha": 3, "g1": 1}
    assert grown(saved, {"panda": 0}, rows=16, may_grow=False) == saved
    for new, message in (
        ({"panda": 1}, "embodiments: panda: an id never moves .expected 0, found 1"),
        ({"g1": 3}, "the id 3 is taken by 'aloha'.*next free id is 4"),
        ({"a": 5, "b": 5}, "taken by 'a'"),
        ({"g1": 16}, "id below 16, found 16.*--num-embodiments 32"),
    ):
        with pytest.raises(ConfigError, match=message):
            grown(saved, new, rows=16, may_grow=True)
    with pytest.raises(ConfigError, match=r"not trained on this robot; did you mean 'panda'\?"):
        grown(saved, {"pandas": 7}, rows=16, may_grow=False)
    assert saved == {"panda": 0, "aloha": 3}


def test_keys_of_a_run(tmp_path):
    path = tmp_path / "train.yaml"
    path.write_text("steps: 100\nbatch_size: 8\naugment: {crop: 0.1}\n")
    train = checked(load_train_config(path, {"lr": 1e-3}), path)
    assert (train.steps, train.batch_size, train.lr, train.warmup, train.augment) == (100, 8, 1e-3, 5, {"crop": 0.1})
    for values, message in (
        ({"steps": 5, "btach_size": 3}, r"btach_size: unknown key; did you mean 'batch_size'\?"),
        ({"lr": 1e-3}, "steps: missing .* give --steps N, or steps: N in the configuration$"),
        ({"lr": -1}, "steps: missing .* give --steps N, or steps: N in the configuration; 1 more fault"),
        ({"steps": 0}, "steps: bad value .expected 1 or more"),
        ({"steps": True}, "steps: expected a number"),
        ({"steps": 5, "lr": math.nan}, "lr"),
        ({"steps": 5, "weight_decay": math.inf}, "weight_decay"),
        ({"steps": 5, "precision": "fp8"}, "precision: bad value"),
        ({"steps": 5, "warmup_steps": 9}, "warmup_steps 9 is longer"),
    ):
        with pytest.raises(ConfigError, match=message):
            checked(values)
    path.write_text("- 1")
    with pytest.raises(ConfigError, match=r"train\.yaml: not a configuration"):
        load_train_config(path, {})


def test_keys_of_a_resumed_run():
    saved = checked({"steps": 10, "schedule_steps": 10, "batch_size": 6}).model_dump(mode="json")
    longer = resumed_config(saved, {"steps": 20}, ranks_then=2, ranks_now=2)
    assert (longer.steps, longer.length, longer.batch_size) == (20, 10, 6)
    assert resumed_config(saved, {}, ranks_then=2, ranks_now=4).batch_size == 3  # 12 over all ranks, as before
    assert resumed_config(saved, {"batch_size": 5}, ranks_then=2, ranks_now=4).batch_size == 5
    with pytest.raises(ConfigError, match="12 samples a step can't be divided by 5 ranks"):
        resumed_config(saved, {}, ranks_then=2, ranks_now=5)
    with pytest.raises(ConflictError, match=r"seed: can't change within a run .expected 0, found 1"):
        resumed_config(saved, {"seed": 1}, ranks_then=1, ranks_now=1)


def test_a_log_goes_on_from_the_checkpoint(tmp_path):
    log = RunLog(tmp_path, 0, tensorboard=False)
    for step in (1, 2, 3):
        log.write("train", step, {"loss": 1 / step, "norm": math.inf, "inner": {"x": math.nan}})
    log.close()
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 4, "lo')  # a crash
    log = RunLog(tmp_path, 2, tensorboard=False)
    log.write("train", 3, {"loss": 9.0})
    log.close()
    rows = read_log(tmp_path / "log.jsonl")
    assert [(row["step"], row["loss"]) for row in rows] == [(1, 1.0), (2, 0.5), (3, 9.0)]
    assert (rows[0]["norm"], rows[0]["inner"]) == (None, {"x": None})
