"""Reads an event file with the `tensorboard` package and compares it with metrics.jsonl.

    tide run recipes/pretrain.lua ... --tensorboard --out RUN
    python spec/golden/events.py RUN             # needs tensorboard; raises where they differ
"""
import json
import math
import pathlib
import sys

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

TAGS = {"train/loss": "loss", "val/loss": "val_loss"}


def main(run):
    file, = run.glob("events.out.tfevents.*")
    events = list(EventFileLoader(str(file)).Load())
    assert events[0].file_version == "brain.Event:2", events[0]
    records = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    assert [e.step for e in events[1:]] == [r["step"] for r in records]
    scalars = 0
    for event, record in zip(events[1:], records):
        assert event.wall_time == record["time"]
        found = {}
        for value in event.summary.value:
            number = value.tensor.float_val[0] if value.HasField("tensor") else value.simple_value
            found[TAGS.get(value.tag, value.tag.removeprefix("train/"))] = number
        assert found.keys() == record.keys() - {"step", "time"}, (found, record)
        for name, number in found.items():
            assert math.isclose(number, record[name], rel_tol=1e-6), (name, number, record[name])
            scalars += 1
    print(f"{len(records)} steps, {scalars} scalars are the same")


main(pathlib.Path(sys.argv[1]))
