#!/bin/sh
# The tests of the barriers on every collector and with compact object headers. From java/, after mvn package.
set -e
cd "$(dirname "$0")/.."
for vm in -XX:+UseSerialGC -XX:+UseParallelGC -XX:+UseG1GC -XX:+UseZGC -XX:+UseShenandoahGC -XX:+UseCompactObjectHeaders; do
  echo "$vm"
  mvn -q -B -o verify -Dtowa.vm="$vm" -Dtest="${1:-EarlyFlipTest}" -Dsurefire.failIfNoSpecifiedTests=false
done
