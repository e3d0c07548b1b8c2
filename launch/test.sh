#!/usr/bin/env bash
# Runs every check: the linter, the type checker and the tests.
#
#   bash launch/test.sh [pytest arguments]
#
# The environment is installed first if it is not there yet (see launch/install.sh).
set -euo pipefail
# shellcheck source=launch/install.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/install.sh"
cd -- "$RLNORM_ROOT"
rlnorm_install

# Each check runs even if one before it failed, so that one run shows everything.
failed=()
check() {
    local what="$1"
    shift
    say "Running $what: $*"
    "$@" || failed+=("$what")
}
check "the linter" .venv/bin/ruff check .
check "the type checker" .venv/bin/mypy
check "the tests" .venv/bin/python -m pytest -q "$@"

if ((${#failed[@]} > 0)); then
    complain "Failed: $(printf '%s; ' "${failed[@]}")see above."
    exit 1
fi
say "All checks passed."
