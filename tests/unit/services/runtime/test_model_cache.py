"""Copies of models on the node."""

import logging
import os
import shutil
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from kubealign_services.roles.rollout.weights import read_folder_weights
from kubealign_services.runtime import model_cache
from kubealign_services.runtime.model_cache import ModelCache, local_copy
from kubealign_services.training.contract import Head
from kubealign_services.training.torch_backend.model.loading import load_model
from support.engine_contract.tiny_model import model, write_model

pytestmark = pytest.mark.timeout(120)

_HOURS = 7200.0


def write_files(folder: Path, **sizes: int) -> Path:
    """Write a folder with files of these sizes, and a subfolder."""
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "inner").write_text("not copied")
    for name, size in sizes.items():
        (folder / name).write_bytes(os.urandom(size))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def copies(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir() if path.is_dir()}


def age(copy: Path, seconds: float = _HOURS) -> None:
    """Let the last use of a copy be this long ago."""
    os.utime(copy, (time.time() - seconds,) * 2)


def test_without_a_folder_nothing_is_copied(tmp_path: Path) -> None:
    assert local_copy(tmp_path, {}) == tmp_path
    assert local_copy(tmp_path, {"KUBEALIGN_MODEL_CACHE": ""}) == tmp_path


@pytest.mark.parametrize("text", ["0", "-1", "much", "nan"])
def test_a_size_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    variables = {"KUBEALIGN_MODEL_CACHE": str(tmp_path), "KUBEALIGN_MODEL_CACHE_GIB": text}
    with pytest.raises(
        ValueError, match=f"KUBEALIGN_MODEL_CACHE_GIB is '{text}'; it is a number of GiB above 0"
    ):
        local_copy(tmp_path, variables)


def test_a_model_is_copied_once(tmp_path: Path) -> None:
    source, cache = write_files(tmp_path / "model", weights=1000, config=10), tmp_path / "cache"
    copy = local_copy(source, {"KUBEALIGN_MODEL_CACHE": str(cache), "KUBEALIGN_MODEL_CACHE_GIB": "0.001"})
    assert copy.parent == cache and contents(copy) == contents(source)
    inode = (copy / "weights").stat().st_ino
    assert ModelCache(cache).copy_of(source) == copy
    assert (copy / "weights").stat().st_ino == inode


def test_a_replaced_file_is_another_model(tmp_path: Path) -> None:
    source, cache = write_files(tmp_path / "model", weights=1000), ModelCache(tmp_path / "cache")
    first = cache.copy_of(source)
    (source / "weights").write_bytes(os.urandom(1000))
    second = cache.copy_of(source)
    assert second != first and contents(second) == contents(source)


def test_links_are_followed(tmp_path: Path) -> None:
    """The cache of the hub has links to files with names of digests."""
    blob, source = tmp_path / "blob", tmp_path / "model"
    blob.write_bytes(b"weights")
    source.mkdir()
    (source / "model.safetensors").symlink_to(blob)
    copy = ModelCache(tmp_path / "cache").copy_of(source)
    assert not (copy / "model.safetensors").is_symlink() and contents(copy) == contents(source)


def test_a_torn_copy_is_made_again(tmp_path: Path) -> None:
    source, cache = write_files(tmp_path / "model", weights=1000), ModelCache(tmp_path / "cache")
    copy = cache.copy_of(source)
    os.truncate(copy / "weights", 10)
    assert cache.copy_of(source) == copy and contents(copy) == contents(source)


def test_what_a_crash_has_left_is_no_copy(tmp_path: Path) -> None:
    source, cache = write_files(tmp_path / "model", weights=1000), tmp_path / "cache"
    write_files(cache / "partial", weights=1000, other=5)
    copy = ModelCache(cache).copy_of(source)
    assert contents(copy) == contents(source) and copies(cache) == {copy.name}


def _inode_of_copy(cache: Path, source: Path) -> int:
    return (ModelCache(cache).copy_of(source) / "weights").stat().st_ino


def test_processes_wait_for_one_copy(tmp_path: Path) -> None:
    source, cache = write_files(tmp_path / "model", weights=20 << 20), tmp_path / "cache"
    with ProcessPoolExecutor(3, get_context("spawn")) as pool:
        inodes = list(pool.map(_inode_of_copy, [cache] * 6, [source] * 6))
    assert len(set(inodes)) == 1 and len(copies(cache)) == 1


def test_the_copy_unused_for_the_longest_time_makes_room(tmp_path: Path) -> None:
    sources = [write_files(tmp_path / name, weights=1000) for name in ("a", "b", "c", "d")]
    cache = ModelCache(tmp_path / "cache", most_bytes=3000)
    first, second, third = (cache.copy_of(source) for source in sources[:3])
    for copy, seconds in ((first, 3 * _HOURS), (second, 5 * _HOURS), (third, 4 * _HOURS)):
        age(copy, seconds)
    cache.copy_of(sources[1])
    assert second.stat().st_mtime > time.time() - 60, "it is used again"
    age(second, 2 * _HOURS)
    fourth = cache.copy_of(sources[3])
    assert copies(tmp_path / "cache") == {first.name, second.name, fourth.name}


def test_a_copy_in_use_is_not_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sources = [write_files(tmp_path / name, weights=1000) for name in ("a", "b")]
    cache = ModelCache(tmp_path / "cache", most_bytes=1500)
    first = cache.copy_of(sources[0])
    with caplog.at_level(logging.WARNING):
        assert cache.copy_of(sources[1]) == sources[1]
    assert copies(tmp_path / "cache") == {first.name}
    assert "has no room for it" in caplog.text
    age(first)
    assert contents(cache.copy_of(sources[1])) == contents(sources[1])
    assert first.name not in copies(tmp_path / "cache")


def test_a_model_larger_than_the_cache_removes_nothing(tmp_path: Path) -> None:
    sources = [write_files(tmp_path / "a", weights=1000), write_files(tmp_path / "b", weights=2000)]
    cache = ModelCache(tmp_path / "cache", most_bytes=1500)
    age(cache.copy_of(sources[0]))
    assert cache.copy_of(sources[1]) == sources[1]
    assert len(copies(tmp_path / "cache")) == 1


def test_a_cache_that_cannot_be_used_costs_only_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, file = write_files(tmp_path / "model", weights=10), tmp_path / "file"
    file.write_text("no folder")
    with caplog.at_level(logging.WARNING):
        assert ModelCache(file).copy_of(source) == source
    assert "the cache of models cannot be used" in caplog.text


def test_waiting_for_another_process_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source, cache = write_files(tmp_path / "model", weights=10), tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setattr(model_cache, "_LOCK_SECONDS", 0.1)
    with model_cache.FileLock(cache / "lock"), caplog.at_level(logging.WARNING):
        assert ModelCache(cache).copy_of(source) == source
    assert "another process copies models" in caplog.text


def test_weights_are_loaded_from_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source's weights are replaced without a trace, so that only the copy has the right ones."""
    source = write_model(tmp_path / "model")
    model(1).save_pretrained(source)
    monkeypatch.setenv("KUBEALIGN_MODEL_CACHE", str(tmp_path / "cache"))
    copy = local_copy(source)
    weights = source / "model.safetensors"
    stat = weights.stat()
    shutil.copyfile(weights, tmp_path / "kept")
    model(2).save_pretrained(tmp_path / "other")
    weights.write_bytes((tmp_path / "other" / "model.safetensors").read_bytes())
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert local_copy(source) == copy
    expected = dict(model(1).named_parameters())
    loaded = dict(read_folder_weights(source))
    assert loaded.keys() == expected.keys()
    for name, weight in loaded.items():
        assert torch.equal(weight, expected[name]), name
    packed = load_model(source, Head.LANGUAGE_MODEL)
    head = expected["lm_head.weight"]
    assert any(torch.equal(weight, head) for weight in packed.parameters() if weight.shape == head.shape)
