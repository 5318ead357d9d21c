"""Records as rows and frames."""

import json

import pytest

from doorbell import DoorbellError, records

POINT = {
    "format": "doorbell-study-point",
    "schema": 1,
    "experiment": "send-receive/latency",
    "x": 16,
    "parameters": {"sizes": [16], "window": 1},
    "repetitions": [{"latency_ns": {"p50": 900}, "histogram_ns": [[900, 1]]}, {"latency_ns": {"p50": 910}}],
}
BENCH = {"schema": "doorbell-bench/1", "environment": {"device": "doorbell0"}, "results": [{"bytes": 16}, {"bytes": 64}]}


def test_each_repetition_and_each_result_is_a_row(tmp_path):
    (tmp_path / "point.json").write_text(json.dumps(POINT))
    (tmp_path / "run.json").write_text("{}")
    (point,) = records.read(tmp_path)
    assert [row["latency_ns.p50"] for row in records.rows([point])] == [900, 910]
    first = records.rows([point])[0]
    assert (first["parameters.sizes"], first["parameters.window"], first["repetition"]) == (16, 1, 0)
    assert "histogram_ns" not in first and "repetitions" not in first
    rows = records.rows([BENCH])
    assert [(row["bytes"], row["environment.device"]) for row in rows] == [(16, "doorbell0"), (64, "doorbell0")]


def test_lines_of_json_are_records(tmp_path):
    lines = tmp_path / "bench.jsonl"
    lines.write_text(f"{json.dumps(BENCH)}\n{json.dumps(BENCH)}\n")
    assert records.read(lines) == [BENCH, BENCH]


@pytest.mark.parametrize(
    "text, why",
    [
        ("[1", "is not JSON"),
        ("{}", "is no record: must be"),
        (json.dumps({**POINT, "schema": 2}), "has schema 2, this release reads up to 1: upgrade"),
        (json.dumps({**BENCH, "schema": "doorbell-bench/3"}), "has schema 3"),
    ],
)
def test_other_files_are_named(tmp_path, text, why):
    file = tmp_path / "record.json"
    file.write_text(text)
    with pytest.raises(DoorbellError, match=why):
        records.read(file)
    with pytest.raises(DoorbellError, match="has no record of doorbell: give the folder"):
        records.read(empty(tmp_path))


def empty(folder):
    made = folder / "empty"
    made.mkdir()
    return made


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_have_the_rows(library):
    convert = getattr(records, f"to_{library}")
    try:
        __import__(library)
    except ImportError:
        with pytest.raises(DoorbellError, match=f"{library} is not installed: run `pip install {library}`"):
            convert([POINT])
        return
    assert list(convert([POINT])["latency_ns.p50"]) == [900, 910]
