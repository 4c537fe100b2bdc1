"""Our own model and search as an `Engine`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.utils.rnn import pad_sequence
from typing_extensions import override

from nmt.config.decoding import DecodingConfig
from nmt.model.transformer import Transformer
from nmt.search.beam import beam_search
from nmt.search.greedy import greedy_search
from nmt.search.hypothesis import Hypothesis
from nmt.text.special import EOS_ID, PAD_ID
from nmt.translation.engine import Engine
from nmt.translation.model_stepper import ModelStepper


class TorchEngine(Engine):
    """Searches with one model.

    Args:
        model: The model, on its device. It may go on training between two calls.
    """

    def __init__(self, model: Transformer) -> None:
        self._model = model

    @override
    def search(
        self, sources: Sequence[Sequence[int]], options: DecodingConfig
    ) -> list[list[Hypothesis]]:
        device = self._model.output_weight.device
        rows = [torch.tensor([*ids, EOS_ID]) for ids in sources]
        lengths = torch.tensor([len(row) for row in rows])
        source = pad_sequence(rows, batch_first=True, padding_value=PAD_ID)
        search = greedy_search if options.beam_size == 1 else beam_search
        was_training = self._model.training
        self._model.eval()
        try:
            stepper = ModelStepper(self._model)
            return search(stepper, source.to(device), lengths.to(device), options)
        finally:
            self._model.train(was_training)
