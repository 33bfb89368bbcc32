#!/bin/sh
# tests/programs/ds_plot.sh BINARY_DIR: curves of runs from traces, CSV files and
# event files; damaged and missing ones.
# SPDX-License-Identifier: MIT
set -u
bin=$(cd "$1" && pwd)
program=$bin/ds_plot
. "$(cd "$(dirname "$0")" && pwd)/common/checks.sh"

# ---- two runs, from each kind of file
echo '{"train_batch_size": 16, "optimizer": {"type": "Adam"},
 "tensorboard": {"enabled": true, "output_path": "tb", "job_name": "j"},
 "csv_monitor": {"enabled": true, "output_path": "csv", "job_name": "j"}}' >c.json
"$bin/cifar10_deepspeed" --sample --deepspeed_config c.json --max-steps 30 --no-eval --quiet --trace t.csv >/dev/null 2>&1
status 0 one=t.csv tb csv
has out '^plot.html: [0-9]* charts of 3 runs$'
has plot.html '<text class="h" x="72" y="22">loss</text>'
has plot.html '<title>one</title>'
has_not plot.html '\(src\|href\|url\)='
# the three tell the same of the same run: 30 steps are 480 samples
grep -o '<tr><td>loss</td>.*</td></tr>' plot.html | sed 's/<[^>]*>/ /g' >rows
has rows 'one *30 '
has rows 'tb *480 '
has rows 'csv *480 '
awk '{ print $4 }' rows | sort -u >values
lines values 1

status 0 one=t.csv --only loss,lr --smooth 0.9 --log -o two.svg
has out '^two.svg: 2 charts of 1 runs$'
if python3 -c 'import xml.dom.minidom as m; m.parse("two.svg")'; then pass; else fail "two.svg is no XML"; fi
has two.svg 'class="l p"'

# ---- gaps, a line without its end, a header in the middle, names with marks
printf 'step,a<b&c\n1,2\n2,nan\nstep,a<b&c\n3,4\n4,5' >odd.csv
status 0 odd.csv -o odd.svg
has odd.svg 'a&#60;b&#38;c'
if python3 -c 'import xml.dom.minidom as m; m.parse("odd.svg")'; then pass; else fail "odd.svg is no XML"; fi

# ---- damaged event files end where they are damaged
for events in tb/j/*; do
    head -c 1000 "$events" >cut.tfevents
    head -c 500 /dev/urandom >noise.tfevents
done
status 0 cut.tfevents
status 1 noise.tfevents
has err 'noise.tfevents: no numbers'

# ---- wrong usage
status 1 none.csv
has err 'ds_plot: .*none.csv: No such file'
status 1 c.json
has err 'c.json: expected a .csv file, an event file'
mkdir empty
status 1 empty
has err 'empty: no numbers'
status 1 t.csv --only nothing
has err 'the runs have no such numbers'
echo 'no header' >wrong.csv
status 1 wrong.csv
has err 'wrong.csv: expected a first line with the names of columns'
status 1 t.csv -o missing/plot.html
has err 'missing/plot.html'
status 2 t.csv -o plot.png
has err 'ends with .html or .svg'
status 2 t.csv --smooth 1
has err 'from 0 to below 1'
status 2
has err 'which runs?'
finish
