"""What tests share: where the shared data lies, and a tiny model made once per session."""

from __future__ import annotations

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with vectors and data that lies beside the repository."""
    folder = REPOSITORY.parent / "shared"
    assert folder.is_dir(), f"the tests need {folder}"
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model/, train.jsonl and test.jsonl as `rlnorm prepare tiny` makes them, barely trained."""
    from rlnorm.prepare.tiny import TinySettings, prepare_tiny

    folder = tmp_path_factory.mktemp("prepared") / "tiny"
    prepare_tiny(folder, seed=1, settings=TinySettings(low=0.02, max_steps=60))
    return folder
