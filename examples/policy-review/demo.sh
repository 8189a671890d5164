#!/bin/sh
# A repository with a policy, a log, and a change of the policy, which review.sh comments.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp review.sh "$folder"
cd "$folder"
git init -q -b main .
git config user.email you@example.com
git config user.name you
echo 'limits: [{name: per-ip, by: [ip], rate: 10/min}]' > policy.yaml
git add policy.yaml
git commit -qm 'ten a minute'
for second in 1 2 3 4 5 6; do
    echo "198.51.100.7 - - [16/Nov/2026:10:00:0$second +0000] \"GET /export HTTP/1.1\" 200 5 \"-\" \"curl/8\""
done > access.log
echo 'limits: [{name: per-ip, by: [ip], rate: 3/min}]' > policy.yaml
sh review.sh main access.log
