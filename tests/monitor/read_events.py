#!/usr/bin/env python3
"""Print the scalars of a folder of event files, as TensorBoard itself reads them.

usage: read_events.py FOLDER      one line a scalar: file number, step, value as hex, tag as repr

Exit status 77: there is no tensorboard package. Another one: a file that it cannot read.
SPDX-License-Identifier: MIT
"""
import os
import sys

try:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    sys.exit(77)


def main(folder):
    total = 0
    for number, name in enumerate(sorted(os.listdir(folder))):
        for event in EventFileLoader(os.path.join(folder, name)).Load():
            for value in event.summary.value:
                number_of = value.tensor.float_val[0] if value.HasField('tensor') else value.simple_value
                print(number, event.step, float(number_of).hex(), ascii(value.tag))
                total += 1
    events = EventAccumulator(folder, size_guidance={'scalars': 0})  # what the web page asks
    events.Reload()
    shown = sum(len(events.Scalars(tag)) for tag in events.Tags()['scalars'])
    print('all', total, 'shown', shown)


if __name__ == '__main__':
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
