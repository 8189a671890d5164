#!/bin/sh
# Writes the comment of a pull request: what policy.yaml of the working tree would have done to a log, compared with that
# of another commit. Keys are hashed, because comments are read by many. Usage: review.sh COMMIT LOG...
set -eu
base=$1
shift
old=$(mktemp)
trap 'rm -f "$old"' EXIT
git show "$base:policy.yaml" > "$old"
tollgate replay --policy "$old" --against policy.yaml --hash-keys --html report.html --json report.json "$@" > report.txt
echo "### What this policy would have done"
echo
sed -n 's/^ *"sentence": "\(.*[Tt]his change would .*\)",*$/\1/p' report.json | head -n 1
echo
echo "The whole report is \`report.html\` among the artifacts of this run."
