"""Prints what SwanLab's own reader finds in the run folders of the arguments, as a JSON list.

Runs with the interpreter of the trackers' environment.
"""

import json
import sys
from pathlib import Path

from google.protobuf.json_format import MessageToDict
from swanlab.proto.swanlab.record.v1.record_pb2 import Record
from swanlab.sdk.internal.core_python.store import DataStoreReader

records = []
for folder in sys.argv[1:]:
    for path in sorted(Path(folder).glob("*.swanlab")):
        reader = DataStoreReader()
        reader.open(path)
        while (data := reader.scan()) is not None:
            records.append(MessageToDict(Record.FromString(data)))
json.dump(records, sys.stdout)
