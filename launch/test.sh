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

# The real verl, for tests/unit/test_verl.py, in a folder of its own (tests/requirements-verl.txt
# says why). Without it that test takes verl's published signature, so a failure here is none.
install_verl() {
    local folder="$RLNORM_VENV/for-tests/verl" wanted
    wanted="$(sha256 tests/requirements-verl.txt)"
    if [[ "$(cat "$folder/.complete" 2>/dev/null)" == "$wanted" ]]; then return; fi
    rm -rf -- "$folder"
    say "Installing verl for its test, into $folder."
    if vpip install --no-deps --target "$folder" -r tests/requirements-verl.txt \
        >>"$RLNORM_LOG" 2>&1; then
        printf '%s\n' "$wanted" >"$folder/.complete"
    else
        rm -rf -- "$folder"
        say "It can't be installed here (see $RLNORM_LOG), so its test is against the published" \
            "signature."
    fi
}
install_verl

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
