"""Unpacks the named members, files or whole directories, of some wheels."""

import argparse
import zipfile

parser = argparse.ArgumentParser()
parser.add_argument("--destination", required=True)
parser.add_argument("--member", action="append", required=True)
parser.add_argument("wheels", nargs="+")
args = parser.parse_args()

directories = tuple(member + "/" for member in args.member)
for wheel in args.wheels:
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n in args.member or n.startswith(directories)]
        archive.extractall(args.destination, names)
