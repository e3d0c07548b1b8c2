#!/usr/bin/env bash
# From nothing to a trained model: installs rlnorm, prepares a tiny model and its problems, and
# trains, with an evaluation before and after.
#
#   bash launch/quickstart.sh [config overrides, such as trainer.steps=20]
#
# It can be run again: what is installed and prepared is kept.
set -euo pipefail
# shellcheck source=launch/install.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/install.sh"
cd -- "$RLNORM_ROOT"
rlnorm_install

say "Preparing the tiny model and its problems (skipped when they are already there)."
.venv/bin/rlnorm prepare tiny
say "Training, with an evaluation before and after; the report is written at the end."
# exec: the exit code of this script is the training's, and so are its signals.
exec .venv/bin/rlnorm train configs/quickstart.yaml "$@"
