"""Packs a folder into a wheel: wheel.py FOLDER README VERSION TAG FILE.

The folder has the layout of the wheel, without metadata. The same files give the same wheel.
"""

import base64
import hashlib
import pathlib
import sys
import zipfile

METADATA = """\
Metadata-Version: 2.4
Name: doorbell-rdma
Version: {version}
Summary: Software RNIC, packet checks and measurements for programs that use RDMA verbs
License-Expression: MIT OR Apache-2.0
License-File: LICENSE-APACHE
License-File: LICENSE-MIT
Keywords: rdma,roce,verbs,infiniband,pytest
Classifier: Framework :: Pytest
Classifier: Operating System :: POSIX :: Linux
Classifier: Typing :: Typed
Requires-Python: >=3.9
Provides-Extra: pandas
Requires-Dist: pandas; extra == "pandas"
Provides-Extra: polars
Requires-Dist: polars; extra == "polars"
Provides-Extra: pytest
Requires-Dist: pytest>=7; extra == "pytest"
Description-Content-Type: text/markdown

{readme}"""

WHEEL = """\
Wheel-Version: 1.0
Generator: doorbell
Root-Is-Purelib: false
Tag: {tag}
"""

ENTRY_POINTS = """\
[pytest11]
doorbell = doorbell.testing
"""

# Zip archives have no earlier time.
TIME = (1980, 1, 1, 0, 0, 0)


def entry(name, mode):
    about = zipfile.ZipInfo(name, TIME)
    about.create_system = 3  # Unix
    about.external_attr = mode << 16
    about.compress_type = zipfile.ZIP_DEFLATED
    return about


def main():
    folder, readme, version, tag, file = sys.argv[1:]
    folder, info = pathlib.Path(folder), f"doorbell_rdma-{version}.dist-info"
    readme = pathlib.Path(readme).read_text(encoding="utf-8")
    contents = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    contents[f"{info}/METADATA"] = METADATA.format(version=version, readme=readme).encode()
    contents[f"{info}/WHEEL"] = WHEEL.format(tag=tag).encode()
    contents[f"{info}/entry_points.txt"] = ENTRY_POINTS.encode()
    record = []
    with zipfile.ZipFile(file, "w", compresslevel=9) as wheel:
        for name, data in sorted(contents.items()):
            is_program = data.startswith(b"\x7fELF")
            wheel.writestr(entry(name, 0o100755 if is_program else 0o100644), data, compresslevel=9)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}\n")
        record.append(f"{info}/RECORD,,\n")
        wheel.writestr(entry(f"{info}/RECORD", 0o100644), "".join(record), compresslevel=9)


main()
