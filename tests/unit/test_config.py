"""The job configuration: its JSON form is the same job, and a person's mistake is one line that names file and key."""

import json
from pathlib import Path
from typing import Any

import pytest

from leto.core.config import JobConfig, Timeouts, Workload
from leto.core.errors import ConfigError
from leto.core.geometry import Protection

JOB = JobConfig(
    name="job",
    workload=Workload(model="olmoe-tiny", data_parallel=2, expert_parallel=2, iterations=10),
    protection=Protection(page_bytes=65536, data_pages=60, chunk_pages=12),
    output_dir="out",
    plugins=("some.module:install",),
    plugin_options={"file": "x", "depth": {"of": [1, 2]}},
    timeouts=Timeouts(iteration_s=7),
)


def test_json_keeps_the_job() -> None:
    assert JobConfig.from_json(JOB.to_json(), "job.json") == JOB


def test_what_is_left_out_takes_its_default() -> None:
    workload = {"model": "olmoe-tiny", "data_parallel": 2, "iterations": 1}
    text = json.dumps({"name": "job", "workload": workload, "protection": {}, "output_dir": "out"})
    job = JobConfig.from_json(text, "job.json")
    assert (job.protection, job.timeouts, job.plugins, job.workload.seed) == (Protection(), Timeouts(), (), 42)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("workload.iterations", "ten", 'job.json: workload.iterations: "ten" is not a whole number'),
        ("workload.iterations", 10.0, "job.json: workload.iterations: 10.0 is not a whole number"),
        ("workload.seed", True, "job.json: workload.seed: true is not a whole number"),
        ("workload.model", None, "job.json: workload.model: null is not a text"),
        ("workload", [], "job.json: workload must be an object"),
        ("protection.page_bytes", "64KiB", 'job.json: protection.page_bytes: "64KiB" is not a whole number'),
        ("protection.pipelined", 1, "job.json: protection.pipelined: 1 is not true or false"),
        ("protection.page_bytes", 5, "job.json: protection: page: 5 bytes is not a multiple of 4 KiB"),
        ("plugins", "module:function", 'job.json: plugins: "module:function" is not a list of texts'),
        ("plugins", [1], "job.json: plugins: [1] is not a list of texts"),
        ("plugin_options", [], "job.json: plugin_options: [] is not an object"),
        ("timeouts.ready_s", "1s", 'job.json: timeouts.ready_s: "1s" is not a finite number'),
        ("timeouts.ready_s", float("inf"), "job.json: timeouts.ready_s: Infinity is not a finite number"),
        ("timeouts.ready_s", -1, "job.json: timeouts: ready_s: -1 is not positive"),
        ("device_bytes", 0, "job.json: device_bytes: 0 is not positive"),
        ("timeouts.reddy_s", 1, "job.json: unknown key timeouts.reddy_s; known: "),
    ],
)
def test_a_wrong_value_is_one_line(key: str, value: Any, message: str) -> None:
    raw = json.loads(JOB.to_json())
    *path, last = key.split(".")
    place = raw
    for part in path:
        place = place[part]
    place[last] = value
    with pytest.raises(ConfigError) as caught:
        JobConfig.from_json(json.dumps(raw), "job.json")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(ConfigError, match=r"job.json: missing key workload\.model"):
        JobConfig.from_json('{"name": "j", "protection": {}, "output_dir": "", "workload": {}}', "job.json")


def test_what_is_not_json_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text('{\n"name": }')
    with pytest.raises(ConfigError, match=r"job\.json:2: not JSON"):
        JobConfig.load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"job\.json: not UTF-8 text"):
        JobConfig.load(path)
    with pytest.raises(ConfigError, match="Is a directory"):
        JobConfig.load(tmp_path)
