"""A training leaves in its folder what makes translating with it faster."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from nmt.checkpoint.files import checkpoint_dir
from nmt.checkpoint.model_folder import SHORTLIST
from nmt.commands.train import fit
from nmt.training.signals import StoppedBySignal
from tests.training.toy import make_config, write_corpus


@pytest.mark.usefixtures("stopped_once")
def test_a_run_that_has_ended_has_the_short_lists_of_its_data(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever an earlier run, a stop or an accident has left of them."""
    caplog.set_level(logging.INFO, "nmt")
    write_corpus(tmp_path)
    config = make_config()
    place = config.run_dir / SHORTLIST
    place.parent.mkdir()
    place.write_bytes(b"of other data")
    with pytest.raises(StoppedBySignal):
        fit(config)
    assert not place.exists()
    fit(config)
    made = (config.prepared_dir / SHORTLIST).read_bytes()
    assert place.read_bytes() == made

    manifest = checkpoint_dir(config.run_dir, 10) / "manifest.json"
    before = manifest.read_bytes()
    place.unlink()
    fit(config)  # nothing is left to train
    longer = "the same command with a larger training.max_steps goes on"
    assert f"training had ended at step 10; {longer}" in caplog.messages
    assert place.read_bytes() == made
    place.write_bytes(b"damaged")
    fit(config)
    assert place.read_bytes() == made
    assert manifest.read_bytes() == before
