#!/bin/sh
# Aiven's plugin for tiered storage, for the test of a read replica in front of Apache Kafka with it: compiled from its
# source into .tools/aiven-plugin, with the jars that it needs. Only its storage on a file system is built.
#
#   scripts/aiven-plugin.sh [REPOSITORY]   REPOSITORY is a clone; GitHub's if none is given
set -eu

version=v1.0.0
repository=${1:-https://github.com/Aiven-Open/tiered-storage-for-apache-kafka}
root=$(cd "$(dirname "$0")/.." && pwd)
folder=$root/.tools/aiven-plugin

for command in git mvn javac jar; do
  command -v "$command" >/dev/null || { echo "$command is not installed" >&2; exit 1; }
done
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
git clone --quiet --depth=1 --branch="$version" --config advice.detachedHead=false \
  "$repository" "$scratch/source"
for scope in runtime provided; do
  mvn --quiet --batch-mode --file="$root/oracle/aiven-plugin.xml" dependency:copy-dependencies \
    "-DincludeScope=$scope" "-DoutputDirectory=$scratch/$scope"
done
find "$scratch/source/commons/src/main" "$scratch/source/core/src/main" \
  "$scratch/source/storage/core/src/main" "$scratch/source/storage/filesystem/src/main" \
  -name '*.java' >"$scratch/files"
javac -nowarn -d "$scratch/classes" -classpath "$scratch/runtime/*:$scratch/provided/*" \
  "@$scratch/files"
# The broker has its own.
rm -f "$scratch"/runtime/slf4j-*.jar
jar --create --file "$scratch/runtime/tiered-storage-$version.jar" -C "$scratch/classes" .
mkdir -p "$root/.tools"
rm -rf "$folder"
mv "$scratch/runtime" "$folder"
