"""Records of `doorbell study` and results of `doorbell bench --json`, as dictionaries and as frames.

    from doorbell import records

    points = records.read("doorbell-study")
    frame = records.to_pandas(points)

`doorbell man --markdown` describes the fields (docs/record.md). Later releases may add fields, which the functions
keep.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterable, Iterator, Union

from doorbell._installed import DoorbellError

if TYPE_CHECKING:
    import pandas
    import polars

#: A record as its JSON describes it.
Record = dict[str, Any]
#: Value of a cell.
Scalar = Union[None, bool, int, float, str]

POINT = "doorbell-study-point"
BENCH = "doorbell-bench"
#: Newest schema of both formats that this release reads.
SCHEMA = 1


def read(path: str | os.PathLike[str]) -> list[Record]:
    """Returns all records in a file or in a folder of `doorbell study --out`, in the order of their paths.

    A file has one JSON object, or one in each line. In a folder, files of other formats are left out. Raises
    `DoorbellError` for a file that is no record, and for records of a newer release.
    """
    place = Path(path)
    if place.is_dir():
        found = [record for file in sorted(place.rglob("*.json")) for record in _objects(file) if _is_record(record)]
        if not found:
            raise DoorbellError(f"{place} has no record of doorbell: give the folder of `doorbell study --out`")
    else:
        found = _objects(place)
        for record in found:
            if not _is_record(record):
                raise DoorbellError(f"{place} is no record: must be a point of `doorbell study` or of `bench --json`")
    for record in found:
        if _schema(record) > SCHEMA:
            raise DoorbellError(
                f"{place} has schema {_schema(record)}, this release reads up to {SCHEMA}: upgrade doorbell-rdma"
            )
    return found


def _objects(file: Path) -> list[Record]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DoorbellError(f"{file} cannot be read: {error}") from None
    try:
        values = [json.loads(text)]
    except json.JSONDecodeError:
        try:
            values = [json.loads(line) for line in text.splitlines() if line.strip()]
        except json.JSONDecodeError as error:
            raise DoorbellError(f"{file} is not JSON: {error}") from None
    return [value for value in values if isinstance(value, dict)]


def _is_record(record: Record) -> bool:
    return record.get("format") == POINT or str(record.get("schema", "")).startswith(f"{BENCH}/")


def _schema(record: Record) -> int:
    text = str(record.get("schema", "")).rpartition("/")[2]
    return int(text) if text.isdigit() else 0


def rows(records: Iterable[Record]) -> list[dict[str, Scalar]]:
    """Returns one row for each repetition of a point, and one for each result of a bench.

    A row has the scalars of the record and of its result. The name of a nested field has the names of all levels,
    separated by dots: `parameters.window`, `latency_ns.p50`. Lists of numbers and texts are left out, except lists of
    one element, which stand for it. `repetition` counts from 0.
    """
    found: list[dict[str, Scalar]] = []
    for record in records:
        results = record.get("repetitions", record.get("results"))
        shared = {name: value for name, value in record.items() if name not in ("repetitions", "results")}
        head = dict(_flat("", shared))
        for number, result in enumerate(results if isinstance(results, list) else [{}]):
            found.append({**head, "repetition": number, **dict(_flat("", result))})
    return found


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, Scalar]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(f"{prefix}.{name}" if prefix else str(name), inner)
    elif isinstance(value, list):
        if len(value) == 1 and not isinstance(value[0], list):
            yield from _flat(prefix, value[0])
    else:
        yield prefix, value


def to_pandas(records: Iterable[Record]) -> "pandas.DataFrame":
    """Returns the rows as a frame of pandas."""
    try:
        import pandas
    except ImportError:
        raise DoorbellError("pandas is not installed: run `pip install pandas`") from None
    return pandas.DataFrame.from_records(rows(records))


def to_polars(records: Iterable[Record]) -> "polars.DataFrame":
    """Returns the rows as a frame of polars."""
    try:
        import polars
    except ImportError:
        raise DoorbellError("polars is not installed: run `pip install polars`") from None
    return polars.from_dicts(rows(records), infer_schema_length=None)
